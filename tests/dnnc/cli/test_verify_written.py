"""What ``dnnc solve -o`` writes is verified as what it is, for every objective, and a tampered load is found; a file that does
not say what it is of needs the options that say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dnnc.cli import main
from tests.dnnc.workloads.workload_files import PROFILE, chain, edge, node, placement, text_of

INFERENCE = text_of(chain([4.0, 3.0, 5.0, 4.0], cost=0.5, maxFPGAs=4))
TRAINING = text_of(
    placement(
        [node(i, [2.0, 3.0, 1.0, 4.0][i], colorClass=i) for i in range(4)]
        + [node(4 + i, [5.0, 1.0, 6.0, 1.0][i], colorClass=3 - i, isBackwardNode=True) for i in range(4)],
        [edge(i, i + 1, 0.25) for i in range(7)],
        maxFPGAs=3,
    )
)
GROUPS = ("--hierarchy", "2x2", "--inner-bandwidth", "1000000")
SLOW = ("--bandwidth", "250000")
FAST = ("--bandwidth", "1000000")

CASES: list[tuple[str, str, tuple[str, ...], tuple[str, ...]]] = [  # name, workload, what is minimised, machines
    ("throughput", INFERENCE, ("--comm", "sum"), ()),
    ("throughput overlap", INFERENCE, ("--comm", "overlap"), ()),
    ("throughput duplex", INFERENCE, ("--comm", "duplex"), ()),
    ("throughput any", INFERENCE, ("--split", "any"), ("-k", "2")),
    ("throughput groups", INFERENCE, GROUPS, (*SLOW, "-k", "4")),
    ("throughput of a profile", PROFILE, ("--objective", "throughput"), ("-k", "2")),
    ("throughput without backward nodes", TRAINING, ("--forward",), ()),
    ("training", TRAINING, (), ()),
    ("training 1f1b", TRAINING, ("--schedule", "1f1b"), ()),
    ("training gpipe", TRAINING, ("--schedule", "gpipe"), ()),
    ("training any", TRAINING, ("--split", "any"), ()),
    ("training any gpipe", TRAINING, ("--split", "any", "--schedule", "gpipe"), ()),
    ("pipedream", PROFILE, ("--straight",), ("-k", "3", *FAST)),
    ("pipedream groups", PROFILE, ("--straight", *GROUPS), (*SLOW, "-k", "4")),
    *(
        (f"pipedream {name}", PROFILE, ("--straight", "--schedule", name, "--microbatches", "4"), ("-k", "3", *FAST))
        for name in ("stash", "2bw", "flush", "gpipe")
    ),
    ("latency", INFERENCE, ("--objective", "latency"), ("-k", "2")),
    ("latency pieces", INFERENCE, ("--objective", "latency", "--pieces", "2"), ("-k", "2")),
]


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    code = main(list(map(str, arguments)))
    return code, capsys.readouterr().err


@pytest.mark.parametrize(("name", "text", "defines", "machines"), CASES, ids=[case[0] for case in CASES])
def test_what_is_written_is_verified(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    text: str,
    defines: tuple[str, ...],
    machines: tuple[str, ...],
) -> None:
    workload, written = tmp_path / "workload", tmp_path / "split.json"
    workload.write_text(text)
    assert run(capsys, "solve", workload, *defines, *machines, "-q", "-o", written) == (0, "")
    assert run(capsys, "verify-plan", workload, written, *machines) == (0, "")

    split: dict[str, Any] = json.loads(written.read_text())
    assert split["dnnc"]["unit"] == "ms"
    value = "totalLatency" if "latency" in name else "maxLoad"
    assert list(split) == [value, "fpgas", "cpus", "dnnc"], "the reference's keys stay first and as they were"
    wrong = json.loads(written.read_text())
    if value == "maxLoad":
        wrong["fpgas"][0]["load"] *= 1.01
    else:
        wrong[value] *= 1.01
    written.write_text(json.dumps(wrong))
    code, err = run(capsys, "verify-plan", workload, written, *machines)
    assert code == 5
    assert "as claimed" in err
    assert "does not say" not in err

    del split["dnnc"]
    written.write_text(json.dumps(split))
    kind = () if "--objective" in defines or "pipedream" not in name else ("--objective", "pipedream")
    assert run(capsys, "verify-plan", workload, written, *kind, *defines, *machines) == (0, "")


@pytest.mark.parametrize(
    ("text", "defines", "machines", "word"),
    [
        (TRAINING, ("--schedule", "gpipe"), (), "--schedule"),
        (PROFILE, ("--straight",), ("-k", "3", *FAST), "--objective"),
        (INFERENCE, ("--comm", "overlap"), (), "--comm"),
        (INFERENCE, GROUPS, (*SLOW, "-k", "4"), "--hierarchy"),
    ],
)
def test_a_file_that_does_not_say_is_told_what_may_be_missing(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    defines: tuple[str, ...],
    machines: tuple[str, ...],
    word: str,
) -> None:
    workload, written = tmp_path / "workload", tmp_path / "split.json"
    workload.write_text(text)
    assert run(capsys, "solve", workload, *defines, *machines, "-o", written) == (0, "")
    split = json.loads(written.read_text())
    written.write_text(json.dumps({key: split[key] for key in ("maxLoad", "fpgas", "cpus")}))
    code, err = run(capsys, "verify-plan", workload, written, *machines)
    assert code == 5
    assert "the result does not state its objective" in err
    assert word in err.split("hint:")[1]


def test_the_written_split_is_an_expert_s(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload, written = tmp_path / "workload", tmp_path / "split.json"
    workload.write_text(INFERENCE)
    assert run(capsys, "solve", workload, "-o", written) == (0, "")
    assert run(capsys, "solve", workload, "--method", "expert", "--expert", written, "-o", tmp_path / "again.json") == (0, "")
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(written.read_text())


@pytest.mark.parametrize(
    ("change", "options", "code", "words"),
    [
        ({}, ("--straight",), 2, "add --objective pipedream"),
        ({}, ("--schedule", "gpipe"), 2, "add --objective training or --objective pipedream"),
        ({}, ("--objective", "training", "--schedule", "stash"), 3, "expected 1f1b or gpipe"),
        ({}, ("--inner-bandwidth", "10GB/s"), 2, "add --hierarchy"),
        ({"dnnc": 7}, (), 3, "JSON objects"),
        ({"dnnc": {"kind": "speed"}}, (), 3, "expected one of throughput, training, pipedream, latency"),
        ({"dnnc": {"kind": "latency", "options": {"pieces": True}}}, (), 3, "options.pieces"),
        ({"dnnc": {"options": [1]}}, (), 3, "JSON objects"),
        ({"dnnc": {"unit": "s"}}, (), 3, "expected ms"),
        ({"dnnc": {"kind": ["training"]}}, (), 3, "expected one of"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, Any],
    options: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    workload, written = tmp_path / "workload", tmp_path / "split.json"
    workload.write_text(INFERENCE)
    written.write_text(json.dumps({"maxLoad": 16.0, "fpgas": [{"load": 16.0, "nodes": [0, 1, 2, 3]}], "cpus": []} | change))
    found, err = run(capsys, "verify-plan", workload, written, *options)
    assert (found, words in err) == (code, True), err
