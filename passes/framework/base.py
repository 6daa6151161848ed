"""What a pass is, and what it may use while it runs.

A pass is a frozen dataclass deriving from ``Pass``: class variable ``name`` (kebab-case), fields = options (each
``str``, ``int``, ``float``, ``bool`` or a tuple of ``str``), first docstring line = help. ``run`` maps a module to a
module and keeps no state. What it needs from outside comes in ``PassContext``; what it wants to say goes to
``context.sink``; what it counted to ``context.statistics``. Analyses are pure functions of immutable functions and are
cached by identity in ``context.analyses``.
"""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, TypeVar

from ir.core.attributes import Dense
from ir.core.diagnostics import DiagnosticSink, Infeasible
from ir.core.module import Module, Plan, S
from ir.core.ops import Op
from ir.core.types import Type
from ir.ops.grads import DIALECTS
from ir.ops.opdefs import Dialects
from passes.framework.faults import NotBetter
from passes.solvers.work import within

if TYPE_CHECKING:
    from passes.costs.profiled import Profile

T = TypeVar("T")
Statistics: TypeAlias = dict[str, dict[str, int | float | str]]
"""What was counted, by the name of the pass and what it is."""


class NoBetterPlan(Infeasible):
    """No plan that a pass may make is better than the incumbent of its context; none of them is below ``bound``."""

    def __init__(self, bound: float, where: str) -> None:
        super().__init__(NotBetter(bound), where=where)
        self.bound = bound


class ConstantEvaluator(Protocol):
    """Runs one op on constants; given by the driver, since passes know no ONNX implementation.

    Returns one constant per result, or None when the op cannot be evaluated."""

    def __call__(self, op: Op, operands: tuple[Dense | None, ...], opsets: dict[str, int]) -> tuple[Dense, ...] | None: ...


class FunctionBodies(Protocol):
    """Gives the ops that define a composite op; given by the driver, since passes know no ONNX implementation.

    They are the entry function of a module, whose arguments are the operands that the op has and whose results those that it
    names, in order; None when the op has no such definition."""

    def __call__(self, op: Op, operands: Sequence[Type | None], opsets: dict[str, int]) -> Module | None: ...


class Prover(Protocol):
    """Shows for all inputs that the programs of a module compute its model; given by the driver, since the proof shares no code
    with passes.

    Returns what it counted. Raises CheckFailed for a module that is refuted or not proven."""

    def __call__(self, module: Module) -> Mapping[str, int]: ...


class AnalysisCache:
    """Results of analyses, by the analysis and the identity of the objects it was asked about.

    Invariant: the cache keeps no subject alive. A result goes with the first of its subjects that goes, so a result must not
    hold all of its subjects."""

    def __init__(self) -> None:
        self._results: dict[tuple[Hashable, ...], tuple[tuple[weakref.ref[object], ...], Callable[[], Any]]] = {}

    def get(self, analysis: Callable[..., T], *subjects: object) -> T:
        """``analysis(*subjects)``, computed once per identity of the subjects, while all of them live."""
        found = self._results.get((analysis, *map(id, subjects)))
        if found is None:
            result = analysis(*subjects)
            self.put(result, analysis, *subjects)
            return result
        kept: T = found[1]()
        return kept

    def put(self, result: T, analysis: Callable[..., T], *subjects: object) -> None:
        """Keeps what ``analysis(*subjects)`` is, where it is known already."""
        key, cache = (analysis, *map(id, subjects)), weakref.ref(self)

        def forget(_: weakref.ref[object]) -> None:
            if (alive := cache()) is not None:
                alive._results.pop(key, None)

        refs = tuple(weakref.ref(subject, forget) for subject in subjects)
        itself = (ref for ref, subject in zip(refs, subjects, strict=True) if subject is result)
        self._results[key] = (refs, next(itself, lambda: result))


@dataclass(frozen=True, slots=True)
class Measurements:
    """What one run of a module's entry function showed. ``shapes``: of values, as ``Measured`` spells them, those in regions
    as they were the last time; ``runs``: how often each op ran, by its id: none that did not. No seconds: they would be others
    each time, and so would be the plan."""

    shapes: Mapping[str, str]
    runs: Mapping[str, int]


@dataclass(slots=True)
class PassContext:
    """Everything a pass may use besides its module. ``progress(label, fraction)`` may be called at any rate; ``fraction`` is
    None when it is not known. ``measure`` runs the model once on inputs that a person gave; None where there are none.
    ``profile``: seconds that were measured, which stand over those that are modelled.
    ``dialects`` define the ops of the module, for the verifier. ``incumbent``: the best plan of other searches; a search that
    makes a better one gives it a bound that holds for theirs as well, or raises NoBetterPlan. ``gone``: values and nodes of the
    model that simplification left out, with the name of what stands for them: a value, a resource, or nothing. ``clock``: how
    many seconds a person gives a pass that searches; inf: it ends by its counted work."""

    sink: DiagnosticSink = field(default_factory=DiagnosticSink)
    analyses: AnalysisCache = field(default_factory=AnalysisCache)
    statistics: Statistics = field(default_factory=dict)
    evaluate: ConstantEvaluator | None = None
    bodies: FunctionBodies | None = None
    prove: Prover | None = None
    progress: Callable[[str, float | None], None] = lambda label, fraction: None
    measure: Callable[[Module], Measurements] | None = None
    profile: Profile | None = None
    dialects: Dialects = DIALECTS
    incumbent: Plan | None = None
    gone: dict[str, str] = field(default_factory=dict)
    clock: float = math.inf

    def count(self, pass_name: str, **values: int | float | str) -> None:
        """Records statistics of a pass, for reports and later passes."""
        self.statistics.setdefault(pass_name, {}).update(values)

    @contextmanager
    def limited(self, pass_name: str) -> Iterator[None]:
        """Limits the searches of a pass that run inside by the clock, and counts whether that cut one."""
        with within(None if self.clock == math.inf else self.clock) as limit:
            try:
                yield
            finally:
                if limit.cut:
                    self.count(pass_name, cut=1)


def needed(module: Module, kind: type[S]) -> S:
    """The first symbol of a kind that a pass needs by the registry, so that the manager ran nothing without it."""
    found = module.first(kind)
    assert found is not None, f"no {kind.__name__} in {module.name}: the order of passes was not judged"
    return found


@dataclass(frozen=True)
class Pass(ABC):
    """Base of all passes; see the module docstring for the contract."""

    name: ClassVar[str]

    @property
    def by_op(self) -> bool:
        """Whether the pass looks at ops one by one, and wants a folded module expanded (``on_expanded``)."""
        return getattr(type(self).run, "by_op", False)

    def check_options(self) -> None:
        """Raises UsageError for options of the pass that exclude each other, whatever the module."""
        return

    @abstractmethod
    def run(self, module: Module, context: PassContext) -> Module:
        """The module after the pass. Raises DnncError for a fault of the input."""
