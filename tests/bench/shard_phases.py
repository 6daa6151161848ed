"""Phases of the search for layouts (``passes.partition.layouts``) and the instances that they are tried on, for
``tests.bench.ablation``.

``layouts``: one problem on one mesh. Its limit of memory lies a stated part of the way from the least that any plan needs to
what the quickest plan needs. ``compiled``: whole compilations on meshes, in one stage or several.

What it said (gaps with the phase and without it, instances in all; searches on one mesh in 3 to 5 s of counted work):

    mixed plans          gpt3 8x8 0.3 0.3 % 13.8 %, gpt3 48 training 0.05 % 1.4 %, t5 training 12.3 % 15.0 %, llama-70b training
    programme            gpt3 8x8 0.3 in 15 s 0.15 % 0.27 %, six of eight random problems under a limit 0 to 0.1 % 0.3 to 3.9 %
    descent              mixtral 0.5 3.0 % 10.3 %, experts 64 training 0.08 % 0.30 %
    reductions           t5 training 12.3 % 18.7 %; against: experts 64 training 0.3 8.6 % 8.3 %
    reductions, unions   mixtral 0.5 1.2 % 1.7 %, in 3 s 3 % 15 %; against: t5 8x8 training 1.1 % 0.002 %, experts 64 0.14 % 0
    marginals            llama-70b 0.5 0 3.9 %, experts 64 training 0.3 8.6 % 10.1 %, vit training 0 1.1 %, mixtral 8x8
                         training 0 0.2 %; against: t5 8x8 training 4.2 % 1.3 %, and with the same values gpt3 of 1,024
                         layers on 8x8 4.0 s 3.0 s, t5-base 2x4 training 16.8 s 6.9 s: deleted
    searches of runs     in stages bert-large in 3 on h100x8 0.4 % 4.5 %, t5-large in 4 0.5 % 0.9 %, none of 12 in any number
    rungs                without any, mixtral 0.5 3.0 % 272 %; with that of 2**16 alone 33 %, of 2**16 and 2**22 12 %
    between overlaps     VGG-19 trained on TAG's testbed 0.9 % 3.2 %
    stages by tables     a stage planned by the tables of its units before a search, and its descent: none of 8: deleted
    blocks of one size   in stages, behind the first plan: none of 12, with the same plans and bounds without it (gpt3-175b
                         and t5-large on 8xh100x8, bert-large on h100x8 in three and in any number, VGG-19 on TAG's testbed,
                         bert-small, VGG-19, Inception on drawn ones, gpt3 with tight memory, on unlike devices, trained,
                         mixtral): deleted
    fitting, lower       perceptron of 4 layers, batch 4,096, on 4 devices of 9/10 of the memory that it asks for: 8.7 % slower
    fitting, leaning     the same on 2x4 of 7/10: no plan without
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from dnnc.compile.driver import CompileOptions, compile_model
from ir.core.module import Plan
from passes.partition.layouts import ShardPlan, ShardProblem, build, solve
from passes.partition.layouts.mesh import fitting
from passes.partition.layouts.solver import reduce, search
from tests.passes.partition.layouts.families import spec_of
from tests.passes.partition.layouts.models import mesh, prepared
from tests.passes.partition.layouts.problems import random_graph, random_layers

Instance = Callable[[float], ShardPlan | Plan]

NARROW = "hidden=1024,heads=16,seq=128,vocab=512"
MODELS: dict[str, tuple[str, int]] = {
    "gpt3 8": (f"zoo:gpt3-175b,layers=8,{NARROW}", 1),
    "gpt3 48": (f"zoo:gpt3-175b,layers=48,{NARROW}", 8),
    "experts 64": ("zoo:mixtral-8x7b,layers=2,experts=64,hidden=64,heads=8,kv_heads=4,vocab=128,seq=16,batch=8", 8),
    **{family: (spec_of(family, 3), 8) for family in ("mixtral", "t5", "llama-70b", "vit", "resnet")},
}
"""Model and batch, by name."""
CASES: tuple[tuple[str, tuple[int, ...], bool, float | None], ...] = (
    ("gpt3 8", (8, 8), False, 0.3),
    ("gpt3 48", (8,), False, 0.4),
    ("gpt3 48", (2, 4), True, 0.2),
    ("gpt3 8", (8, 8), True, 0.5),
    ("experts 64", (8,), False, None),
    ("experts 64", (2, 4), True, None),
    ("experts 64", (2, 4), True, 0.3),
    ("mixtral", (2, 4), False, 0.5),
    ("mixtral", (8, 8), True, None),
    ("mixtral", (8, 8), True, 0.3),
    ("t5", (2, 4), False, None),
    ("t5", (8, 8), True, None),
    ("t5", (2, 4), True, 0.3),
    ("llama-70b", (8, 8), False, 0.5),
    ("llama-70b", (2, 4), True, 0.1),
    ("vit", (2, 4), True, 0.5),
    ("resnet", (2, 4), True, None),
    ("resnet", (8,), True, 0.3),
)
"""Model, mesh, whether it trains, and where the limit of memory lies."""


def limited(problem: ShardProblem, part: float | None) -> float | None:
    """The limit of memory that lies there."""
    if part is None:
        return None
    least = sum(float(problem.node(node).memory.min()) for node in range(problem.size))
    return least + part * (solve(problem).memory - least)


@cache
def layouts(name: str, sizes: tuple[int, ...], training: bool, part: float | None) -> tuple[ShardProblem, float | None]:
    spec, batch = MODELS[name]
    module, folds = prepared(spec, batch)
    problem = build(module, module.entry, mesh(*sizes), folds, training=training).problem
    return problem, limited(problem, part)


@cache
def random_problem(kind: str, seed: int, part: float | None) -> tuple[ShardProblem, float | None]:
    problem = random_layers(seed, 12, 8) if kind == "layers" else random_graph(seed, 40)
    return problem, limited(problem, part)


def searched(problem: Callable[[], tuple[ShardProblem, float | None]], seconds: float) -> ShardPlan:
    given, memory = problem()
    return solve(given, memory=memory, seconds=seconds)


TIGHT = """
version = 1
[types]
h100 = {{ like = "preset:h100", reserved = "0 B" }}
a100 = {{ like = "preset:a100", reserved = "0 B" }}
[[devices]]
name = "d{{0..{last}}}"
type = "h100"
{memory}
[[devices]]
name = "a{{0..{last}}}"
type = "{other}"
{memory}
[[links]]
each = "devices of host"
to = "host"
bandwidth = "300 GB/s"
latency = "1 us"
"""


def topology(devices: int, memory: str = "", other: str = "h100") -> str:
    """The file of so many devices behind one switch, half of them of another type, each with so much memory."""
    text = TIGHT.format(last=devices // 2 - 1, memory=f'memory = "{memory}"' if memory else "", other=other)
    folder = Path(tempfile.mkdtemp(prefix="dnnc-ablation-"))
    (folder / "machines.toml").write_text(text, encoding="utf-8")
    return str(folder / "machines.toml")


def compiled(model: str, machines: tuple[Any, ...], options: dict[str, Any], seconds: float) -> Plan:
    folder = Path(tempfile.mkdtemp(prefix="dnnc-ablation-"))
    asked = CompileOptions(model, topology(*machines), folder / "plan", plan_only=True, time_limit=60 * seconds, **options)
    return compile_model(asked).plan


GPT = f"zoo:gpt3-175b,layers=6,dtype=f16,weights=declared,batch=8,{NARROW}"
GPT_12 = "zoo:gpt3-175b,layers=12,hidden=1024,heads=16,dtype=f16,weights=declared,seq=512,batch=8"
WIDE = "zoo:bert-base,layers=4,weights=declared,batch=32,seq=512"
TRAINS: dict[str, Any] = {"objective": "training", "microbatches": 4}
ONE: dict[str, Any] = {"mesh": "auto", "stages": 1}
ANY: dict[str, Any] = {"mesh": "auto", "stages": 0}
COMPILED: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "gpt3 tight": (GPT, (8, "64 MiB"), ONE),
    "gpt3 training tight": (GPT, (4, "900 MiB"), ONE | TRAINS),
    "gpt3 12 training tight": (GPT_12, (8, "1500 MiB"), {"mesh": "2x4", "stages": 1, "objective": "training"}),
    "bert activations": (WIDE, (4, "300 MiB"), ONE),
    "bert activations 8": (WIDE, (8, "180 MiB"), ONE),
    "bert training activations": (WIDE, (4, "2300 MiB"), ONE | TRAINS),
    "bert unequal": (WIDE, (4, "", "a100"), ONE),
    "gpt3 stages": (GPT, (4, "90 MiB"), ANY),
    "gpt3 stages unequal": (GPT, (4, "", "a100"), ANY),
    "gpt3 stages training": (GPT, (4, "1 GiB"), ANY | TRAINS),
    "mixtral stages": ("zoo:mixtral-8x7b,layers=4,hidden=512,weights=declared,batch=8,seq=128", (4,), ANY),
}


def instances() -> dict[str, dict[str, Instance]]:
    """By search and name."""
    found: dict[str, Instance] = {}
    for name, sizes, training, part in CASES:
        words = f"{name} {'x'.join(map(str, sizes))}{' training' if training else ''}{f' {part}' if part is not None else ''}"
        found[words] = partial(searched, partial(layouts, name, sizes, training, part))
    for kind in ("layers", "graph"):
        for seed in range(4):
            for limit in (None, 0.4):
                found[f"random {kind} {seed} {limit or ''}".strip()] = partial(
                    searched, partial(random_problem, kind, seed, limit)
                )
    return {"layouts": found, "compiled": {name: partial(compiled, *row) for name, row in COMPILED.items()}}


# Phases ---------------------------------------------------------------------------------------------------------------


def none(*arguments: Any, **options: Any) -> None:
    """In place of a phase."""


def unbettered(problem: Any, choices: Sequence[int], value: float, *rest: Any) -> tuple[tuple[int, ...], float]:
    return tuple(choices), value


def kept(problem: Any, *arguments: Any, **options: Any) -> reduce.Reduced:
    return reduce.whole(problem)


def rungs(*powers: int) -> search.Policy:
    """The policy with tables of so many entries, as powers of two, before the whole budget."""
    return replace(search.POLICY, rungs=tuple(1 << power for power in powers))


def improved_not(fitter: Any, plan: ShardPlan, gap: float) -> ShardPlan:
    return plan


def only(leaning: bool) -> Callable[..., Any]:
    """One of the two ways to lower a limit."""
    original = fitting.Fitter.lower

    def lower(self: Any, plan: Any, leans: bool, *rest: Any) -> Any:
        return original(self, plan, leans, *rest) if leans == leaning else None

    return lower


ALL = ("layouts", "compiled")
ONE_MESH: tuple[str, ...] = ("layouts",)
PHASES: dict[str, tuple[tuple[str, ...], tuple[tuple[Any, str, Any], ...]]] = {
    "mixed plans": (ALL, ((search, "mixed", none),)),
    "programme": (ALL, ((search.LayoutSearch, "_certify", none),)),
    "descent": (ONE_MESH, ((search, "descend", unbettered),)),
    **{
        f"rungs {', '.join(map(str, powers))}": (ONE_MESH, ((search, "POLICY", rungs(*powers)),))
        for powers in ((), (16,), (16, 22), (16, 20, 22))
    },
    "reductions": (ONE_MESH, ((search, "reduced", kept),)),
    "reductions, unions": (ONE_MESH, ((reduce, "MOST_UNIONS", 0),)),
    "reductions, rounds": (ONE_MESH, ((reduce, "ROUNDS", 1),)),
    "plans by name, mesh": (("compiled",), ((fitting.Fitter, "improved", improved_not),)),
    "fitting, by name": (("compiled",), ((fitting, "plans_by_name", lambda *given, **options: iter(())),)),
    "fitting, lower": (("compiled",), ((fitting.Fitter, "lower", only(True)),)),
    "fitting, leaning": (("compiled",), ((fitting.Fitter, "lower", only(False)),)),
}
"""By name: the searches that have the phase, and the patches that switch it off."""
