"""``dnnc generate``: answers of a language model as text or ids, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import dnnc
from dnnc.build.build import Build
from dnnc.cli import main
from dnnc.cli.commands.generate import _told
from dnnc.cli.streams import _stream
from dnnc.engines.onnxruntime.decoding.answers import Answer, Request
from ir.core.diagnostics import visible
from ir.text.units import bytes_text, count_text, seconds_text
from tests.dnnc.engines.onnxruntime.processes import descendants, gone

WORDS = 256
LLAMA = "zoo:llama-7b,layers=2,hidden=64,heads=4,kv_heads=2,ffn=128,vocab=256,cache=inplace,context=32,batch=2"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = str(tmp_path_factory.mktemp("generate") / "build")
    options = ["--context", "32", "--batch", "2", "--groups", "2", "--stages", "2", "-q"]
    assert main(["compile", LLAMA, "-t", "preset:cpu-2", "-o", out, *options]) == 0
    return out


def tokenizer(folder: Path, words: int = WORDS) -> str:
    made = Tokenizer(models.WordLevel({f"w{number}": number for number in range(words)}, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    return str(folder / "tokenizer.json")


@pytest.fixture(scope="module")
def session(build: str) -> Iterator[dnnc.Session]:
    with dnnc.load(build).start() as started:
        yield started


def expected(session: dnnc.Session, *ids: int, **options: float) -> list[int]:
    return list(session.generate(ids, max_tokens=6, **options))


def test_ids(build: str, session: dnnc.Session, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", build, "--ids", "1,2,3", "--max-tokens", "6"]) == 0
    assert capsys.readouterr().out == ",".join(map(str, expected(session, 1, 2, 3))) + "\n"


def test_a_text_is_gone_on_with(build: str, session: dnnc.Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--tokenizer", tokenizer(tmp_path)]
    assert main(["generate", build, "--prompt", "w1 w2 w3", "--max-tokens", "6", *words]) == 0
    assert capsys.readouterr().out == " ".join(f"w{token}" for token in expected(session, 1, 2, 3)) + "\n"


def test_several_prompts_as_json(build: str, session: dnnc.Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = ["--temperature", "1.5", "--top-k", "20", "--top-p", "0.9", "--seed", "5", "--max-tokens", "6"]
    more = ["--prompt", "w9", "--ids", "1,2,3", "--ids", "7", "--tokenizer", tokenizer(tmp_path), "--json"]
    assert main(["generate", build, *drawn, *more]) == 0
    answers = json.loads(capsys.readouterr().out)["answers"]
    assert [answer["prompt"] for answer in answers] == [[9], [1, 2, 3], [7]]
    for number, answer in enumerate(answers):
        ids = expected(session, *answer["prompt"], temperature=1.5, top_k=20, top_p=0.9, seed=5 + number)
        assert answer["ids"] == ids
        assert answer["text"] == " ".join(f"w{token}" for token in ids)
        assert answer["reason"] == "length"


def test_a_token_that_ends_the_answer(build: str, session: dnnc.Session, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = expected(session, 1, 2, 3)
    assert main(["generate", build, "--ids", "1,2,3", "--stop", str(tokens[3]), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["answers"][0]
    assert (answer["ids"], answer["reason"]) == (tokens[: tokens.index(tokens[3])], "stop")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "there is no prompt"),
        (["--prompt", "a"], 2, "a text needs a tokenizer"),
        (["--ids", "1,x"], 2, "found '1,x', expected token ids"),
        (["--ids", "1,256"], 3, "token 256 is none of the model's, which are 0 to 255"),
        (["--ids", ",".join(["1"] * 32)], 3, "the prompt has 32 tokens"),
        (["--ids", "1", "--ids", "1,256"], 3, "--ids number 2: error[E1905]: token 256"),
        (["--ids", "1", "--stop", "2,256"], 3, "--stop: error[E1905]: token 256 is none of the model's, which are 0 to 255"),
        (["--ids", "1", "--top-p", "0"], 2, "0 is not above 0"),
        (["--ids", "1", "--tokenizer", "{folder}/none.json"], 3, "none.json"),
        (["--ids", "1", "--tokenizer", "{folder}/bad.json"], 3, "it is no tokenizer"),
        (["--ids", "1", "--tokenizer", "{folder}/tokenizer.json"], 3, "the tokenizer has token 299; the model knows 256"),
    ],
)
def test_what_is_refused(
    arguments: list[str], code: int, words: str, build: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer(tmp_path, 300)
    (tmp_path / "bad.json").write_text("{}")
    assert main(["generate", build, *(part.format(folder=tmp_path) for part in arguments)]) == code
    assert words in capsys.readouterr().err


@pytest.fixture(scope="module")
def long_build(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of answers that take seconds."""
    out = str(tmp_path_factory.mktemp("generate") / "long")
    model = LLAMA.replace("context=32,batch=2", "context=4096,batch=1")
    assert main(["compile", model, "-t", "preset:cpu-2", "-o", out, "--context", "4096", "--stages", "2", "-q"]) == 0
    return out


@contextmanager
def generating(build: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command, in a process group of its own, once it has printed something of its answer."""
    command = [sys.executable, "-m", "dnnc", "generate", build, "--ids", "1,2,3", *arguments]
    segments = set(os.listdir("/dev/shm"))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0}  # what a buffer took, communicate would lack
    with subprocess.Popen(command, **pipes, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        stages = descendants(process.pid)
        assert len(stages) == 2
        yield process
    assert gone(stages)
    assert set(os.listdir("/dev/shm")) <= segments


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_an_interrupted_answer_leaves_nothing(long_build: str, how: signal.Signals, code: int) -> None:
    """A terminal interrupts the whole group; who ends the command otherwise ends it alone."""
    with generating(long_build) as process:
        if how == signal.SIGINT:
            os.killpg(process.pid, how)
        else:
            process.send_signal(how)
        _, said = process.communicate(timeout=60)
        assert process.returncode == code
        assert b"Traceback" not in said


@pytest.mark.slow
def test_an_answer_that_nobody_reads_ends(long_build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of ``| head``, which ends when it has read enough: before the answer of thousands of tokens does."""
    reader, writer = os.pipe()
    os.close(reader)
    with dnnc.load(long_build).start() as session, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", _stream(sys.__stdout__, writer))
        told = _told(session.generate([1, 2, 3]), None, stream=True)
    os.close(writer)
    assert told["reason"] == "closed"


def test_text_that_comes_is_that_of_all_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    """Characters of several tokens are printed once they are whole, and nothing is decoded again from the beginning."""
    words = Tokenizer(models.BPE({char: number for number, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    text = "Ünïcödé \u65e5\u672c\u8a9e, 1 2  3\n\U0001f600!" * 3
    for ids in (words.encode(text).ids, words.encode(text).ids[:-3], [0x80, *words.encode(text).ids]):
        told = _told(iter_answer(ids), words, stream=True)
        assert capsys.readouterr().out == visible(words.decode(ids), lines=True) + "\n"
        assert told["text"] == words.decode(ids)


def iter_answer(ids: list[int]) -> Answer:
    """An answer of these tokens that has ended."""
    answer = Answer(Request((0,)), lambda _: None)
    answer.drawn += ids
    answer.end("stop")
    return answer


@pytest.mark.slow
def test_a_stage_that_is_killed_changes_no_answer(long_build: str) -> None:
    options = ["--max-tokens", "1500"]  # greedy: caches that are computed again in chunks are rounded otherwise
    with generating(long_build, *options) as process:
        whole, said = process.communicate(timeout=120)
        assert (process.returncode, said) == (0, b"")
    with generating(long_build, *options) as process:
        os.kill(descendants(process.pid)[1], signal.SIGKILL)
        found, said = process.communicate(timeout=120)
        assert (process.returncode, found) == (0, whole)
        assert b"W0639" in said


@pytest.mark.parametrize(("groups", "waits"), [(1, True), (2, False)])
def test_what_a_plan_says_of_tokens(groups: int, waits: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Groups keep both stages busy where there are as many as a step takes times as long as its slowest stage."""
    options = ["--context", "32", "--batch", "2", "--groups", str(groups), "--stages", "2", "--json"]
    assert main(["compile", LLAMA, "-t", "preset:cpu-2", "-o", str(tmp_path / "build"), *options]) == 0
    told = json.loads(capsys.readouterr().out)["certificate"]["tokens"].split("; ")
    built = Build.open(tmp_path / "build")
    latency, slowest = built.schedule.latency, built.plan.value
    every = max(slowest, latency / groups)
    assert told[0].startswith(f"{count_text(2 / every)} tokens a second: {groups} group")
    assert told[0].endswith(f"{seconds_text(groups * every)} from a token to the next of its sequence, while caches are full")
    each = bytes_text(groups * 2 * 2 * 2 * 32 * 16 * 4)  # keys and values, of one layer of each stage
    assert told[1] == f"caches: {each} on cpu0, {each} on cpu1"
    assert waits == any("--groups 2 would make" in text for text in told)


def test_inspect_tells_states_and_run_that_it_does_not_generate(build: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", build]) == 0
    each = bytes_text(2 * 2 * 2 * 2 * 32 * 16 * 4)  # layers, keys and values, sequences, heads, positions, width, bytes
    told = f"4, {each} for each of 2 groups of 2 sequences, context 32, prompts by 31 tokens"
    assert told in capsys.readouterr().out
    assert main(["inspect", build, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["decoding"]["context"] == 32
    assert main(["run", build]) == 0
    assert "'dnnc generate' answers prompts" in capsys.readouterr().err


def test_a_replayed_plan_is_one_to_generate_with(build: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "b")
    assert main(["compile", LLAMA, "-t", "preset:cpu-2", "-o", out, "--plan", f"{build}/plan.json", "--no-load-test"]) == 0
    assert f"next: dnnc generate {out} --ids 1,2,3, dnnc check" in capsys.readouterr().out


def test_devices_that_no_mesh_makes_faster_are_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--context", "32", "--batch", "2", "--objective", "token-latency", "--plan-only", "-o", str(tmp_path / "b")]
    for mesh, why in ((), "no plan with it is faster"), (("--mesh", "none"), "meshes were not searched"):
        assert main(["compile", LLAMA.replace("layers=2", "layers=1"), "-t", "preset:cpu-2", *options, *mesh]) == 0
        told = capsys.readouterr().out
        assert [line for line in told.splitlines() if "not used: cpu1" in line and why in line], told
        assert ("stages on meshes: none below" in told) == (not mesh)


@pytest.mark.slow
def test_states_of_an_encoder_are_asked_for_and_their_faults_are_at_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = "zoo:t5-base,layers=1,hidden=16,heads=2,ffn=16,vocab=16,seq=4,cache=inplace", str(tmp_path / "b")
    assert main(["compile", model, "-t", "preset:cpu-1", "--context", "8", "-o", out]) == 0
    assert f"next: dnnc generate {out} --ids 1,2,3 --states FILE.npz, dnnc check" in capsys.readouterr().out
    assert main(["generate", out, "--ids", "1"]) != 0
    assert capsys.readouterr().err.startswith("--states: error[E1908]")
    name, path = "past_key_values.0.encoder.key", tmp_path / "states.npz"
    np.savez(path, **{name: np.ones((1, 3), np.float32)})
    assert main(["generate", out, "--ids", "1", "--states", str(path)]) != 0
    assert capsys.readouterr().err.startswith(f"{path}: {name}: error[E1910]")
