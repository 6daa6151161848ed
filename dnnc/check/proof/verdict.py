"""What a proof shows: a verdict for each stage, and for the build."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dnnc.check.faults import NotProven, Refuted
from dnnc.check.proof.explain import REFUTED, Failure
from ir.core.diagnostics import CheckFailed

LAYOUT_RULES = "the layout rules, each tested on random instances against ONNX Runtime"
KERNELS = "kernels: how they round, and the order in which they add"
RUNTIME = "the runtime: it exchanges what programs and schedule say, a channel in order, a message for each microbatch"
TRUSTED = (
    "plan.ir holds the model: the importer, 'canonicalize' and 'states' are not checked",
    LAYOUT_RULES,
    KERNELS,
    RUNTIME,
)
"""What a proof takes on trust."""
PROMPTS = (
    "plan.ir holds the model, and prompt.ir the same for several tokens at once: the importer, 'canonicalize' and 'states' are "
    "not checked"
)
"""The first of these of a build with a prompt program."""
NO_PROMPT = "the programs of prompts, which a build of an earlier version does not describe"
OWN_COPY = "the weights of the build's own copy (annotated.onnx), since the model's files are gone or have changed"


@dataclass(frozen=True, slots=True)
class StageVerdict:
    """A stage, in its prompt program where ``prompt``: ``texts`` different programs; ``ops``, ``collectives`` and ``weights``
    of its first member. ``failure``: why it is not proven; None if it is."""

    index: int
    devices: tuple[str, ...]
    texts: int
    ops: int
    collectives: int
    weights: int
    failure: Failure | None
    prompt: bool = False

    @property
    def place(self) -> str:
        return f"stage {self.index} on {', '.join(self.devices)}{', its prompt program' if self.prompt else ''}"

    @property
    def verdict(self) -> str:
        return "proven" if self.failure is None else self.failure.verdict

    def __str__(self) -> str:
        counts = ((self.ops, "op"), (self.collectives, "collective"), (self.weights, "weight"))
        told = ", ".join(f"{count} {what}{'s' * (count != 1)}" for count, what in counts)
        return f"{'prompts: ' if self.prompt else ''}{told}: {self.verdict}"

    def to_json(self) -> dict[str, Any]:
        return {
            "stage": self.index,
            "devices": list(self.devices),
            **({"prompt": True} if self.prompt else {}),
            "programs": self.texts,
            "ops": self.ops,
            "collectives": self.collectives,
            "weights": self.weights,
            "verdict": self.verdict,
            **({"failure": self.failure.to_json()} if self.failure else {}),
        }


@dataclass(frozen=True, slots=True)
class ProofReport:
    """``between``: what is wrong beside the stages. ``own_copy``: whether weights were compared with the build's own copy."""

    build: str
    stages: tuple[StageVerdict, ...]
    between: tuple[Failure, ...]
    own_copy: bool
    seconds: float
    trusts: tuple[str, ...] = TRUSTED

    @property
    def failures(self) -> list[tuple[str, Failure]]:
        """What was not shown, with its place: refutations first."""
        own = [(s.place, s.failure) for s in self.stages if s.failure is not None]
        found = [*own, *((self.build, failure) for failure in self.between)]
        return sorted(found, key=lambda item: item[1].verdict != REFUTED)

    @property
    def verdict(self) -> str:
        """``proven``, ``refuted`` or ``not proven``."""
        return self.failures[0][1].verdict if self.failures else "proven"

    @property
    def proven(self) -> bool:
        return self.verdict == "proven"

    @property
    def trusted(self) -> tuple[str, ...]:
        return (*self.trusts, OWN_COPY) if self.own_copy else self.trusts

    def error(self) -> CheckFailed | None:
        """The error of a build that is not proven."""
        if not self.failures:
            return None
        where, failure = self.failures[0]
        kind = Refuted if failure.verdict == REFUTED else NotProven
        return CheckFailed(kind(failure.message, failure.origin), where=where)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": "dnnc.proof/1",
            "build": self.build,
            "proven": self.proven,
            "verdict": self.verdict,
            "stages": [stage.to_json() for stage in self.stages],
            "between": [failure.to_json() for failure in self.between],
            "trusted": list(self.trusted),
            "seconds": self.seconds,
        }
