"""What a plan minimises: the table of objectives for the verifier, the passes, the reports and the commands.

Other code asks an objective for its properties (``plan.minimises.trains``) instead of comparing its name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from ir.core.diagnostics import UsageError
from ir.core.faults import UnknownObjective


class Planned(StrEnum):
    """What is planned. Each kind of problem has its own searches."""

    OPS = "a model whose operators stay whole"
    MESHES = "a model whose tensors are split"
    PROFILE = "a profiled workload on the machines of a topology"
    PAPER = "a profiled workload on the machines of its file"


@dataclass(frozen=True, slots=True)
class Objective:
    """``name``: as in commands and plans. ``help``: what is minimised, for ``--help``. ``per``: a plan's value is in seconds
    ``per`` this. ``trains``: the backward pass counts. ``alone``: the value is the latency of one sample, not the time between
    samples in flight. ``decodes``: samples are steps of groups of sequences, whose states stay on devices. ``splits``: the
    kinds of problems that it is offered for, each with its splits."""

    name: str
    help: str
    per: str
    trains: bool = False
    alone: bool = False
    decodes: bool = False
    splits: tuple[tuple[Planned, tuple[str, ...]], ...] = field(default=(), repr=False)

    @property
    def trips(self) -> bool:
        """Whether the time counts that a sample, or a group of sequences, takes through all stages."""
        return self.alone or self.decodes

    @property
    def streams(self) -> bool:
        """Whether the value is the time between two samples of a stream at inference."""
        return not (self.trains or self.alone)

    def splits_of(self, planned: Planned) -> tuple[str, ...]:
        """The splits with which it is offered for ``planned``; none where it is not."""
        return dict(self.splits).get(planned, ())


CONTIGUOUS, ANY = "contiguous", "any"
"""Splits: data flows forward only between devices; back and forth."""

THROUGHPUT = Objective(
    "throughput",
    "inference, the largest load of a device",
    "per microbatch",
    splits=(
        (Planned.OPS, (CONTIGUOUS, ANY)),
        (Planned.MESHES, (CONTIGUOUS,)),
        (Planned.PROFILE, (CONTIGUOUS, ANY)),
        (Planned.PAPER, (CONTIGUOUS, ANY)),
    ),
)
LATENCY = Objective(
    "latency",
    "the time of one sample alone",
    "for one sample alone",
    alone=True,
    splits=(
        (Planned.OPS, (CONTIGUOUS,)),
        (Planned.MESHES, (CONTIGUOUS,)),
        (Planned.PROFILE, (CONTIGUOUS,)),
        (Planned.PAPER, (CONTIGUOUS,)),
    ),
)
TRAINING = Objective(
    "training",
    "a step with its backward pass",
    "per training step",
    trains=True,
    splits=(
        (Planned.OPS, (CONTIGUOUS, ANY)),
        (Planned.MESHES, (CONTIGUOUS,)),
        (Planned.PROFILE, (CONTIGUOUS, ANY)),
        (Planned.PAPER, (CONTIGUOUS, ANY)),
    ),
)
TOKENS = Objective(
    "tokens",
    "a decoder, the time between two tokens of all sequences together",
    "per token",
    decodes=True,
    splits=((Planned.OPS, (CONTIGUOUS,)), (Planned.MESHES, (CONTIGUOUS,))),
)
TOKEN_LATENCY = Objective(
    "token-latency",
    "a decoder, the time from a token of a sequence to its next, of one group alone",
    "from a token to the next of its sequence",
    alone=True,
    decodes=True,
    splits=((Planned.OPS, (CONTIGUOUS,)), (Planned.MESHES, (CONTIGUOUS,))),
)
PIPEDREAM = Objective(
    "pipedream",
    "training by replicated stages, as PipeDream's planner counts it",
    "per minibatch",
    trains=True,
    splits=((Planned.PAPER, (CONTIGUOUS,)),),
)
OBJECTIVES = (THROUGHPUT, LATENCY, TRAINING, TOKENS, TOKEN_LATENCY, PIPEDREAM)


def objective_of(name: str, where: str = "--objective") -> Objective:
    """The objective that ``name`` spells. Raises UsageError for a name that none has."""
    for objective in OBJECTIVES:
        if objective.name == name:
            return objective
    raise UsageError(UnknownObjective(name, names(OBJECTIVES)), where=where)


def offered(*planned: Planned) -> tuple[Objective, ...]:
    """The objectives with a search for any of ``planned``, in the order of the table."""
    return tuple(objective for objective in OBJECTIVES if any(objective.splits_of(sort) for sort in planned))


def names(objectives: tuple[Objective, ...]) -> str:
    """Names in a message: ``throughput, latency or training``."""
    spelled = [objective.name for objective in objectives]
    return " or ".join([", ".join(spelled[:-1]), spelled[-1]] if len(spelled) > 1 else spelled)
