"""What another host says is checked where it is read: a wrong answer is told with the host's name, and nobody waits for who has
gone."""

from __future__ import annotations

import os
import signal
import socket
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from dnnc.engines.cluster.agents import LocalAgents, offered
from dnnc.engines.cluster.files.cache import Cache
from dnnc.engines.cluster.network.relay import _HEADER, _TEXT, Relay
from dnnc.engines.cluster.nodes.actor import Facts
from dnnc.engines.cluster.starting import FarProcesses, Hosts, _Far, wanted_keys
from dnnc.engines.hosts.answers import Answers
from dnnc.engines.onnxruntime import Pipeline, RunOptions
from dnnc.engines.onnxruntime.errors import StageStopped
from dnnc.engines.onnxruntime.starter.processes import DeviceProcess, events_told, keep_last
from dnnc.engines.onnxruntime.transport.codec import decode, encode, from_user
from ir.core.diagnostics import DnncError, InvalidInput
from tests.dnnc.engines.cluster.far import HERE
from tests.dnnc.engines.cluster.test_relay import FLOATS, pair
from tests.dnnc.engines.onnxruntime.builds import make_build

KEY = zmq.curve_keypair()[0].decode()
SETTINGS = {"host": "b", "address": HERE, "ports": (26000, 26999)}
VERSIONS = {"python": "3.11.1"}
FACTS: dict[str, Any] = {"versions": VERSIONS, "cores": 2, "memory": 1, "providers": ["X"], "disk": 1}


def test_what_is_right_is_read() -> None:
    assert Facts.read(FACTS, "b", "").cores == 2
    assert offered({"offer": [f"tcp://{HERE}:26500", KEY]}, SETTINGS) == (f"tcp://{HERE}:26500", KEY)


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {**FACTS, "cores": "2"},
        {**FACTS, "cores": True},
        {**FACTS, "memory": -1},
        {**FACTS, "disk": 1 << 80},
        {**FACTS, "providers": "CPU"},
        {**FACTS, "versions": {"python": 3}},
    ],
)
def test_wrong_facts_are_told(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match=r"--cluster h:1: error\[E2229\]: host 'b' answered .* expected "):
        Facts.read(wrong, "b", "--cluster h:1")


@pytest.mark.parametrize(
    "wrong",
    [
        "no object",
        {},
        {"offer": [f"tcp://{HERE}:26500"]},
        {"offer": [f"tcp://{HERE}:80", KEY]},
        {"offer": ["tcp://192.0.2.66:26500", KEY]},
        {"offer": ["ipc:///tmp/x", KEY]},
        {"offer": [f"tcp://{HERE}:26500", "short"]},
        {"offer": [f"tcp://{HERE}:26500", "%" * 40]},
        {"refused": []},
        {"refused": [{"severity": "error", "message": 5}]},
        {"refused": [{"severity": "fatal"}]},
    ],
)
def test_wrong_offers_are_told(wrong: Any) -> None:
    """Among them endpoints elsewhere, to which the others would connect."""
    with pytest.raises(InvalidInput, match=r"host 'b': error\[E2229\]"):
        offered(wrong, SETTINGS)


@pytest.mark.parametrize("line", [b"{", b"5", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}", b"\xff"])
def test_a_line_that_is_no_answer_is_told(line: bytes) -> None:
    with pytest.raises(InvalidInput, match="E2229"):
        Answers("b").line(line)


def test_only_parts_of_the_build_are_wanted() -> None:
    nothing: Any = type("Nothing", (), {"parts": ()})
    with pytest.raises(InvalidInput, match="E2229"):
        wanted_keys(Answers("b"), ["../../etc/passwd"], nothing)


def _headers() -> list[bytes]:
    return [
        b"short",
        _HEADER.pack(77, 1, 0, 0, 0, 0, 0),
        _HEADER.pack(0, 1, 0, 1 << 20, 0, 2, 0),  # a slot that is not there
        _HEADER.pack(0, 1, 0, 0, 0, 1 << 30, 0),  # values that are not there
        _HEADER.pack(0, 1, 0, 0, 0, 2, 0),  # no frames
        _HEADER.pack(0, 1, 0, 0, 0, 2, 3),  # parts of values that have none
        _HEADER.pack(1, 1, 0, 0, 0, 0, 0),  # a slot given back that was never handed over
        _HEADER.pack(3, 1, 0, 0, 1, 1 << 30, 0),  # a piece far behind its value
    ]


@pytest.mark.parametrize("header", _headers())
def test_a_message_that_fits_nothing_ends_its_sender_alone(header: bytes) -> None:
    with pair() as (a, b):
        receiver = b.receiver(1, FLOATS, "a")
        a._loop.do(lambda: a._peers["b"].socket.send(header))
        with pytest.raises(EOFError):
            receiver.read_tokens()
        assert list(b.unfit) == ["a"]
        b.admit({})
        assert not b._loop.over


def test_a_process_cannot_speak_for_another() -> None:
    with pair() as (a, b):
        c = Relay(HERE)
        try:
            b.admit({"c": c.offer})
            c.admit({"b": b.offer})
            c.meet({"b": b.offer})
            b.meet({"c": c.offer})
            read, target = os.pipe()
            b.receive_stream(3, "a", target)
            c._loop.do(lambda: c._peers["b"].socket.send_multipart([_HEADER.pack(_TEXT, 3, 0, 0, 0, 0, 0), b"forged"]))
            other = b.receiver(2, FLOATS, "c")
            with pytest.raises(EOFError):
                other.read_tokens()
            assert list(b.unfit) == ["c"]
            a.close()
            with open(read, "rb") as file:
                assert file.read() == b""
        finally:
            c.close()


def test_who_has_gone_before_the_meeting_is_not_waited_for() -> None:
    with socket.create_server((HERE, 0)) as unused:
        port = unused.getsockname()[1]
    relay = Relay(HERE)
    try:
        with pytest.raises(ConnectionError, match=f"tcp://{HERE}:{port}"):
            relay.meet({"b": (f"tcp://{HERE}:{port}", KEY)}, 3600)
    finally:
        relay.close()


def test_damaged_values_are_no_other_error() -> None:
    whole = np.frombuffer(
        b"".join(encode({"x": from_user(np.ones((2, 3), np.float32)), "s": np.array(["a"], object)})), np.uint8
    )
    for old, new in (
        (b'["tensor", 1, [2, 3]', b'["tensor", 1, [9, 9]'),
        (b'["tensor", 1, [2, 3]', b'["tensor", 99,[2, 3]'),
        (b'["tensor", 1, [2, 3]', b'["tensor", 1,[-2,-3]'),
        (b'["strings", [1]', b'["strings", [9]'),
        (b'["strings"', b'["strangs"'),
        (b'{"x"', b'["x"'),
    ):
        assert old in whole.tobytes()
        with pytest.raises(ValueError, match=r".+"):
            decode(np.frombuffer(whole.tobytes().replace(old, new), np.uint8))


def test_the_last_lines_of_standard_error_are_kept() -> None:
    process: Any = DeviceProcess(0, "cpu0", {0: -1}, None, -1)  # type: ignore[arg-type]
    for data in (b"x" * 1_000_000, b"y\n", *(f"line {n}\n".encode() * 1000 for n in range(20)), b"half a ", b"line\nand mo"):
        keep_last(process, data)
    assert list(process.tail)[-2:] == ["line 19", "half a line"]
    assert process.last_words.endswith("half a line\n    and mo")
    keep_last(process, b"z" * 1_000_000 + b"\n")
    assert len(process.last_words) < 12 * 520


def test_all_of_twelve_whole_lines_are_kept() -> None:
    process: Any = DeviceProcess(0, "cpu0", {0: -1}, None, -1)  # type: ignore[arg-type]
    keep_last(process, b"".join(b"line %d\n" % n for n in range(20)))
    assert [f"line {n}" in process.last_words for n in range(7, 20)] == [False, *[True] * 12]


@pytest.mark.parametrize("stage", [[], {}, True, 1.0, "1", 2])
def test_an_event_is_of_a_stage_of_its_process(stage: Any) -> None:
    process: Any = DeviceProcess(0, "cpu0", {1: -1}, None, -1, host="b")  # type: ignore[arg-type]
    assert events_told(Answers("b"), process, [["F", 1, 0, 0, 1, "t", []]])
    with pytest.raises(InvalidInput, match="host 'b' answered"):
        events_told(Answers("b"), process, [["F", stage, 0, 0, 1, "t", []]])


def test_a_host_that_hashes_is_waited_for(tmp_path: Path) -> None:
    heard: list[float] = []
    content, cache = bytes(3 << 20), Cache(tmp_path / "parts")
    cache.add("a" * 64, lambda file: sha256(content).hexdigest() if file.write(content) else "")
    for ranges in (None, ((0, 3 << 20),)):
        assert cache.find("a" * 64, ranges, heard.append) is not None
    assert len(heard) == 6
    read, write = os.pipe()
    os.write(write, b'{"hashed": 0.1}\n{"hashed": 0.9}\n{"wants": []}\n{"strange": 1}\n')
    build: Any = None
    processes = FarProcesses(build, RunOptions(), Hosts({}, {}, HERE), LocalAgents())
    far = _Far("b", 0, ("", ""), -1, read, build)
    assert processes._answer(far, "wants") == []
    with pytest.raises(InvalidInput, match=r"host 'b' answered .*strange"):
        processes._answer(far, "started")
    os.close(read)
    os.close(write)


class Killing(FarProcesses):
    """Kills a process once all have said where they listen, before they meet."""

    def _address(self, process: DeviceProcess) -> Any:
        found = super()._address(process)
        if process is self.every[-1]:
            os.kill(process.popen.pid, signal.SIGKILL)
        return found


@pytest.mark.slow
def test_a_process_that_dies_while_they_meet_is_named(tmp_path: Path) -> None:
    build = make_build(tmp_path, *(f"g (float[2] v{i}) => (float[2] v{i + 1}) {{ v{i + 1} = Neg(v{i}) }}" for i in range(3)))
    hosts = Hosts({"cpu0": "a", "cpu1": "a", "cpu2": "b"}, {"a": HERE, "b": HERE}, HERE, cache=str(tmp_path / "c"), wait=0)
    processes = Killing(build, RunOptions(), hosts, LocalAgents())
    with (
        pytest.raises(StageStopped, match=r"stage 2 on cpu2 of host b: .*was killed by SIGKILL"),
        Pipeline(build, processes=processes),
    ):
        pass


class KillingAgents(LocalAgents):
    """Kills an agent once it has said where it listens."""

    def launch(self, settings: Any) -> tuple[str, str]:
        found = super().launch(settings)
        self.processes[settings["host"]].kill()
        self.processes[settings["host"]].wait()
        return found


@pytest.mark.slow
def test_an_agent_that_dies_before_it_is_met_is_named(tmp_path: Path) -> None:
    build = make_build(tmp_path, "g (float[2] x) => (float[2] y) { y = Neg(x) }")
    hosts = Hosts({"cpu0": "a"}, {"a": HERE}, HERE, cache=str(tmp_path / "c"), wait=0)
    with (
        pytest.raises(StageStopped, match=r"cpu0 of host a: error\[E2202\]"),
        Pipeline(build, processes=FarProcesses(build, RunOptions(), hosts, KillingAgents())),
    ):
        pass


@pytest.mark.slow
@pytest.mark.parametrize(("ports", "who"), [(1, r"host 'a': "), (2, r"host 'a': ")])
def test_a_range_without_a_free_port_is_told(ports: int, who: str, tmp_path: Path) -> None:
    """The starter takes one port, the agent the next one, its process none."""
    build = make_build(tmp_path, "g (float[2] x) => (float[2] y) { y = Neg(x) }")
    first = _free(ports)
    hosts = Hosts({"cpu0": "a"}, {"a": HERE}, HERE, (first, first + ports - 1), cache=str(tmp_path / "c"), wait=0)
    with (
        pytest.raises(DnncError, match=rf"{who}.*E2201.*any of the ports {first} to {first + ports - 1}") as refused,
        Pipeline(build, processes=FarProcesses(build, RunOptions(), hosts, LocalAgents())),
    ):
        pass
    assert refused.value.exit_code == 3


def _free(count: int) -> int:
    """The first of so many ports that nobody listens on."""
    for first in range(27000, 29000, count):
        sockets = []
        try:
            for port in range(first, first + count):
                sockets.append(socket.create_server((HERE, port)))
            return first
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    raise OSError("no free ports")
