"""Which node stands for each host, and how that is stated on the command line."""

from __future__ import annotations

import importlib.util
import re
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dnnc
from dnnc.cli import main
from dnnc.engines.cluster.nodes import ray_cluster
from dnnc.engines.cluster.nodes.actor import versions
from dnnc.engines.cluster.nodes.matching import HostNeeds, Node, match_hosts, nodes_again
from dnnc.engines.cluster.nodes.ray_cluster import answers_at, nodes_of, reached, version_faults
from dnnc.engines.hosts.options import PORTS_TEXT, port_range, stated_cluster, stated_hosts
from ir.core.diagnostics import InvalidInput, UsageError

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'dnnc[cluster]'"
)

SMALL = Node("a1b2c3d4", "192.0.2.1", "lab1", {"CPU": 2})
LARGE = Node("a1b2c3ff", "192.0.2.2", "lab2", {"CPU": 8})
MARKED = Node("ffffffff", "192.0.2.3", "lab3", {"CPU": 1, "host:left": 1})
NODES = (SMALL, LARGE, MARKED)
HOSTS = [HostNeeds("left", 4), HostNeeds("right", 4)]


def test_resource_marks_the_node_and_cores_decide_the_rest() -> None:
    found, chosen = match_hosts(HOSTS, NODES, {}, "here")
    assert found == {"left": MARKED, "right": LARGE}
    assert chosen == ("right",)


def test_the_address_of_the_topology_goes_before_cores() -> None:
    hosts = [HostNeeds("left", 4, address="lab1"), HostNeeds("right", 1, address="192.0.2.1")]
    found, chosen = match_hosts(hosts, NODES, {}, "here")
    assert (found, chosen) == ({"left": MARKED, "right": SMALL}, ())
    with pytest.raises(InvalidInput, match=r"host 'away': error\[E2213\]: '192.0.2.9' names 0 nodes"):
        match_hosts([HostNeeds("away", 1, address="192.0.2.9")], NODES, {}, "here")


def test_a_stated_node_goes_before_its_resource() -> None:
    for name in ("192.0.2.1", "lab1", "a1b2c3d4"):
        found, chosen = match_hosts(HOSTS, NODES, {"left": name}, "here")
        assert (found["left"], chosen) == (SMALL, ("right",))


@pytest.mark.parametrize("name", ["a1b2c3", "lab9", "a1"])
def test_a_name_of_no_node_or_of_two_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=rf"--host left={name}: error\[E2213\]"):
        match_hosts(HOSTS, NODES, {"left": name}, "here")


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match=r"E2212.*'middle'"):
        match_hosts(HOSTS, NODES, {"middle": "lab1"}, "here")
    with pytest.raises(InvalidInput, match=r"E2214.*'right'.*9 cores"):
        match_hosts([HOSTS[0], HostNeeds("right", 9)], NODES, {}, "here")
    with pytest.raises(InvalidInput, match=r"E2214.*1 GPUs"):
        match_hosts([HostNeeds("gpu", 1, 1)], NODES, {}, "here")
    with pytest.raises(InvalidInput, match=r"E2215.*lab2.*left, right"):
        match_hosts(HOSTS, NODES, {"left": "lab2", "right": "192.0.2.2"}, "here")


def test_the_node_of_one_host_is_not_taken_for_another() -> None:
    with pytest.raises(InvalidInput, match=r"E2214.*'other'"):
        match_hosts([HostNeeds("other", 1)], (MARKED,), {}, "here")


def test_options_are_read() -> None:
    assert stated_hosts(["a=10.0.0.1", "b=lab2"]) == {"a": "10.0.0.1", "b": "lab2"}
    assert port_range("7000-7009") == (7000, 7009)
    for wrong in (["a"], ["=x"], ["a="], ["a=1", "a=2"]):
        with pytest.raises(UsageError, match="E2221"):
            stated_hosts(wrong)
    for text in ("7000", "9-1", "0-5", "1-65536", "a-b", "-"):
        with pytest.raises(UsageError, match="E2222"):
            port_range(text)


def test_options_of_a_cluster_need_one(capsys: pytest.CaptureFixture[str]) -> None:
    for options in (["--host", "a=b"], ["--ports", "7000-7001"], ["--wait", "5"]):
        for command in ("run", "check"):
            assert main([command, "build", *options]) == 2
            assert f"{options[0]}: error[E2227]" in capsys.readouterr().err
    for command in ("run", "check", "train"):
        assert main([command, "build", "--emulate", "--cluster", "127.0.0.1:1"]) == 2
        assert "--cluster: error[E2228]" in capsys.readouterr().err


@contextmanager
def process_of_ray(greeting: bytes = b"settings") -> Iterator[int]:
    """The port of a process that greets whoever connects, as Ray's do, and closes the connection; somebody has to connect."""
    connected = []

    def answer() -> None:
        with suppress(OSError), there.accept()[0] as connection:  # where it is shut down, nobody has connected
            connected.append(connection)
            connection.sendall(greeting)

    with socket.create_server(("127.0.0.1", 0)) as there:
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield there.getsockname()[1]
        finally:
            there.shutdown(socket.SHUT_RDWR)
            thread.join()
    assert connected, "nobody has connected"


def node(port: int, id: str = "", started: int = 0) -> Node:
    return Node(id or str(port), "127.0.0.1", "lab", {"CPU": 2, "host:a": 1}, port, started)


def test_a_node_that_nobody_answers_for_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray has a node for some time after it was lost, beside the one that was started in its place; and a system accepts
    connections to a process that is stopped."""
    with socket.create_server(("127.0.0.1", 0)) as stopped, socket.create_server(("127.0.0.1", 0)) as lost:
        left, gone = (one.getsockname()[1] for one in (stopped, lost))
        lost.close()
        with process_of_ray() as there:
            assert reached([node(gone), node(there)]) == (node(there),)
        monkeypatch.setattr(ray_cluster, "_GREET_SECONDS", 0.1)
        assert reached([node(left)]) == ()


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="this system does not list its connections")
@pytest.mark.slow
def test_a_node_whose_system_loses_two_packets_is_there() -> None:
    """A system with a full queue of connections drops the first packets of another one, which go again each 1 or 2 s."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as there, ThreadPoolExecutor(1) as pool:
        port = there.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), 30):  # it fills the queue
            answer = pool.submit(answers_at, "127.0.0.1", port)
            while not repeated(port) and not wait([answer], 0.01).done:
                pass
            assert not answer.done()
            there.accept()[0].close()
            there.settimeout(30)
            with there.accept()[0] as connection:
                connection.sendall(b"settings")
                assert answer.result(30)


def repeated(port: int) -> bool:
    """Whether a connection to this port of this system was asked for again (SYN_SENT, state 02) and is not answered yet."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[2].endswith(f":{port:04X}") and row[3] == "02" and int(row[6], 16) for row in rows)


ADDRESSES_OF_NOTHING = ["a..b", f"{'a' * 70}.example", "\udcff"]


@pytest.mark.parametrize("host", ADDRESSES_OF_NOTHING)
def test_nothing_answers_at_what_is_no_address(host: str) -> None:
    assert not answers_at(host, 6379)
    assert reached([Node("1" * 8, host, "lab", {}, 6379)]) == ()


@needs_ray
@pytest.mark.parametrize("host", ADDRESSES_OF_NOTHING[:2])
def test_an_address_of_no_cluster_is_refused(host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = dnnc.plan("zoo:mlp,layers=1,hidden=8,batch=1", machines="preset:cpu-1", mesh="none", replicas=1, stages=1)
    build, machines, address = str(plan.write(tmp_path / "build").folder), str(tmp_path / "machines.toml"), f"{host}:6379"
    refused = "error[E2210]: no cluster to work with: nothing answers there"
    for call in (lambda: dnnc.load(build).start(cluster=address), lambda: dnnc.measure_cluster(address)):
        with pytest.raises(InvalidInput, match=re.escape(f'cluster="{address}": {refused}')):
            call()
    measure, check = ["topology", "measure", "-o", machines], ["cluster", "check", "-t", "preset:cpu-2"]
    for command in (["run", build], ["check", build], measure, check):
        assert main([*command, "--cluster", address]) == 3
        assert f"--cluster {address}: {refused}" in capsys.readouterr().err


def test_a_version_of_ray_that_does_not_tell_when_a_node_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {
        "NodeID": "0a",
        "Alive": True,
        "NodeManagerAddress": "192.0.2.1",
        "NodeManagerHostname": "lab1",
        "NodeManagerPort": 6380,
        "Resources": {"CPU": 2.0},
    }
    client = SimpleNamespace(get_all_node_info=lambda: {b"\n": SimpleNamespace(node_id=b"\n")})
    context = SimpleNamespace(gcs_address="192.0.2.1:6379")
    compiled = SimpleNamespace(GcsClient=lambda address: client)
    ray = SimpleNamespace(get_runtime_context=lambda: context, nodes=lambda: [told], _raylet=compiled)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray._raylet", compiled)
    assert nodes_of(ray) == (Node("0a", "192.0.2.1", "lab1", {"CPU": 2.0}, 6380, 0),)


def test_a_node_that_refuses_the_greeting_is_there() -> None:
    """With TLS, Ray's processes close connections that begin without it."""
    with process_of_ray(greeting=b"") as port:
        assert reached([node(port)]) == (node(port),)


def test_of_two_nodes_at_one_port_the_younger_is_there() -> None:
    """Both are reached there, and Ray lists the one that has gone for a while."""
    with process_of_ray() as port:
        before, again = node(port, "2" * 8, 1), node(port, "1" * 8, 2)
        (found,) = reached([again, before])
    assert found == again
    other = Node("3" * 8, "192.0.2.2", "lab2", {"CPU": 2, "host:b": 1}, 6381)
    assert nodes_again({"a": before, "b": other}, [again, other]) == {"a": again, "b": other}
    assert nodes_again({"a": before, "b": other}, [before, other]) == {"a": before, "b": other}
    assert match_hosts([HostNeeds("a", 1)], [found], {}, "here")[0] == {"a": again}


def test_hosts_whose_numbers_lie_otherwise_in_memory_are_refused() -> None:
    there = {"a": versions(), "b": {**versions(), "byte order": "else"}}
    ((host, fault),) = version_faults(there, "--cluster")
    assert host == "b"
    assert f"byte order else (here {sys.byteorder})" in str(fault)


def test_python_refuses_what_the_command_refuses() -> None:
    assert stated_cluster("", {}, PORTS_TEXT) is None
    build = dnnc.Build(Path("build"))
    for call in (build.start, build.check, build.train):
        keywords: dict[str, Any]
        for keywords, place in (
            ({"hosts": {"a": "b"}}, "hosts: error[E2227]"),
            ({"ports": "7000-7001"}, "ports: error[E2227]"),
            ({"emulate": True, "cluster": "127.0.0.1:1"}, "cluster: error[E2228]"),
        ):
            with pytest.raises(UsageError, match=re.escape(place)):
                call(**keywords)
