"""What parts of the machines give, against compiles for exactly these machines."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from dnnc.cli import main
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.machines.topology import load_topology, topology_to_toml
from dnnc.study.subsets import restricted, with_more
from dnnc.study.whatif import PlanOnPart, WhatIf, labels, what_if
from ir.core.diagnostics import DiagnosticSink, UsageError

UNEQUAL = """version = 1
[types.fast]
like = "preset:cpu-1"
memory = "8 GiB"
[types.slow]
like = "fast"
rates = { f32 = "40 GFLOP/s" }
[[devices]]
name = "f{0..1}"
type = "fast"
[[devices]]
name = "s0"
type = "slow"
[[links]]
ends = ["devices of host"]
bandwidth = "1 GB/s"
latency = "100 us"
"""
MODEL = "zoo:mlp,layers=4,hidden=1024,batch=16"


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("machines") / "unequal.toml"
    path.write_text(UNEQUAL)
    return path


def compiled(model: str, topology: Path, tmp_path: Path, **options: object) -> tuple[float, float]:
    """Value and bound of a compile for the machines of a file."""
    asked = CompileOptions(model, str(topology), tmp_path / "build", plan_only=True, **options)  # type: ignore[arg-type]
    plan = compile_model(asked).plan
    return plan.value, plan.bound


@pytest.mark.parametrize(
    "options",
    [
        {"mesh": "none"},
        pytest.param({"mesh": "none", "stages": 2}, marks=pytest.mark.slow),
        pytest.param({"objective": "training"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_rows_are_compiles_for_these_machines(machines: Path, tmp_path: Path, options: dict[str, object]) -> None:
    topology = load_topology(str(machines), DiagnosticSink())
    asked = CompileOptions(MODEL, str(machines), tmp_path, **options)  # type: ignore[arg-type]
    found = what_if(asked, [("slow", 2)], sink=DiagnosticSink())
    assert [row.devices for row in found.rows] == [("f0",), ("s0",), ("f0", "f1"), ("f0", "s0"), ("f0", "f1", "s0")]
    larger, added = with_more(topology, "slow", 2)
    assert (found.more[0].added, found.more[0].added_type) == (added, "2 more slow")
    for row in (*found.rows, *found.more):
        part = tmp_path / "part.toml"
        part.write_text(topology_to_toml(larger if row.added else restricted(topology, row.devices)))
        if not row.kind:
            assert options.get("stages") == 2
            assert len(row.devices) == 1
            continue
        value, bound = compiled(MODEL, part, tmp_path, **options)
        assert row.value <= value * (1 + 1e-9)
        assert row.bound <= row.value * (1 + 1e-9)
        assert row.bound >= min(bound, row.value) * (1 - 1e-9)
    fits = [row for row in found.rows if row.kind]
    for row in fits:
        for fewer in fits:
            assert row.value <= fewer.value or not set(fewer.devices) <= set(row.devices)
    assert found.rows[-1] == found.whole


def test_the_command_answers_in_a_sentence(machines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", MODEL, "-t", str(machines), "--mesh", "none", "--add", "fast:2", "-q"]) == 0
    *table, answer = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["devices", "plan", "value", "bound", "factor"]
    assert answer.startswith("2 more fast would help: 1.81 times as fast as now.")
    assert (
        main(["whatif", MODEL, "-t", str(machines), "--objective", "latency", "--mesh", "none", "--rows", "3", "--json", "-q"])
        == 0
    )
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "dnnc.whatif/1"
    assert data["left_out"] is True
    assert [len(row["devices"]) for row in data["rows"]] == [1, 1, 3]
    assert [row["added_type"] for row in data["more"]] == ["1 more fast", "1 more slow"]
    assert data["answer"].endswith("f0 alone is as fast as all 3.")


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["", "none"])
def test_sets_of_devices_decode(mesh: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each with the batch and the groups that are best there; where only these were planned on meshes no bound is told."""
    topology, decoder = tmp_path / "t.toml", "zoo:llama-7b,layers=1,hidden=32,heads=2,kv_heads=1,vocab=32,ffn=32,cache=inplace"
    topology.write_text(UNEQUAL.replace("f{0..1}", "f0"))
    asked = [decoder, "-t", str(topology), "--objective", "tokens", "--context", "8", "--groups", "1"]
    assert main(["whatif", *asked, *(["--mesh", mesh] if mesh else []), "--add", "fast", "--json", "-q"]) == 0
    row = json.loads(capsys.readouterr().out)["rows"][-1]
    assert row["devices"] == ["f0", "s0"]
    value, bound = compiled(decoder, topology, tmp_path, objective="tokens", context=8, groups=1, mesh=mesh)
    assert (row["value"], row["bound"]) == pytest.approx((value, bound if mesh else 0.0))


def test_a_mesh_that_is_asked_for_leaves_nobody_out(machines: Path, tmp_path: Path) -> None:
    """So fewer devices may be faster, and the row of all does not say otherwise."""
    asked = CompileOptions("zoo:mlp", str(machines), tmp_path, mesh="auto", shares="equal")
    found = what_if(asked, [], sink=DiagnosticSink())
    assert set(found.whole.used) == {"f0", "f1", "s0"}
    assert min(row.value for row in found.rows) < found.whole.value


def test_every_set_of_devices_has_a_name_of_its_own() -> None:
    topology = load_topology("preset:cpu-2,cores=2", DiagnosticSink())
    rows = [PlanOnPart(tuple(names)) for names in ("abcd", "abce", "abde", "abcde", "abcdef")]
    result = WhatIf(topology, "throughput", rows[-1], tuple(rows), (), False)
    assert [*labels(result)] == ["a .. d (4)", "a, b, c, e", "a, b, d, e", "a .. e (5)", "all"]


def test_sentences() -> None:
    def told(whole: PlanOnPart, *more: PlanOnPart) -> str:
        topology = load_topology("preset:cpu-2,cores=2", DiagnosticSink())
        return WhatIf(topology, "throughput", whole, (whole,), more, False).answer

    whole = PlanOnPart(("a", "b"), "2 stages", 1.0, 1.0, ("a", "b"))
    none = PlanOnPart(("a", "b"), why="short")
    assert (
        told(none, PlanOnPart(("a", "b", "c"), "x", 1.0, 1.0, added_type="1 more t"))
        == "1 more t would help: the model fits then."
    )
    short = PlanOnPart(("a",), bound=math.inf, added_type="1 more t")
    assert told(none, short) == "1 more t would not help: still no plan fits."
    assert told(none, replace(short, bound=0.0)) == "1 more t: undecided, no plan was found with it."
    assert told(whole, PlanOnPart((), "x", 1.0, 0.5, added_type="1 more t")) == (
        "1 more t would not help as far as was found, and 2.00 times as fast is the most that is possible."
    )
    assert told(whole, PlanOnPart((), "x", 1.0, 1.0, added_type="1 more t")).endswith("which is proven.")
    assert told(whole).startswith("No device is added")
    assert math.isinf(none.value)


def test_what_no_link_would_lead_to_is_not_added(tmp_path: Path) -> None:
    alone = tmp_path / "alone.toml"
    alone.write_text('version = 1\n[types.c]\nlike = "preset:cpu-1"\n[[devices]]\nname = "solo"\ntype = "c"\n')
    found = what_if(CompileOptions(MODEL, str(alone), tmp_path), [], sink=DiagnosticSink())
    assert [row.devices for row in found.rows] == [("solo",)]
    assert (found.more, found.answer) == ((), "1 more c cannot be added: no links would lead to it.")


def test_what_is_refused(machines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"E1133.*999 workers share 2 cores"):
        what_if(CompileOptions(MODEL, "preset:cpu-999,cores=2", tmp_path), [], sink=DiagnosticSink())
    with pytest.raises(UsageError, match=r"E1131.*the topology has no device of that type"):
        what_if(CompileOptions(MODEL, str(machines), tmp_path), [("tpu", 1)], sink=DiagnosticSink())
    with pytest.raises(UsageError, match=r"E1132.*at most 256"):
        what_if(CompileOptions(MODEL, "preset:64xh100x8", tmp_path), [], sink=DiagnosticSink())
    for text in ("fast:0", "fast:65", ":2", "fast:x"):
        assert main(["whatif", MODEL, "-t", str(machines), "--add", text]) == 2
    assert main(["whatif", "zoo:nothing", "-t", str(machines)]) == 3
    capsys.readouterr()
