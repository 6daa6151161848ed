"""What every plan holds, summed over all devices: no search finds a plan within less, and it is asked before any search."""

from __future__ import annotations

from typing import Any

import pytest

from dnnc.onnx import DIALECTS
from ir.core.diagnostics import Infeasible, UsageError
from ir.core.module import Module, Plan
from passes.costs.memory.liveness import own_bytes
from passes.framework.base import PassContext
from passes.partition import partition_pass
from passes.partition.bridge import lattice_search
from passes.partition.bridge.total_memory import least_held
from passes.reference.reference_pass import ReferencePass
from tests.passes.partition.bridge.test_steps import chain, planned

WIDTHS = ([64, 64, 64, 64], [16, 256, 16, 8], [256, 8, 256])
FORMS: tuple[dict[str, Any], ...] = (
    {"mesh": "none"},
    {"mesh": "none", "microbatches": 1},
    {"mesh": "none", "stages": 2, "replicas": 1, "family": "gpipe"},
    {"mesh": "any"},
    {"mesh": "any", "microbatches": 1},
    {"mesh": "2", "stages": 1},
    {"mesh": "2", "stages": 1, "microbatches": 4},
    {"mesh": "auto", "stages": 0},
    {"objective": "throughput", "mesh": "none"},
    {"objective": "throughput", "mesh": "any"},
    {"objective": "throughput", "mesh": "2", "stages": 1},
)


def bytes_held(widths: list[int], form: dict[str, Any]) -> int:
    module = chain(widths, 2)
    if "objective" in form:
        return least_held(module, 0) + max(own_bytes(module.entry))
    return least_held(module, form.get("microbatches", 1 if form.get("stages") == 1 else 8))


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_no_search_finds_a_plan_within_less(widths: list[int], form: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the sum before them, the searches themselves say that nothing fits."""
    monkeypatch.setattr(lattice_search, "check_total_memory", lambda *_: None)
    memory = (bytes_held(widths, form) - 1) // 2
    with pytest.raises(Infeasible):
        planned(chain(widths, 2, memory), time_limit=1.0, **form)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_sum_comes_before_a_search(form: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def searched(*_: object) -> None:
        raise AssertionError("a search began")

    for name in ("searched", "on_meshes"):
        monkeypatch.setattr(partition_pass.PartitionPass, name, searched)
    with pytest.raises(Infeasible, match=r"alone are .* bytes short") as caught:
        planned(chain(WIDTHS[0], 2, bytes_held(WIDTHS[0], form) // 4), **form)
    assert [one.code for one in caught.value.diagnostics] == ["E3204"]
    assert caught.value.proven


REFERENCE: tuple[dict[str, Any], ...] = (
    {"objective": "latency"},
    {"objective": "latency", "pieces": 2},
    {"objective": "throughput", "split": "any"},
    {"objective": "training", "split": "any"},
)


@pytest.mark.parametrize("form", REFERENCE, ids=str)
def test_the_sum_comes_before_a_search_of_the_literature(form: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As without it, where the search itself says that nothing fits."""
    held = bytes_held(WIDTHS[0], {} if form["objective"] == "training" else {"objective": "throughput"})
    given = chain(WIDTHS[0], 2, held // 4)

    def told() -> list[str]:
        with pytest.raises(Infeasible) as caught:
            ReferencePass(**form).run(given, PassContext(dialects=DIALECTS))
        return [one.code for one in caught.value.diagnostics]

    with monkeypatch.context() as patched:
        patched.setattr(lattice_search, "check_total_memory", lambda *_: None)
        assert told()
    monkeypatch.setattr(ReferencePass, "searched", lambda *_: pytest.fail("a search began"))
    assert told() == ["E3204"]


def test_what_one_op_works_on_counts_in_inference() -> None:
    module = chain([256, 8, 256], 2)
    lacking = least_held(module, 0) + max(own_bytes(module.entry)) - 1000
    assert least_held(module, 0) < lacking
    with pytest.raises(Infeasible, match=r"the weights and the workspace of %h0 alone are"):
        planned(chain([256, 8, 256], 2, lacking // 2), objective="throughput")


def test_a_memory_without_limit_is_enough() -> None:
    assert isinstance(planned(chain(WIDTHS[0], 2), mesh="none"), Plan)


def test_gradients_of_one_microbatch_take_the_place_of_saved_values() -> None:
    module: Module = chain([64, 64], 2)
    weight = 4 * 64 * 64
    saved = least_held(module, 8) - 5 * weight + weight
    assert saved > 0
    assert least_held(module, 0) == weight
    assert least_held(module, 1) == 3 * weight + max(weight, saved)


def test_options_that_exclude_each_other_need_no_module() -> None:
    with pytest.raises(UsageError, match="--comm overlap: not an option of objective=training"):
        partition_pass.PartitionPass(objective="training", comm="overlap").check_options()
