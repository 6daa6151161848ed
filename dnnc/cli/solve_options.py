"""The options of ``dnnc solve`` and ``dnnc verify-plan``: what the latter reads in a result unless it is told is ``Stated``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dnnc.cli import options as opt


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


class Split(StrEnum):
    """Which splits are allowed."""

    CONTIGUOUS = "contiguous"
    ANY = "any"


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
        help="The devices of a TOML or JSON file, or of preset:NAME, instead of FILE's machines: of any number of types.",
        autocompletion=opt.complete_topology,
        show_default=False,
    ),
]
BytesOption = Annotated[
    bool,
    typer.Option("--bytes", help="-t: transfers are FILE's bytes over the links of TOPOLOGY, whatever seconds it states."),
]
FormatOption = Annotated[
    Format | None, typer.Option("--format", help="What FILE is (default: told by its text).", show_default=False)
]
AcceleratorsOption = Annotated[
    int | None, typer.Option("--accelerators", "-k", min=0, max=65536, metavar="K", help="Accelerators, instead of the file's.")
]
CpusOption = Annotated[int | None, typer.Option("--cpus", min=0, max=65536, metavar="L", help="CPUs, instead of the file's.")]
MemoryOption = Annotated[
    str | None, typer.Option("--memory", metavar="SIZE", help="Memory of each accelerator: 16GiB, or a number of bytes.")
]
BandwidthOption = Annotated[
    str | None,
    typer.Option("--bandwidth", metavar="RATE", help="Link of each accelerator: 10GB/s; transfers are then bytes over it."),
]
CommOption = Annotated[opt.Comm, typer.Option(help="How compute and transfers of a device add up.")]
ForwardOption = Annotated[bool, typer.Option("--forward", help="Leave backward nodes out: inference.")]
SplitOption = Annotated[Split, typer.Option(help="contiguous: data flows forward only between devices; any: back and forth.")]
Straight = Annotated[bool, typer.Option("--straight", help="pipedream: one accelerator per stage, no replicas.")]
Schedule = Annotated[
    TrainingSchedule | None,
    typer.Option(
        help="training: 1f1b (max FW + BW, default) or gpipe (max FW + max BW); pipedream: what memory holds (default: stash).",
        show_default=False,
    ),
]
Microbatches = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1 << 20,
        metavar="M",
        help="pipedream (flush, gpipe), training with replicas: microbatches between two flushes.",
    ),
]
Replicas = Annotated[
    int,
    typer.Option(
        min=1,
        max=1024,
        metavar="R",
        help="throughput, training: a stage may run on up to R devices, which take samples in turn.",
    ),
]
Hierarchy = Annotated[
    str | None,
    typer.Option(
        metavar="GxS",
        help="throughput, pipedream: G groups of S accelerators, joined at --bandwidth, with --inner-bandwidth inside.",
    ),
]
InnerBandwidth = Annotated[
    str | None, typer.Option("--inner-bandwidth", metavar="RATE", help="Links inside a group of --hierarchy: 100GB/s.")
]
Pieces = Annotated[
    int, typer.Option(min=1, max=64, metavar="Q", help="latency: an accelerator runs up to Q pieces, one after another.")
]
MethodOption = Annotated[Method, typer.Option(help="exact, or a baseline to compare it with.")]
Compare = Annotated[bool, typer.Option("--compare", help="Every method beside the exact one.")]
Expert = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A split made by hand, for --method expert and --compare: the reference's result format, "
        "a result of --json, or a profile with stage_id.",
    ),
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0.0,
        max=opt.MOST_SECONDS,
        callback=opt.finite,
        help="Longest search for a better plan; the gap stays stated.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--out",
        metavar="FILE",
        help="Also write the reference's result format (maxLoad, fpgas, cpus), and in 'dnnc' what it is of.",
    ),
]
Result = Annotated[Path, typer.Argument(metavar="RESULT", help="What 'dnnc solve' printed with --json, or wrote with -o.")]
StatedComm = Annotated[
    opt.Comm | None,
    typer.Option(help="How compute and transfers add up (default: as RESULT says, else sum).", show_default=False),
]
StatedSplit = Annotated[
    Split | None, typer.Option(help="What to check (default: as RESULT says, else contiguous).", show_default=False)
]
StatedSchedule = Annotated[
    TrainingSchedule | None,
    typer.Option(help="training, pipedream: the schedule (default: as RESULT says).", show_default=False),
]
StatedStraight = Annotated[bool, typer.Option("--straight", help="pipedream: no stage may have replicas.")]
StatedMicrobatches = Annotated[
    int | None, typer.Option(min=1, max=1 << 20, metavar="M", help="pipedream, training: microbatches between two flushes.")
]
StatedPieces = Annotated[
    int | None, typer.Option(min=1, max=64, metavar="Q", help="latency: rows of 'fpgas' that each accelerator has.")
]
StatedHierarchy = Annotated[str | None, typer.Option(metavar="GxS", help="G groups of S accelerators, in the order of RESULT.")]
