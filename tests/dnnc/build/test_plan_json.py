"""plan.json: what it states, that it reads back, that an edited one replays, and that a faulty one is located."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from dnnc.build.plan_json import plan_to_json
from dnnc.build.plan_reader import read_plan, replay_from_json
from ir.core.diagnostics import InvalidInput
from ir.core.facets import StageSet
from ir.core.module import Module, Plan
from passes.framework.base import PassContext
from passes.partition.place import PlacePass
from tests.dnnc.engines.onnxruntime.building import lowered, model
from tests.passes.staging import devices


def written() -> dict[str, Any]:
    return json.loads(json.dumps(plan_to_json(lowered(model(), (0, 0, 1, 1, 2, 2)))))


def replayed(data: dict[str, Any]) -> Module:
    module, context = model().extend([devices(3)]), PassContext()
    return PlacePass().run(replay_from_json(data).run(module, context), context)


def stages(module: Module) -> list[tuple[int, ...]]:
    return [op.facet(StageSet, StageSet(())).stages for op in module.entry.ops]


def test_ops_cuts_and_numbers() -> None:
    data = written()
    assert [(s["index"], s["device"], s["ops"]) for s in data["stages"]] == [
        (0, "d0", ["a", "b"]),
        (1, "d1", ["c", "d"]),
        (2, "d2", ["e", "y"]),
    ]
    # 512 bytes over two links of 1 KiB/s
    assert data["cuts"] == [
        {"tensor": "b", "from": 0, "to": 1, "bytes": 512, "seconds": 0.5},
        {"tensor": "b", "from": 0, "to": 2, "bytes": 512, "seconds": 0.5},
        {"tensor": "d", "from": 1, "to": 2, "bytes": 512, "seconds": 0.5},
    ]
    assert data["stages"][0]["seconds"]["send"] == 1.0
    assert data["value"] >= data["bound"]


def test_infinite_seconds_are_null() -> None:
    module = lowered(model(), (0, 0, 1, 1, 2, 2), devices(3, memory=9000))
    plan = module.first(Plan)
    assert plan is not None
    assert plan.single == math.inf
    data = plan_to_json(module)
    assert data["single"] is None


def test_replaying_gives_the_same_plan() -> None:
    module = lowered(model(), (0, 0, 1, 1, 2, 2))
    again = replayed(written())
    assert again.first(Plan) == module.first(Plan)
    assert stages(again) == stages(module)


def test_moving_an_op_and_a_device() -> None:
    data = written()
    data["stages"][1]["ops"].remove("d")
    data["stages"][2]["ops"].insert(0, "d")
    data["stages"][0]["device"], data["stages"][1]["device"] = "d1", "d0"
    module = replayed(data)
    plan = module.first(Plan)
    assert plan is not None
    assert stages(module) == [(0,), (0,), (1,), (2,), (2,), (2,)]
    assert [stage.devices for stage in plan.stages] == [("d1",), ("d0",), ("d2",)]


def test_removing_a_stage_and_a_device() -> None:
    data = written()
    data["stages"][1]["ops"] += data["stages"].pop()["ops"]
    del data["stages"][1]["device"]
    plan = replayed(data).first(Plan)
    assert plan is not None
    assert [stage.ops for stage in plan.stages] == [2, 4]
    assert plan.stages[1].devices != ("d0",)


@pytest.mark.parametrize(
    ("change", "where", "message"),
    [
        (lambda d: d.update(schema="dnnc.plan/9"), "plan.json", "schema 'dnnc.plan/9' found, 'dnnc.plan/2' expected"),
        (lambda d: d.pop("stages"), "plan.json", "expected the list 'stages', found nothing"),
        (lambda d: d["stages"].clear(), "plan.json: stages", "there is no stage"),
        (lambda d: d["stages"][1].update(index=0), "plan.json: stages[1]", "index 0 is used twice"),
        (lambda d: d["stages"][1].update(index=7), "plan.json: stages", "stages are numbered [0, 2, 7], expected 0 to 2"),
        (
            lambda d: d["stages"][1].update(index="1"),
            "plan.json: stages[1]",
            "expected 'index' as a whole number from 0, found '1'",
        ),
        (lambda d: d["stages"][1].update(ops=[]), "plan.json: stages[1].ops", "the stage has no op"),
        (lambda d: d["stages"][1].update(ops="c"), "plan.json: stages[1]", "expected the list 'ops', found str"),
        (lambda d: d["stages"][1]["ops"].append(3), "plan.json: stages[1].ops[2]", "expected the name of an op, found 3"),
        (
            lambda d: d["stages"][2].update(device=5),
            "plan.json: stages[2]",
            "expected 'device' as a name or a list of names, found 5",
        ),
        (lambda d: d["stages"][1].update(devices=["d0"]), "plan.json: stages[1]", "a stage has no entry 'devices'"),
        (lambda d: d["stages"][1].update(zzz=1), "plan.json: stages[1]", "a stage has no entry 'zzz'"),
        (lambda d: d.update(objektive="latency"), "plan.json", "a plan has no entry 'objektive'"),
        (lambda d: d.update(microbatch=2), "plan.json", "a plan has no entry 'microbatch'"),
        (lambda d: d["stages"].__setitem__(0, "x"), "plan.json: stages[0]", "expected an object, found str"),
        (lambda d: d.update(comm=1), "plan.json", "expected 'comm' as text, found 1"),
    ],
)
def test_faulty_entries_are_located(change: Any, where: str, message: str) -> None:
    data = written()
    change(data)
    with pytest.raises(InvalidInput) as raised:
        replay_from_json(data)
    assert [(d.where, d.message) for d in raised.value.diagnostics] == [(where, message)]
    assert all(d.code.startswith("E03") and d.hint for d in raised.value.diagnostics)


@pytest.mark.parametrize("status", ["feasible", "uncertain"])
def test_a_plan_json_of_an_earlier_version_replays(status: str) -> None:
    data = written()
    assert data["status"] == "within-gap"
    assert replayed(data | {"status": status}) == replayed(data)


def test_files_that_are_no_plan(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"schema": "dnnc.plan/1",\n "stages": [,]}')
    with pytest.raises(InvalidInput, match=r"broken\.json:2:13.*not valid JSON"):
        read_plan(tmp_path / "broken.json")
    with pytest.raises(InvalidInput, match="no such file"):
        read_plan(tmp_path / "absent.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="not UTF-8"):
        read_plan(tmp_path / "binary.json")
    (tmp_path / "deep.json").write_text("[" * 200_000)
    with pytest.raises(InvalidInput, match="nest more than 100 deep"):
        read_plan(tmp_path / "deep.json")
    (tmp_path / "digits.json").write_text("9" * 5000)
    with pytest.raises(InvalidInput, match="thousands of digits"):
        read_plan(tmp_path / "digits.json")
    with pytest.raises(InvalidInput):
        read_plan(tmp_path)
