"""The options that only ``dnnc compile`` has; those of a training step are in ``training``."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dnnc.cli.options import shared as opt

if TYPE_CHECKING:
    from dnnc.compile.flags import CompileOptions


class Search(StrEnum):
    """Which search plans (``dnnc.compile.flags.SEARCHES``)."""

    CERTIFIED = "certified"
    TAG = "tag"


class Strategy(StrEnum):
    """Plans by name (``passes.partition.layouts.mesh.named``)."""

    DATA = "data"
    MEGATRON = "megatron"
    EXPERT = "expert"
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
        help="Cut the model into exactly N stages; auto: into as many as help (the default, but 1 with --mesh SHAPE).",
    ),
]
Mesh = Annotated[
    str | None,
    typer.Option(
        "--mesh",
        metavar="SHAPE|auto|none",
        help="Split tensors over a mesh of devices: 8 or 2x4, one size per axis; auto: the best of one or two axes; none: "
        "split no tensor. Default: use meshes where they are best.",
    ),
]
ByName = Annotated[
    Strategy | None,
    typer.Option(
        help="With --mesh: this plan instead of the best. data: split the samples; megatron: pairs of products by column, then "
        "row; expert: split the experts; replicate: split nothing.",
        show_default=False,
    ),
]
Shares = Annotated[
    str | None,
    typer.Option(
        "--shares",
        metavar="N,N..|equal",
        help="With --mesh: the parts of the devices along each axis, such as 3,1, or 3,1x1,1 for 2x2 (default: by their speed "
        "where devices differ, else equal).",
    ),
]
Microbatches = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1 << 20,
        metavar="M",
        help="training: microbatches of a step; their gradients are summed (default: 8, or 1 on one mesh: --mesh without "
        "--stages).",
    ),
]
StepSamples = Annotated[
    int | None,
    typer.Option(
        "--samples",
        min=1,
        max=1 << 30,
        metavar="N",
        help="training: samples of a step, in as many microbatches as are best (up to 64), or in those of --microbatches; the "
        "model's batch is left open, or divides N.",
    ),
]
States = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        metavar="IN=OUT",
        help="The input IN stays on its device and becomes the output OUT after each step. Repeatable.",
    ),
]
Roles = Annotated[
    list[str] | None,
    typer.Option(
        "--role",
        metavar="NAME=ROLE",
        help="With --context: what an input of an unusual name is: ids or positions (integers [batch, length]), mask (integers "
        "[batch, positions], 1 for a token), position or lengths (integers [batch], of caches in place), given (where a "
        "sequence begins, as by an encoder). Repeatable.",
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        min=2,
        max=1 << 24,
        metavar="N",
        help="Of a language model with caches: keep them on their devices, N positions for each sequence, and plan the step of "
        "one token.",
    ),
]
Batch = Annotated[
    str | None,
    typer.Option(
        metavar="B|auto",
        help="With --context: sequences of a group; auto, with --objective tokens: as many as are best (default: auto with "
        "--objective tokens, else 1).",
    ),
]
Groups = Annotated[
    str | None,
    typer.Option(
        metavar="G|auto",
        help="With states: groups in flight, each with its own states; auto, with --objective tokens: as many as are best "
        "(default: auto with --objective tokens, else 1).",
    ),
]
PromptTokens = Annotated[
    int | None,
    typer.Option(
        "--prompt-tokens",
        min=1,
        max=1 << 24,
        metavar="N",
        help="With --objective tokens or token-latency: tokens of the prompt whose time to the first token is told (default: "
        "512, or half of the context).",
    ),
]
Genai = Annotated[
    bool,
    typer.Option(
        "--genai", help="With --context: also write genai_config.json, with which onnxruntime-genai runs the stages in turn."
    ),
]
Chunk = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1 << 20,
        metavar="C",
        help="With --context: tokens of a prompt that are taken at once (default: 64, or less than the context).",
    ),
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain",
        help="Print what each layer of a plan on meshes exchanges, one block op by op, and what other plans cost.",
    ),
]
Replayed = Annotated[
    Path | None,
    typer.Option("--plan", metavar="FILE", help="Replay this plan.json (edited, if you like) or plan.ir instead of searching."),
]
PlanOnly = Annotated[
    bool,
    typer.Option("--plan-only", help="Write plan.json, plan.ir, trace.json and report.html only, no programs and no weights."),
]
WeightFiles = Annotated[opt.Weights, typer.Option(help="Write one shared weight file, one file per stage, or none.")]
SplitOption = Annotated[
    opt.Split | None,
    typer.Option(
        help="contiguous: data flows forward only from device to device (default); any: back and forth, with several stages on "
        "a device.",
        show_default=False,
    ),
]
Replicas = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1024,
        metavar="R",
        help="Run a stage on up to R devices, which take microbatches in turn (default: as many as are best).",
    ),
]
Pieces = Annotated[
    int | None, typer.Option(min=1, max=64, metavar="Q", help="latency: give a device up to Q stages, one after another.")
]
CommOption = Annotated[
    opt.Comm | None,
    typer.Option(help="How the compute and the transfers of a device add up (default: sum).", show_default=False),
]
Passes = Annotated[
    str,
    typer.Option(
        "--passes", metavar="PIPELINE", help="Run these passes ('dnnc passes' lists them) instead of the default ones."
    ),
]
TimeLimit = Annotated[
    float | None,
    opt.time_limit("End the search after this time (default: after a counted amount of work, the same on any machine)."),
]
Inputs = Annotated[
    Path | None,
    typer.Option(
        "--inputs",
        metavar="FILE.npz",
        help="Arrays by input name. Their shapes bind dimensions; one run on them measures sizes that depend on values.",
    ),
]
Profile = Annotated[
    list[Path] | None,
    typer.Option(
        "--profile",
        metavar="FILE.json",
        help="Use the seconds that 'dnnc profile' measured in place of modelled ones. Repeatable.",
    ),
]
SearchOption = Annotated[
    Search,
    typer.Option(
        help="training: plan by dnnc's own search, which bounds all plans, or by TAG's tree search over op groups and device "
        "groups.",
    ),
]
SearchPrior = Annotated[
    Path | None,
    typer.Option("--search-prior", metavar="FILE.npz", help="With --search tag: a prior that 'dnnc tag train' wrote."),
]
Iterations = Annotated[
    int | None,
    typer.Option(min=1, max=1 << 20, metavar="N", help="With --search tag: iterations of the search (default: 1000)."),
]
ReportPage = Annotated[
    bool,
    typer.Option(
        "--report/--no-report", help="Write the plan as a web page, report.html, into DIR (default: yes).", show_default=False
    ),
]
Prove = Annotated[
    bool,
    typer.Option(
        "--prove",
        help="Show for all inputs that the programs compute the model, as 'dnnc check --prove' does. A build that is not "
        "proven is written, and the exit code is 5.",
    ),
]
LoadTest = Annotated[
    bool,
    typer.Option("--load-test/--no-load-test", help="Open each program in onnxruntime before the build counts as done."),
]


def options_of(given: Mapping[str, Any], **parsed: Any) -> CompileOptions:
    """The options of a compilation, of which ``given`` and ``parsed`` are as for ``named``."""
    from dnnc.compile.flags import CompileOptions
    from dnnc.compile.training import TrainingOptions

    return opt.named(CompileOptions, given, training=opt.named(TrainingOptions, given), **parsed)
