"""What the certificate of a decoder's plan says would make more tokens, or sooner ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dnnc.compile.decoding.choice import Choice
from dnnc.compile.decoding.told import with_tokens
from dnnc.compile.driver import plan_model
from ir.core.diagnostics import DiagnosticSink, Infeasible
from ir.text.units import percent_text
from tests.dnnc.compile.test_tokens import machines, options, planned

MORE_GROUPS = "stages wait for tokens: --groups 2 would make"


def test_more_groups_are_advised_where_their_caches_fit(tmp_path: Path) -> None:
    """Two stages, one group in flight: of 216,624 bytes on the fuller device, 32,768 are caches."""
    asked = {"objective": "throughput", "stages": 2, "mesh": "none", "batch": 4}
    for memory, fits in ((250, True), (215, False)):
        core = machines(tmp_path / "t.toml", ("core", 1, 2, memory))
        told = dict(planned(core, groups=1, **asked).certificate)["tokens"]
        assert (MORE_GROUPS in told) == fits
        if fits:
            planned(core, groups=2, **asked)
        else:
            with pytest.raises(Infeasible):
                planned(core, groups=2, **asked)
    free = planned(machines(tmp_path / "t.toml", ("core", 1, 2, 215)), batch=4)
    assert "1 group of 4" in dict(free.certificate)["tokens"]
    assert "stages wait" not in dict(free.certificate)["tokens"], "the search tried more groups"


def test_groups_that_were_searched_are_not_advised(tmp_path: Path) -> None:
    core = machines(tmp_path / "t.toml", ("core", 1, 2, 4000))
    found = plan_model(options(core, objective="throughput", stages=2, mesh="none", batch=4, groups=1), sink=DiagnosticSink())
    for most, advised in ((1, True), (2, False)):
        choice = Choice(4, 1, 1.0, most, "")
        plan = with_tokens(replace(found.plan, certificate=()), found.module, found.options, found.prompt, choice)
        assert (MORE_GROUPS in dict(plan.certificate)["tokens"]) == advised


def test_one_user_is_told_what_makes_the_next_token_sooner(tmp_path: Path) -> None:
    """More sequences or larger groups would not."""
    for memory, stages in ((4000, 1), (165, 2)):
        plan = planned(machines(tmp_path / "t.toml", ("core", 1, 2, memory)), objective="token-latency", mesh="none")
        told = dict(plan.certificate)["tokens"]
        assert len(plan.stages) == stages
        assert "of a step: weights of fewer bits or devices with faster memory would shorten it" in told
        assert ("memory is full on core0, core1: more memory there" in told) == (stages > 1)
        assert not [words for words in ("larger groups", "more sequences", "stages wait") if words in told]


def test_a_weight_of_two_stages_is_read_as_each_of_them_keeps_it(tmp_path: Path) -> None:
    """The embedding is the head, too: it is cut in the stage on a mesh and whole on the device of the slower stage."""
    three = machines(tmp_path / "t.toml", ("fast", 6, 1, 250), ("slow", 3, 2, 160))
    model = "zoo:gpt2,cache=concat,layers=2,hidden=32,heads=4,vocab=800"
    plan = planned(three, model=model, stages=2, mesh="auto", batch=2, groups=2)
    first, second = plan.stages
    assert (first.devices, second.devices) == (("slow0", "slow1"), ("fast0",))
    read = (second.weights - 32 * 1024) / 600e6  # without caches, at the bandwidth of memory
    told = dict(plan.certificate)["tokens"]
    assert "32 KiB on fast0" in told
    assert f"reading weights takes {percent_text(read / second.compute)} of a step" in told


@pytest.mark.parametrize("objective", ["tokens", "throughput"])
def test_what_lacks_memory_is_weights_and_caches(objective: str, tmp_path: Path) -> None:
    core = machines(tmp_path / "t.toml", ("core", 1, 2, 200))
    with pytest.raises(Infeasible, match=r"the weights and caches alone are [0-9]* bytes, all 2 devices have 409600") as error:
        planned(core, objective=objective, batch=64, groups=4)
    assert "fewer --groups, a smaller --batch" in str(error.value)
