"""``dnnc solve`` and ``dnnc verify-plan`` from the command line: what is printed, what is written, which exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dnnc.cli import main
from tests.dnnc.workloads.workload_files import PROFILE, chain, edge, node, placement, text_of


def dnnc(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main(list(map(str, arguments)))
    out, err = capsys.readouterr()
    return code, out, err


def answer(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    code, out, err = dnnc(capsys, *arguments, "--json")
    assert code == 0, err
    data = json.loads(out, parse_constant=lambda name: pytest.fail(f"JSON has no {name}"))
    assert isinstance(data, dict)
    return data


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "chain.json"
    path.write_text(text_of(chain([1.0, 2.0, 1.0, 3.0], cost=0.25, maxCPUs=1)))
    return path


def test_a_table_for_a_person(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = dnnc(capsys, "solve", file)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["device", "nodes", "load", "compute", "transfer", "memory", "of", "limit", "share"]
    assert lines[1].split() == ["acc0", "3", "4.25", "4", "0.25", "300", "B", "<", "0.1", "%", "100.0", "%"]
    assert "throughput (contiguous, sum): 4.25 ms on 2 devices, 1 of 3 unused" in out
    assert "optimal: lower bound 4.25 ms, gap 0.0 %" in out


def test_json_and_the_reference_format(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, "solve", file, "-o", tmp_path / "result.json")
    assert data["schema"] == "dnnc.solve/1"
    assert (data["objective"], data["bound"], data["gap"], data["status"]) == (4.25, 4.25, 0.0, "optimal")
    assert [(d["kind"], d["load"], d["memory"], d["nodes"]) for d in data["devices"]] == [
        ("accelerator", 4.25, 300, [0, 1, 2]),
        ("accelerator", 3.25, 100, [3]),
        ("cpu", 0.0, 0, []),
    ]
    assert json.loads((tmp_path / "result.json").read_text()) == {
        "maxLoad": 4.25,
        "fpgas": [{"load": 4.25, "nodes": [0, 1, 2]}, {"load": 3.25, "nodes": [3]}],
        "cpus": [],
        "dnnc": {
            "workload": str(file),
            "machines": {"accelerators": 2, "cpus": 1, "memory": 1000000000, "bandwidth": None},
            "unit": "ms",
            "kind": "throughput",
            "split": "contiguous",
            "comm": "sum",
            "options": {},
            "forward": False,
        },
    }


def test_verify_plan_takes_both_formats(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result, solved = tmp_path / "result.json", tmp_path / "solved.json"
    solved.write_text(json.dumps(answer(capsys, "solve", file, "-o", result)))
    for path in (result, solved):
        code, out, _ = dnnc(capsys, "verify-plan", file, path)
        assert (code, out) == (0, "ok: largest load 4.25 ms on 2 devices; all else as claimed\n")
    told = answer(capsys, "verify-plan", file, result)
    assert (told["schema"], told["ok"], told["violations"], told["objective"]) == ("dnnc.verify-plan/1", True, [], 4.25)


def test_a_wrong_plan_is_exit_5_with_every_violation(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {"maxLoad": 1.0, "fpgas": [{"load": 1.0, "nodes": [0, 2]}, {"nodes": [1]}], "cpus": []}
    (tmp_path / "wrong.json").write_text(json.dumps(wrong))
    code, out, err = dnnc(capsys, "verify-plan", file, tmp_path / "wrong.json", "--json")
    assert code == 5
    told = json.loads(out)
    assert not told["ok"]
    assert len(told["violations"]) == 4
    for words in ("1 nodes are on no device: 3", "the load of fpgas[0]", "the objective is", "not contiguous"):
        assert words in err
    assert err.count("error[E0131]:") == 4


def test_infeasible_is_exit_4_and_json_says_so(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("solve", file, "--memory", "100", "--cpus", "0", "-o", tmp_path / "result.json")
    code, out, err = dnnc(capsys, *arguments, "--json")
    assert code == 4
    assert "all 2 devices have 200: 200 bytes short" in err
    told = json.loads(out)
    assert (told["status"], told["objective"], told["devices"]) == ("infeasible", None, [])
    assert not (tmp_path / "result.json").exists()


def test_options_stand_over_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "graph.txt"
    path.write_text(PROFILE)
    options = ("--accelerators", "2", "--bandwidth", "20 GB/s", "--memory", "1 GiB", "--comm", "overlap")
    data = answer(capsys, "solve", path, "--objective", "throughput", *options)
    assert (data["format"], data["objective"], data["comm"]) == ("pipedream", 3.0, "overlap")
    assert [device["limit"] for device in data["devices"]] == [2**30, 2**30]
    assert [device["nodes"] for device in data["devices"]] == [["node2", "node3"], ["node5"]]


@pytest.mark.parametrize(
    ("extra", "code", "words"),
    [
        (("--bandwidth", "10 Gb/s"), 2, "may mean bits or bytes"),
        (("--bandwidth", "0"), 2, "expected a bandwidth above 0"),
        (("--memory", "lots"), 2, "expected an amount of memory"),
        (("--time-limit", "inf"), 2, "less than or equal to 1000000"),
        (("--time-limit", "nan"), 2, "--time-limit"),
        (("--accelerators", "-1"), 2, "greater than or equal to 0"),
        (("--accelerators", "0", "--cpus", "0"), 2, "there is no device to run on"),
        (("--objective", "speed"), 2, "speed"),
        (("--format", "pipedream"), 3, "neither a node nor an edge"),
    ],
)
def test_options_that_make_no_sense(
    file: Path, capsys: pytest.CaptureFixture[str], extra: tuple[str, ...], code: int, words: str
) -> None:
    found, out, err = dnnc(capsys, "solve", file, *extra)
    assert (found, out) == (code, "")
    assert words in err


@pytest.mark.parametrize("split", ["contiguous", "any"])
def test_memory_that_no_machine_has_is_no_limit(file: Path, capsys: pytest.CaptureFixture[str], split: str) -> None:
    data = answer(capsys, "solve", file, "--memory", "9" * 30, "--split", split)
    assert data["status"] == "optimal"
    assert {device["limit"] for device in data["devices"]} == {None}


def test_a_fault_of_the_file_is_exit_3_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text_of(placement([node(1, 1.0)], [edge(1, 2)])))
    code, _, err = dnnc(capsys, "solve", path)
    assert code == 3
    assert f"{path}:19:14: error[E1834]: edge 0 names node 2" in err
    assert '"destId": 2' in err


@pytest.mark.slow
def test_a_profile_is_solved_for_pipedream(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "graph.txt"
    path.write_text(PROFILE)
    data = answer(capsys, "solve", path, "-k", "3")
    assert (data["kind"], data["status"]) == ("pipedream", "optimal")
    solved = tmp_path / "solved.json"
    solved.write_text(json.dumps(data))
    code, out, _ = dnnc(capsys, "verify-plan", path, solved, "-k", "3")
    assert (code, out.startswith("ok: ")) == (0, True)
    _, out, _ = dnnc(capsys, "solve", path, "-k", "3")
    assert "acc0..acc" in out
    assert "pipedream (contiguous, stash)" in out
    code, _, err = dnnc(capsys, "solve", path, "-k", "3", "-o", tmp_path / "reference.json")
    assert code == 2
    assert "error[E0132]: the reference's format cannot state replicas" in err


def test_backward_nodes_make_it_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [node(v, 1.0, colorClass=v) for v in (0, 1)]
    nodes += [node(v + 10, 2.0, colorClass=v, isBackwardNode=True) for v in (0, 1)]
    path = tmp_path / "training.json"
    path.write_text(text_of(placement(nodes, [edge(0, 1, 0.25), edge(1, 11), edge(11, 10, 0.5)])))
    data = answer(capsys, "solve", path)
    assert (data["kind"], data["objective"], data["options"]) == ("training", 3.75, {"schedule": "1f1b"})
    assert [device["nodes"] for device in data["devices"]] == [[0, 10], [1, 11]]
    data = answer(capsys, "solve", path, "--schedule", "gpipe")
    assert (data["objective"], data["options"]) == (3.75, {"schedule": "gpipe"})
    assert answer(capsys, "solve", path, "--forward")["kind"] == "throughput"
    code, _, err = dnnc(capsys, "solve", path, "--schedule", "2bw")
    assert (code, "--schedule is '2bw', expected one of 1f1b, gpipe" in err) == (2, True)
    code, _, err = dnnc(capsys, "solve", path, "--objective", "pipedream", "--bandwidth", "1GB/s")
    assert (code, "--bandwidth needs bytes" in err) == (3, True)


def test_any_split_may_go_back_and_forth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, solved = tmp_path / "workload.json", tmp_path / "solved.json"
    path.write_text(text_of(chain([2.0, 4.0, 2.0], cost=0.0)))
    assert answer(capsys, "solve", path)["objective"] == 6.0
    data = answer(capsys, "solve", path, "--split", "any")
    assert (data["objective"], data["bound"], data["status"], data["split"]) == (4.0, 4.0, "optimal", "any")
    solved.write_text(json.dumps(data))
    assert dnnc(capsys, "verify-plan", path, solved)[0] == 0
    code, _, err = dnnc(capsys, "verify-plan", path, solved, "--split", "contiguous")
    assert (code, "the split is not contiguous" in err) == (5, True)
    boundaries = {"pairs": 2, "transfers": 2, "contiguous": 6.0, "contiguous_pairs": 1, "contiguous_transfers": 1}
    assert data["boundaries"] == boundaries
    text = "".join(dnnc(capsys, "solve", path, "--split", "any")[1:])
    assert "2 transfers per sample between 2 pairs of devices; contiguous: 6 with 1 transfer per sample between 1 pair" in text


def test_any_split_of_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The outer two of three layers on one device: no contiguous split is as even."""
    nodes = [node(v, t, colorClass=v) for v, t in enumerate((1.0, 2.0, 1.0))]
    nodes += [node(v + 10, t, colorClass=v, isBackwardNode=True) for v, t in enumerate((1.0, 2.0, 1.0))]
    edges = [edge(0, 1), edge(1, 2), edge(2, 12), edge(12, 11), edge(11, 10)]
    path, solved = tmp_path / "training.json", tmp_path / "solved.json"
    path.write_text(text_of(placement(nodes, edges)))
    for schedule in ("1f1b", "gpipe"):
        data = answer(capsys, "solve", path, "--split", "any", "--schedule", schedule)
        assert (data["objective"], data["status"], data["options"]) == (4.0, "optimal", {"schedule": schedule})
        assert sorted(device["nodes"] for device in data["devices"]) == [[0, 2, 10, 12], [1, 11]]
        assert data["boundaries"]["contiguous"] == 6.0
        solved.write_text(json.dumps(data))
        assert dnnc(capsys, "verify-plan", path, solved)[0] == 0
    code, _, err = dnnc(capsys, "solve", path, "--split", "any", "--objective", "pipedream")
    assert (code, "no method solves --objective pipedream with --split any" in err) == (2, True)
    code, _, err = dnnc(capsys, "solve", path, "--split", "any", "--comm", "duplex")
    assert (code, "E4903]: --comm belongs to --objective throughput; with --objective training" in err) == (2, True)


def test_import_prints_a_workload(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = dnnc(capsys, "import", file)
    assert code == 0
    assert "%n1 = dnnc.work(%n0) {id = 1, size = 100} : bytes<1000> time<@accelerator = 0.002, @cpu = 0.02>" in out


def test_passes_solve_the_same_ir(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = dnnc(capsys, "import", file, "--passes", "contract,partition")
    assert code == 0
    assert "value = 0.00425" in out
    assert out.count("stage<0>") == 3
