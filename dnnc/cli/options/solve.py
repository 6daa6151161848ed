"""The options of ``dnnc solve`` and ``dnnc verify-plan``: what the latter reads in a result unless it is told is ``Stated``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dnnc.cli.options import shared as opt


class Format(StrEnum):
    """What the file is."""

    DEVICE_PLACEMENT = "device-placement"
    PIPEDREAM = "pipedream"


class Method(StrEnum):
    """How to split: exactly, or as others would."""

    EXACT = "exact"
    ONE_DEVICE = "one-device"
    GREEDY = "greedy"
    TOPOLOGICAL = "topological"
    PIPEDREAM_STYLE = "pipedream-style"
    LOCAL_SEARCH = "local-search"
    METIS = "metis"
    EXPERT = "expert"


class TrainingSchedule(StrEnum):
    """The order of forward and backward passes: what training minimises, what a machine holds under PipeDream's objective."""

    ONE_F_ONE_B = "1f1b"
    STASH = "stash"
    TWO_BUFFERS = "2bw"
    FLUSH = "flush"
    GPIPE = "gpipe"


FileArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="Device-placement JSON, a PipeDream profile (graph.txt), or either as IR text (.ir).",
        show_default=False,
    ),
]
TopologyOption = Annotated[
    str | None,
    typer.Option(
        "-t",
        "--topology",
        metavar="TOPOLOGY",
        help="Use the devices of a TOML or JSON file, or of preset:NAME, in place of FILE's machines.",
        autocompletion=opt.complete_topology,
        show_default=False,
    ),
]
BytesOption = Annotated[
    bool,
    typer.Option(
        "--bytes", help="With -t: compute transfers from FILE's bytes and the links, even where FILE states their seconds."
    ),
]
FormatOption = Annotated[
    Format | None, typer.Option("--format", help="The format of FILE (default: recognised by its text).", show_default=False)
]
AcceleratorsOption = Annotated[
    int | None,
    typer.Option("--accelerators", "-k", min=0, max=65536, metavar="K", help="Number of accelerators (default: as FILE says)."),
]
CpusOption = Annotated[
    int | None, typer.Option("--cpus", min=0, max=65536, metavar="L", help="Number of CPUs (default: as FILE says).")
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="Memory of each accelerator, such as 16GiB, or a number of bytes (default: as FILE says).",
    ),
]
BandwidthOption = Annotated[
    str | None,
    typer.Option(
        "--bandwidth",
        metavar="RATE",
        help="Bandwidth of each accelerator's link, such as 10GB/s. A transfer then takes bytes / RATE, not the seconds that "
        "FILE states.",
    ),
]
CommOption = Annotated[opt.Comm, typer.Option(help="throughput: how the compute and the transfers of a device add up.")]
ForwardOption = Annotated[bool, typer.Option("--forward", help="Drop the backward pass: plan inference.")]
SplitOption = Annotated[
    opt.Split, typer.Option(help="contiguous: data flows forward only from device to device; any: back and forth.")
]
Straight = Annotated[bool, typer.Option("--straight", help="pipedream: give each stage one accelerator, without replicas.")]
Schedule = Annotated[
    TrainingSchedule | None,
    typer.Option(
        help="The order of forward (FW) and backward (BW) passes. training: 1f1b (default) minimises max(FW + BW) over "
        "devices, gpipe max(FW) + max(BW); pipedream: stash (default), 2bw, flush or gpipe, which differ in what memory holds.",
        show_default=False,
    ),
]
Microbatches = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1 << 20,
        metavar="M",
        help="pipedream, and training with replicas: microbatches between two flushes; gpipe needs it.",
    ),
]
Replicas = Annotated[
    int,
    typer.Option(
        min=1,
        max=1024,
        metavar="R",
        help="throughput, training: run a stage on up to R devices, which take samples in turn.",
    ),
]
Hierarchy = Annotated[
    str | None,
    typer.Option(
        metavar="GxS",
        help="throughput, pipedream: G groups of S accelerators, with links of --inner-bandwidth in a group and --bandwidth "
        "between groups.",
    ),
]
InnerBandwidth = Annotated[
    str | None,
    typer.Option(
        "--inner-bandwidth", metavar="RATE", help="With --hierarchy: bandwidth of the links in a group, such as 100GB/s."
    ),
]
Pieces = Annotated[
    int,
    typer.Option(min=1, max=64, metavar="Q", help="latency: give an accelerator up to Q pieces, which run one after another."),
]
MethodOption = Annotated[
    Method,
    typer.Option(help="exact: prove how good the split is; the others are baselines, and expert is the split of --expert."),
]
Compare = Annotated[bool, typer.Option("--compare", help="Run the baselines too, and list all results.")]
Expert = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A split made by hand, for --method expert or --compare: in the format of -o or --json, or a profile with "
        "stage_id.",
    ),
]
TimeLimit = Annotated[
    float | None,
    opt.time_limit("End the search after this time, with the best split so far and its gap."),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--out",
        metavar="FILE",
        help="Also write the split to FILE, in the format of the papers' solver (maxLoad, fpgas, cpus; the key dnnc is added).",
    ),
]
PlanOrFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE|DIR",
        help="Device-placement JSON, a PipeDream profile (graph.txt), or either as IR text (.ir); or a directory that 'dnnc "
        "compile' wrote.",
        show_default=False,
    ),
]
Result = Annotated[
    Path | None,
    typer.Argument(
        metavar="[RESULT]",
        help="The split of FILE that 'dnnc solve' printed with --json or wrote with -o.",
        show_default=False,
    ),
]
PlainSearch = Annotated[
    bool,
    typer.Option(
        "--search",
        help="DIR: also search all plans on devices and replicas plainly, where the model is small, and compare the bound.",
    ),
]
StatedComm = Annotated[
    opt.Comm | None,
    typer.Option(
        help="throughput: how the compute and the transfers of a device add up (default: as RESULT says, else sum).",
        show_default=False,
    ),
]
StatedSplit = Annotated[
    opt.Split | None,
    typer.Option(
        help="contiguous: check that data flows forward only; any: do not (default: as RESULT says, else contiguous).",
        show_default=False,
    ),
]
StatedSchedule = Annotated[
    TrainingSchedule | None,
    typer.Option(
        help="training, pipedream: the order of forward and backward passes (default: as RESULT says).", show_default=False
    ),
]
StatedStraight = Annotated[bool, typer.Option("--straight", help="pipedream: check that no stage has replicas.")]
StatedMicrobatches = Annotated[
    int | None, typer.Option(min=1, max=1 << 20, metavar="M", help="pipedream, training: microbatches between two flushes.")
]
StatedPieces = Annotated[
    int | None, typer.Option(min=1, max=64, metavar="Q", help="latency: the number of rows of 'fpgas' per accelerator.")
]
StatedHierarchy = Annotated[
    str | None, typer.Option(metavar="GxS", help="throughput, pipedream: G groups of S accelerators, in the order of RESULT.")
]
