"""Options of the pass ``partition`` that are out of range, or that the searches of a ``mesh`` do not read, are refused."""

from __future__ import annotations

import pytest

from ir.core.diagnostics import InvalidInput, UsageError
from passes.framework.base import PassContext
from passes.framework.pipeline import parse_pipeline
from tests.passes.staging import chain, devices


@pytest.mark.parametrize(
    ("mesh", "options"),
    [
        ("none", "strategy=data,device-memory=300000,shares=equal,gap=0.1"),
        ("any", "strategy=data,device-memory=300000"),
        ("auto", "hosts=false"),
        ("2", "hosts=false"),
    ],
)
def test_an_option_that_no_search_reads_is_refused(mesh: str, options: str) -> None:
    (step,) = parse_pipeline(f"partition{{mesh={mesh},{options}}}")
    names = ", ".join(option.split("=")[0] for option in options.split(","))
    with pytest.raises(UsageError, match=f"{names}: not an option of mesh={mesh}") as caught:
        step.run(chain([8, 8], 1).extend([devices(2)]), PassContext())
    assert caught.value.diagnostics[0].code == "E3212"


@pytest.mark.parametrize("option", ["stages", "replicas"])
def test_a_number_out_of_range_is_told_of_the_pass(option: str) -> None:
    """``opt`` has no flag of that name."""
    (step,) = parse_pipeline(f"partition{{mesh=none,{option}=-1}}")
    with pytest.raises(InvalidInput, match=rf"^partition: error\[E3104\]: {option} is -1, expected"):
        step.run(chain([8, 8], 1).extend([devices(2)]), PassContext())
