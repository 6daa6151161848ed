"""The options of ``dnnc compile`` that no other command has, but for those of training (``training_options``)."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dnnc.cli import options as opt


class Search(StrEnum):
    """Whose search plans (``dnnc.compile.flags.SEARCHES``)."""

    CERTIFIED = "certified"
    TAG = "tag"


class Strategy(StrEnum):
    """Plans by name (``passes.shard.mesh.named``)."""

    DATA = "data"
    MEGATRON = "megatron"
    EXPERT = "expert"
    TIED = "tied"
    REPLICATE = "replicate"


Out = Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Directory to write; replaced when it is a build.")]
Cut = Annotated[
    list[str] | None, typer.Option("--cut", metavar="TENSOR", help="Begin a new stage after this tensor. Repeatable.")
]
Pin = Annotated[list[str] | None, typer.Option("--pin", metavar="NODE=DEVICE", help="Run a node on a device. Repeatable.")]
Stages = Annotated[
    str | None,
    typer.Option(
        "--stages",
        metavar="N|auto",
        help="Exactly N stages; auto: as many as help (the default; with --mesh SHAPE the default is 1).",
    ),
]
Mesh = Annotated[
    str | None,
    typer.Option(
        "--mesh",
        metavar="SHAPE|auto|none",
        help="Split tensors over the devices of a mesh: 8 or 2x4, one size per axis; auto: the best of one or two axes; "
        "none: no tensor is split. Without it meshes are used where they are best.",
    ),
]
ByName = Annotated[
    Strategy | None,
    typer.Option(
        help="With --mesh: this plan, not the best. data: samples split; megatron: column-then-row pairs; expert: experts "
        "split; tied: the best with all layers alike; replicate: nothing split. With --stages it is cut into stages.",
        show_default=False,
    ),
]
Uneven = Annotated[bool, typer.Option("--uneven", help="With --mesh: shards may differ where nothing divides.")]
Shares = Annotated[
    str | None,
    typer.Option(
        "--shares",
        metavar="N,N..|equal",
        help="With --mesh: the parts of the members along each axis, such as 3,1, or 3,1x1,1 for 2x2. Unequal devices get "
        "parts by their speed unless given.",
    ),
]
Microbatches = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1 << 20,
        metavar="M",
        help="training: microbatches of a step, each a run of the model, whose gradients are accumulated "
        "(default: 8, or 1 where --mesh without --stages asks for one mesh).",
    ),
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain",
        help="Of a plan on meshes: what each layer exchanges, one block op by op, and what other plans cost.",
    ),
]
Replayed = Annotated[
    Path | None,
    typer.Option("--plan", metavar="FILE", help="Replay this (edited) plan.json or plan.ir instead of searching."),
]
PlanOnly = Annotated[
    bool, typer.Option("--plan-only", help="Write plan.json, plan.ir and trace.json only: no programs, no weights.")
]
WeightFiles = Annotated[opt.Weights, typer.Option(help="One shared weight file, one file per stage, or none at all.")]
SplitOption = Annotated[
    opt.Split | None,
    typer.Option(
        help="contiguous: data flows forward only between devices (default); any: back and forth, in several stages per "
        "device.",
        show_default=False,
    ),
]
Replicas = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1024,
        metavar="R",
        help="A stage may run on up to R devices, which take microbatches in turn (default: as many as are best).",
    ),
]
Pieces = Annotated[
    int | None, typer.Option(min=1, max=64, metavar="Q", help="latency: a device runs up to Q stages, one after another.")
]
CommOption = Annotated[
    opt.Comm | None, typer.Option(help="How compute and transfers of a device add up (default: sum).", show_default=False)
]
Passes = Annotated[
    str, typer.Option("--passes", metavar="PIPELINE", help="Run these passes ('dnnc passes') instead of the default ones.")
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0.0,
        max=opt.MOST_SECONDS,
        callback=opt.finite,
        help="Longest search, by the clock (default: its work is counted).",
    ),
]
Inputs = Annotated[
    Path | None,
    typer.Option(
        "--inputs",
        metavar="FILE.npz",
        help="Arrays by input name: their shapes bind dimensions, and sizes that depend on values are measured in one run.",
    ),
]
Profile = Annotated[
    list[Path] | None,
    typer.Option(
        "--profile",
        metavar="FILE.json",
        help="Seconds that 'dnnc profile' measured stand over those that are modelled. Repeatable.",
    ),
]
SearchOption = Annotated[
    Search,
    typer.Option(
        help="training: whose search plans: dnnc's own, with a bound of all plans, or TAG's tree search over op groups and "
        "groups of equal devices.",
    ),
]
SearchPrior = Annotated[
    Path | None,
    typer.Option("--search-prior", metavar="FILE.npz", help="With --search tag: a prior of 'dnnc tag train'."),
]
Iterations = Annotated[
    int | None,
    typer.Option(min=1, max=1 << 20, metavar="N", help="With --search tag: iterations of the search (default: 1000)."),
]
LoadTest = Annotated[
    bool,
    typer.Option("--load-test/--no-load-test", help="Open each program in onnxruntime before the build counts as done."),
]
