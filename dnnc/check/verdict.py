"""The result of a check: a comparison for each tensor that leaves a stage, and what all of them prove.

The largest difference that passes follows from the precision (``least``, ``compare.py``) and the tensor's noise floor
(``noise.py``):

    allowed = max(least, FACTOR x floor), or --tolerance

If that exceeds ``CAP``, faults could pass. Then the typical difference decides, not the largest: in a quantised model, a value
rounded the other way changes a few elements much, a fault changes most of them. It may be ``FACTOR`` floors, and at most
``CAP_TYPICAL``. A larger one that rounding alone explains is ``unstable``: it proves nothing and fails nothing. Any other
difference ``diverges``. Only ``ok`` tensors count as compared; a check that compared none has failed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dnnc.check.compare import CAP, CAP_TYPICAL, Difference
from dnnc.check.faults import ChainDiverges, LogitsDiverge, NothingCompared, RunDiverges, StageDiverges, TokenDiverges
from dnnc.check.noise import FACTOR, QUIET, Noise
from ir.core.diagnostics import CheckFailed

LOGITS, TOKENS = "logits", "tokens"
"""The kinds of a comparison of what a language model generates (``dnnc.check.tokens``)."""
NOT_COMPARED = {
    "random": "it depends on random numbers",
    "empty": "it is absent, or has no finite element",
    "unnamed": "the unsplit model has no value of this name",
    "unstable": "rounding alone changes it by more than a check can allow",
}
"""Verdicts of tensors that were not compared, with the reason."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The difference that decides (the largest or the typical), the largest that passes, and the verdict: ``ok``, ``unstable``
    or ``diverges``."""

    value: float
    allowed: float
    verdict: str
    reason: str = ""


def judge(difference: Difference, noise: Noise, tolerance: float | None = None) -> Judged:
    """Whether a difference passes. ``noise``: the noise floor of the tensor, ``QUIET`` if it was not measured."""
    value, least, cap = difference.value, difference.allowed, CAP * difference.unit
    if tolerance is not None:
        allowed = tolerance * difference.unit
        return Judged(value, allowed, "ok" if value <= allowed else "diverges", difference.reason)
    allowed = max(least, FACTOR * noise.value)
    if allowed <= cap or value <= least:
        return Judged(value, allowed, "ok" if value <= allowed else "diverges", difference.reason)
    single = f"single elements differ by up to {value:.2g}, by rounding alone {noise.value:.2g}"
    reason = f"{difference.reason}; {single}" if difference.reason else single
    typical, bound = difference.typical, FACTOR * noise.typical
    verdict = "diverges" if typical > bound else "unstable" if typical > CAP_TYPICAL else "ok"
    return Judged(typical, min(bound, CAP_TYPICAL), verdict, reason)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One tensor that leaves a stage. ``kind``: ``cut``, ``output``, ``LOGITS`` or ``TOKENS``. ``alone`` and ``chained``:
    differences from the unsplit model (None: not compared; ``alone`` of a run on a cluster, and of tokens, too); ``allowed``
    and ``allowed_chained``: the largest that pass. ``verdict``: ``ok``, ``diverges``, or why it was not compared (a key of
    ``NOT_COMPARED``). ``noise``: the noise floors alone and chained, quiet if not measured. ``original``: whether it was
    compared with the original model, not with the build's own copy. ``members``: on a mesh, number and device of the members
    whose part is wrong, if known. ``origin``: the first value inside the stage that differs, if its members were examined
    (``locate.py``)."""

    tensor: str
    stage: int
    device: str
    kind: str
    type: str
    alone: float | None
    chained: float | None
    allowed: float
    allowed_chained: float
    verdict: str
    reason: str = ""
    noise: tuple[Noise, Noise] = (QUIET, QUIET)
    original: bool = True
    origin: str = ""
    members: tuple[tuple[int, str], ...] = ()

    @property
    def place(self) -> str:
        """The stage, and the members at fault."""
        if not self.members:
            return f"stage {self.stage} on {self.device}"
        several = "members" if len(self.members) > 1 else "member"
        return f"stage {self.stage} {several} {', '.join(f'{number} on {device}' for number, device in self.members)}"

    @property
    def wrong_alone(self) -> bool:
        """Whether the stage computes wrong values from right inputs."""
        return self.verdict == "diverges" and self.alone is not None and self.alone > self.allowed

    def to_json(self) -> dict[str, Any]:
        return {
            "tensor": self.tensor,
            "stage": self.stage,
            "device": self.device,
            "kind": self.kind,
            "type": self.type,
            "alone": _number(self.alone),
            "chained": _number(self.chained),
            "allowed": self.allowed,
            "allowed_chained": self.allowed_chained,
            "noise_alone": _number(self.noise[0].value),
            "noise_chained": _number(self.noise[1].value),
            "verdict": self.verdict,
            "reason": self.reason,
            "reference": "original" if self.original else "build",
            **({"members": [{"member": n, "device": d} for n, d in self.members]} if self.members else {}),
            **({"origin": self.origin} if self.origin else {}),
        }


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All comparisons, in the order of stages. ``reference``: the title of the unsplit model; ``original``: whether any
    value was compared with the model that was compiled; ``random``: the random ops, whose results were not compared."""

    build: Path
    reference: str
    original: bool
    samples: int
    random_inputs: bool
    comparisons: tuple[Comparison, ...]
    random: tuple[str, ...]
    notes: tuple[str, ...]
    seconds: float

    @property
    def compared(self) -> tuple[Comparison, ...]:
        """The tensors that agree with the unsplit model."""
        return tuple(c for c in self.comparisons if c.verdict == "ok")

    @property
    def passed(self) -> bool:
        """Whether a tensor was compared, and none diverges."""
        return bool(self.compared) and self.first is None

    @property
    def first(self) -> Comparison | None:
        """The first tensor that diverges in a stage with right inputs; if there is none, the first that diverges in the
        chain."""
        wrong = [c for c in self.comparisons if c.verdict == "diverges"]
        return next((c for c in wrong if c.wrong_alone), wrong[0] if wrong else None)

    @property
    def left_out(self) -> str:
        """The tensors that were not compared and why, as text."""
        by_verdict: dict[str, list[str]] = {}
        for c in self.comparisons:
            if c.verdict in NOT_COMPARED:
                by_verdict.setdefault(c.verdict, []).append(f"{c.kind} '{c.tensor}'")
        return "; ".join(f"{_listed(names)}: {NOT_COMPARED[verdict]}" for verdict, names in by_verdict.items())

    @property
    def noisy(self) -> str:
        """The tensors that passed only because of their noise floor, as text."""
        names = [f"{c.kind} '{c.tensor}'" for c in self.compared if c.noise != (QUIET, QUIET)]
        return _listed(names)

    @property
    def verdict(self) -> str:
        """What the check proves, in one line. It says ``passed`` only if the original model was compared with."""
        if not self.passed:
            return ""
        count, inputs = len(self.compared), "random" if self.random_inputs else "given"
        own = sum(not c.original for c in self.compared)
        of = f"{count} of {len(self.comparisons)} tensors on {self.samples} x {inputs} inputs"
        outputs = sum(c.kind in ("output", LOGITS, TOKENS) for c in self.compared)
        without = "" if outputs else "; no output of the model is among them"
        if own == count:
            return (
                f"the stages agree with the build's own copy of the model, not with the original ({of}{without}): "
                "a fault that both share is not seen"
            )
        mixed = f"; {own} of them with the build's own copy, since the original does not name them" if own else ""
        return f"passed: the stages compute what {self.reference} computes ({of}{mixed}{without})"

    def error(self) -> CheckFailed | None:
        """The error of a failed check; None if it passed."""
        first = self.first
        if first is None:
            return None if self.compared else self._nothing()
        value, allowed = (first.alone, first.allowed) if first.wrong_alone else (first.chained, first.allowed_chained)
        assert value is not None, "what diverges was compared"
        tensor = first.stage, first.kind, first.tensor, first.type
        if first.wrong_alone:
            return CheckFailed(StageDiverges(*tensor, value, allowed, first.reason, first.origin), where=first.place)
        if first.kind in (LOGITS, TOKENS):
            diverges = LogitsDiverge if first.kind == LOGITS else TokenDiverges
            return CheckFailed(diverges(first.tensor, first.type, first.reason, value, allowed), where=first.place)
        if first.alone is None:
            return CheckFailed(RunDiverges(*tensor, value, allowed, first.reason, first.origin), where=first.place)
        return CheckFailed(ChainDiverges(*tensor, value, allowed, first.reason, first.origin), where=first.place)

    def _nothing(self) -> CheckFailed:
        """The error of a check that compared nothing."""
        why = self.left_out or "nothing leaves the stages: the model has no outputs"
        return CheckFailed(NothingCompared(why), where=str(self.build))

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": "dnnc.check/1",
            "build": str(self.build),
            "passed": self.passed,
            "verdict": self.verdict,
            "reference": self.reference,
            "original": self.original,
            "inputs": "random" if self.random_inputs else "given",
            "samples": self.samples,
            "compared": len(self.compared),
            "left_out": self.left_out,
            "first_diverging_stage": None if self.first is None else self.first.stage,
            "comparisons": [c.to_json() for c in self.comparisons],
            "random_ops": list(self.random),
            "notes": list(self.notes),
            "seconds": self.seconds,
        }


def _listed(names: list[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _number(value: float | None) -> float | str | None:
    """JSON has no infinity."""
    return "inf" if value is not None and math.isinf(value) else value
