"""A training step of so many samples (``--samples``): how many microbatches they make.

S samples are S/b microbatches of b samples for any b that divides S. More microbatches fill a pipeline better, and replicas
take them in turn; fewer are larger, which devices compute faster and meshes can divide. So each of some numbers is planned. The
best plan so far is the incumbent of the next search, which ends where its bound says that it has none better.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from dnnc.compile.faults import NoSamples, NotOfProfile, NotWithPlan, NotWithTag, OnlyOfTraining, SamplesMisfit
from dnnc.compile.flags import TAG, CompileOptions
from dnnc.compile.given import GivenInputs
from dnnc.compile.load import is_profiled, load_model
from dnnc.compile.notes import noted
from dnnc.compile.options import asks_training
from dnnc.onnx.model import free_symbols
from dnnc.zoo.catalogue import require_options
from ir.core.diagnostics import DiagnosticSink, Infeasible, InvalidInput, UsageError
from ir.core.module import Plan
from ir.core.types import TensorType
from ir.text.units import seconds_text
from passes.framework.base import NoBetterPlan

T = TypeVar("T")
ZOO = "zoo:"
MOST = 64
"""Microbatches that are tried at most, unless they are asked for."""
_FLAG = ("--samples",)
NOTE = "samples"
"""The key of a certificate that says how the microbatches were chosen."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What a number of ``microbatches`` came to: the ``value`` of a plan, else no plan is below ``bound``."""

    microbatches: int
    value: float = math.inf
    bound: float = math.inf

    @property
    def text(self) -> str:
        if self.value < math.inf:
            return f"{self.microbatches}: {seconds_text(self.value)}"
        proven = f"none below {seconds_text(self.bound)}" if self.bound else "not searched to the end"
        return f"{self.microbatches}: {proven if self.bound < math.inf else 'none fits'}"


class StepOfSamples:
    """The step of ``options.samples`` samples, in any number of microbatches."""

    def __init__(self, options: CompileOptions) -> None:
        """Raises InvalidInput for a model without samples, UsageError for numbers that do not divide them, and for options that
        exclude ``samples``."""
        assert options.samples is not None
        if not asks_training(options):
            raise UsageError(OnlyOfTraining(_FLAG))
        if options.plan is not None:
            raise UsageError(NotWithPlan(_FLAG))
        if options.search == TAG:
            raise UsageError(NotWithTag(_FLAG))
        self.options, self.samples = options, options.samples
        self.name, fixed = _batch_of(options)
        asked = options.microbatches
        if fixed and (self.samples % fixed or asked not in (None, self.samples // fixed)):
            raise UsageError(
                SamplesMisfit(self.samples, f"microbatches of {fixed} samples, which the model has"), where="--samples"
            )
        if asked and self.samples % asked:
            raise UsageError(SamplesMisfit(self.samples, f"{asked} microbatches"), where="--samples")
        self.tried = (self.samples // fixed,) if fixed else (asked,) if asked else _numbers(self.samples)

    def at(self, microbatches: int) -> CompileOptions:
        """The options of a step in so many microbatches."""
        options, each = self.options, self.samples // microbatches
        if self.name and options.model.startswith(ZOO):
            options = replace(options, model=f"{options.model},{self.name}={each}")
        elif self.name:
            options = replace(options, dims={**options.dims, self.name: each})
        return replace(options, samples=None, microbatches=microbatches)

    def best(
        self,
        planned: Callable[[CompileOptions, Plan | None], T],
        plan_of: Callable[[T], Plan],
        interrupted: Callable[[], bool] = lambda: False,
    ) -> tuple[T, Plan]:
        """What ``planned`` makes of the best number, and its plan, whose certificate tells the others. ``planned`` is given an
        incumbent, and raises Infeasible; once it was ``interrupted`` and there is a plan, no further number is tried. Raises
        Infeasible where none fits: that of the smallest microbatches."""
        best: tuple[T, Plan] | None = None
        failure, rows = None, list[Tried]()
        for number in self.tried:
            try:
                found = planned(self.at(number), best[1] if best is not None else None)
            except KeyboardInterrupt:
                if best is None:
                    raise
                rows.append(Tried(number, bound=0.0))
                break
            except NoBetterPlan as error:
                rows.append(Tried(number, bound=error.bound))
            except Infeasible as error:
                failure = error
                rows.append(Tried(number, bound=math.inf if error.proven else error.bound))
            else:
                plan = plan_of(found)
                better = best is None or plan.value < best[1].value  # else it is the best of some plans alone
                rows.append(Tried(number, plan.value if better else math.inf, plan.bound))
                best = (found, plan) if better else best
            if best is not None and interrupted():
                break
        if best is None:
            assert failure is not None, "without an incumbent there is a plan, or none fits"
            raise failure
        found, plan = best
        each = self.samples // plan.microbatches
        told = f"{self.samples} samples in {plan.microbatches} microbatch{'es' * (plan.microbatches > 1)} of {each}"
        others = ", ".join(row.text for row in rows if row.microbatches != plan.microbatches)
        return found, noted(plan, **{NOTE: f"{told}; {others}" if others else ""})


def _numbers(samples: int) -> tuple[int, ...]:
    """Numbers that divide the samples, from 1 on, each at least twice the one before."""
    found = [1]
    for number in range(2, min(samples, MOST) + 1):
        if samples % number == 0 and number >= 2 * found[-1]:
            found.append(number)
    return tuple(found)


def _batch_of(options: CompileOptions) -> tuple[str, int]:
    """What names the samples of a microbatch, where it is open: the option of a zoo model, or the dimension that ``--dim``
    binds; else their number."""
    if options.model.startswith(ZOO):
        require_options(options.model)  # before a size is added that nobody wrote
        given = dict(part.split("=", 1) for part in options.model.split(",")[1:] if "=" in part)
        fixed = given.get("batch", "")
        return ("", int(fixed)) if fixed.isdecimal() and int(fixed) else ("batch", 0)
    arrays = GivenInputs.read(options.inputs).shapes if options.inputs is not None else None
    read: dict[str, Any] = {"allow_missing_weights": True, "limits": options.limits, "arrays": arrays}
    module = load_model(options.model, options.largest, DiagnosticSink(), **read).module
    if is_profiled(options.model, module):
        raise UsageError(NotOfProfile(_FLAG), where=options.model)
    shapes = [arg.type.shape for arg in module.entry.args if isinstance(arg.type, TensorType) and arg.type.shape]
    first = shapes[0][0] if shapes else None
    if isinstance(first, int):
        return "", first
    if first not in free_symbols(module.entry):
        raise InvalidInput(NoSamples(), where=options.model)
    return first, 0
