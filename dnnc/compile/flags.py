"""The options of a compilation as data, and a table of them: flag, field, the passes that carry it out, what excludes it.

Whatever asks which options are given, which belong to a pass, or which cannot go together, asks this table. A field's default
is that of its class; an option is given where its value is another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

from dnnc.compile.training import TrainingOptions
from ir.core.limits import LIMITS, Limits
from passes.framework.registry import PLANNERS

SEARCHES = ("certified", "tag")
"""Which search plans: dnnc's own, which bounds all plans, or TAG's (``dnnc.search_tag``)."""
TAG = SEARCHES[1]
AUTO = 0
"""As ``batch`` or ``groups`` of a decoder: as many as are best. They may be given as the text ``auto``, too."""
BOUNDS: Mapping[str, tuple[int, int]] = {
    **{"context": (2, 1 << 24), "batch": (1, 1 << 20), "groups": (1, 1 << 20), "chunk": (1, 1 << 20)},
    **{
        "prompt_tokens": (1, 1 << 24),
        "microbatches": (1, 1 << 20),
        "samples": (1, 1 << 30),
        "replicas": (1, 1024),
        "pieces": (1, 64),
    },
}
"""The least and the largest number that an option takes, as the command says."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """What to compile, for what, how, and where to.

    - Reading: ``dims`` bind symbolic dimensions; a ``range`` is of the sizes that the build takes, of which the largest is
      planned (``compile.ranges``); ``limits`` bound what the model may ask for; ``inputs`` is an ``.npz`` of
      arrays by input, whose shapes bind dimensions, and on whose first microbatch sizes that depend on values are measured.
    - Stages: a new one begins after each tensor of ``cuts``; ``pins`` maps ops to devices; ``stages`` is their number (None:
      the best); ``replicas`` the most devices of a stage; ``pieces`` the most stages of a device (latency). Where these leave
      replicas and meshes free, both are searched (``passes.partition``).
    - Meshes: ``mesh`` is the sizes of the axes (``2x4``), ``auto`` (the best) or ``none``. With a mesh, ``stages`` may be 0
      (the best number), ``strategy`` names a plan instead of searching, ``shares`` states unequal parts (``3,1``; ``equal``).
    - Search: ``objective``, ``split``, ``comm`` (empty: throughput, contiguous, sum) and ``time_limit`` (seconds) override
      those of ``pipeline``, which is pipeline text (empty: the default). ``plan`` is replayed instead of searching; ``stated``
      is what it says, once that was read. ``search`` is one of ``SEARCHES`` (empty: dnnc's own); TAG's has a file with its
      ``prior`` and a number of ``iterations``. The seconds in the ``profile`` files of ``dnnc profile`` replace modelled ones.
    - States (``compile.decoding``): ``states`` as ``IN=OUT``; of a decoder, ``roles`` of its inputs as
      ``NAME=ROLE``, ``context`` positions of its caches, ``batch`` sequences in each of ``groups`` groups (``AUTO``: as many as
      are best, by default of ``tokens``), and the tokens of a ``chunk`` of a prompt; ``prompt_tokens`` of the prompt whose time
      to the first token is told; ``genai``: write a pipeline for onnxruntime-genai, too.
    - Training: ``microbatches`` of a step, or its ``samples``, for as many microbatches as are best; and ``training``.
    - Output: ``weights`` is shared, per-stage or none; ``load_test``: onnxruntime opens each program before the build is done;
      ``explain`` asks for ``CompileResult.explanation``."""

    model: str
    topology: str = ""
    out: Path | None = None
    dims: Mapping[str, int | str | range] = field(default_factory=dict)
    limits: Limits = LIMITS
    cuts: tuple[str, ...] = ()
    pins: Mapping[str, str] = field(default_factory=dict)
    stages: int | None = None
    plan: Path | None = None
    stated: tuple[Any, str] | None = None
    plan_only: bool = False
    weights: str = "shared"
    comm: str = ""
    pipeline: str = ""
    time_limit: float | None = None
    objective: str = ""
    split: str = ""
    replicas: int | None = None
    pieces: int | None = None
    mesh: str = ""
    strategy: str = ""
    shares: str = ""
    microbatches: int | None = None
    samples: int | None = None
    training: TrainingOptions = field(default_factory=TrainingOptions)
    explain: bool = False
    load_test: bool = True
    report: bool = True
    inputs: Path | None = None
    profile: tuple[Path, ...] = ()
    search: str = ""
    prior: Path | None = None
    iterations: int | None = None
    states: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    context: int | None = None
    batch: int | None = None
    groups: int | None = None
    chunk: int | None = None
    prompt_tokens: int | None = None
    genai: bool = False

    def __post_init__(self) -> None:
        for name in ("batch", "groups"):
            if getattr(self, name) == "auto":
                object.__setattr__(self, name, AUTO)

    @property
    def largest(self) -> dict[str, int | str]:
        """``dims`` with the largest size of each range."""
        return {name: size.stop - 1 if isinstance(size, range) else size for name, size in self.dims.items()}

    @property
    def least(self) -> dict[str, int | str]:
        """``dims`` with the smallest size of each range."""
        return {name: size.start if isinstance(size, range) else size for name, size in self.dims.items()}

    @property
    def ranges(self) -> dict[str, range]:
        """Those of ``dims`` that are ranges."""
        return {name: size for name, size in self.dims.items() if isinstance(size, range)}


class Excluder(Enum):
    """What excludes options."""

    PLAN = "--plan"
    MESH = "--mesh"
    TAG = "--search tag"
    PROFILE = "a profiled workload"


PLAN, MESH, TAG_SEARCH, PROFILE = Excluder


@dataclass(frozen=True, slots=True)
class Flag:
    """An option. ``field``: of ``CompileOptions``, or ``training.NAME``; ``passes``: those whose field of this name it sets;
    ``excluded``: what it cannot go with."""

    flag: str
    field: str
    passes: tuple[str, ...] = ()
    excluded: tuple[Excluder, ...] = ()

    def value(self, options: CompileOptions) -> Any:
        outer, _, inner = self.field.rpartition(".")
        return getattr(options.training if outer else options, inner)

    def is_given(self, options: CompileOptions) -> bool:
        value = self.value(options)
        return value is not None and value is not False and value not in ("", (), {}, SEARCHES[0])


_OF_TRAINING = {
    "chunks": (PLAN, PROFILE),
    "recompute": (TAG_SEARCH, PROFILE),
}

FLAGS: tuple[Flag, ...] = (
    Flag("--cut", "cuts", PLANNERS, (PLAN, MESH)),
    Flag("--pin", "pins", PLANNERS, (PLAN, MESH)),
    Flag("--stages", "stages", PLANNERS, (PLAN, TAG_SEARCH)),
    Flag("--time-limit", "time_limit", PLANNERS, (PLAN, TAG_SEARCH)),
    Flag("--replicas", "replicas", PLANNERS, (PLAN, MESH)),
    Flag("--pieces", "pieces", ("reference",), (PLAN, MESH)),
    Flag("--objective", "objective", PLANNERS, (PLAN,)),
    Flag("--split", "split", ("reference",), (PLAN, MESH)),
    Flag("--comm", "comm", (), (MESH,)),
    Flag("--mesh", "mesh", ("partition",), (PLAN, TAG_SEARCH, PROFILE)),
    Flag("--strategy", "strategy", ("partition",), (PLAN, TAG_SEARCH, PROFILE)),
    Flag("--shares", "shares", ("partition",), (PLAN, TAG_SEARCH, PROFILE)),
    Flag("--microbatches", "microbatches", PLANNERS, (PLAN, PROFILE)),
    Flag("--samples", "samples", (), (PLAN, TAG_SEARCH, PROFILE)),
    Flag("--explain", "explain", (), (PROFILE,)),
    Flag("--inputs", "inputs", (), (PROFILE,)),
    Flag("--plan", "plan", (), (TAG_SEARCH,)),
    Flag("--passes", "pipeline", (), (TAG_SEARCH,)),
    Flag("--search tag", "search", (), (PROFILE,)),
    Flag("--search-prior", "prior"),
    Flag("--iterations", "iterations"),
    Flag("--state", "states", (), (TAG_SEARCH, PROFILE)),
    Flag("--role", "roles", (), (TAG_SEARCH, PROFILE)),
    Flag("--context", "context", (), (TAG_SEARCH, PROFILE)),
    Flag("--batch", "batch", (), (TAG_SEARCH, PROFILE)),
    Flag("--groups", "groups", (), (TAG_SEARCH, PROFILE)),
    Flag("--chunk", "chunk", (), (TAG_SEARCH, PROFILE)),
    Flag("--prompt-tokens", "prompt_tokens", (), (TAG_SEARCH, PROFILE)),
    Flag("--genai", "genai", (), (TAG_SEARCH, PROFILE)),
    *(
        Flag(f"--{one.name.replace('_', '-')}", f"training.{one.name}", (), _OF_TRAINING.get(one.name, (PROFILE,)))
        for one in fields(TrainingOptions)
    ),
)


def given(options: CompileOptions, flags: Collection[Flag] = FLAGS) -> tuple[str, ...]:
    """The options among ``flags`` that are given."""
    return tuple(one.flag for one in flags if one.is_given(options))


def excluded_by(options: CompileOptions, excluder: Excluder) -> tuple[str, ...]:
    """The options that are given and cannot go with ``excluder``."""
    return given(options, [one for one in FLAGS if excluder in one.excluded])


ON_SHAPES = tuple(one for one in FLAGS if one.field in ("strategy", "shares"))
"""How tensors are split on the mesh that is asked for."""
OF_TAG = tuple(one for one in FLAGS if one.field in ("prior", "iterations"))
OF_TRAINING = tuple(one for one in FLAGS if one.field.startswith("training."))


def changes_of(options: CompileOptions, name: str) -> dict[str, Any]:
    """The fields of the pass ``name`` that options set, with their values."""
    return {one.field: one.value(options) for one in FLAGS if name in one.passes and one.is_given(options)}
