"""Options that several commands share, their parsing, and what the shell completes for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from dnnc.cli.faults import (
    NamedTwice,
    NotACount,
    NotADimension,
    NotALimit,
    NotAPair,
    NotARange,
    NotAStageCount,
    NotFinite,
    ObjectiveOfSolve,
    RangeNotTaken,
    UnknownLimit,
    UnknownObjective,
)
from ir.core.diagnostics import UsageError
from ir.core.limits import LIMITS, MOST_SECONDS, OPTIONS, Limits
from ir.core.objectives import OBJECTIVES, Planned, offered

if TYPE_CHECKING:
    from dnnc.engines.hosts.options import ClusterOptions

R = TypeVar("R")


def finite(value: float | None, param: typer.CallbackParam) -> float | None:
    """A callback that refuses infinity and NaN, for options of floats: the check of a range lets NaN pass."""
    if value is not None and not math.isfinite(value):
        raise UsageError(NotFinite(value), where=param.opts[0])
    return value


def time_limit(help: str) -> Any:
    """The option ``--time-limit``, with the help of its command."""
    return typer.Option("--time-limit", metavar="SECONDS", min=0.0, max=MOST_SECONDS, callback=finite, help=help)


def complete_zoo(incomplete: str) -> list[str]:
    """Models of the zoo, ``zoo:`` in front."""
    from dnnc.zoo import entries

    return [name for entry in entries() if (name := f"zoo:{entry.name}").startswith(incomplete)]


def complete_model(incomplete: str) -> list[str]:
    """Zoo models, then files of the right kind."""
    return complete_zoo(incomplete) + _files(incomplete, (".onnx", ".ir", ".json", ".txt"))


def complete_topology(incomplete: str) -> list[str]:
    """Presets, then files of the right kind."""
    from dnnc.machines.presets import preset_names

    names = ["preset:local"]
    names += [f"preset:{example}" for name, _ in preset_names() for example in (name.replace("N", "2").replace("M", "8"),)]
    return [name for name in names if name.startswith(incomplete)] + _files(incomplete, (".toml", ".json"))


def _files(incomplete: str, suffixes: tuple[str, ...]) -> list[str]:
    """Paths that begin with ``incomplete``: folders (with a slash) and files with one of the suffixes."""
    folder, _, start = incomplete.rpartition("/")
    root = Path(f"{folder}/") if folder or incomplete.startswith("/") else Path()
    prefix = f"{folder}/" if "/" in incomplete else ""
    try:
        entries = sorted(root.iterdir())
    except OSError:
        return []
    return [
        f"{prefix}{entry.name}{'/' if entry.is_dir() else ''}"
        for entry in entries
        if entry.name.startswith(start)
        and (entry.is_dir() or entry.suffix in suffixes)
        and (start or not entry.name.startswith("."))
    ]


class Weights(StrEnum):
    """Where the stage programs keep their weights."""

    SHARED = "shared"
    PER_STAGE = "per-stage"
    NONE = "none"


class Comm(StrEnum):
    """How a device's compute and transfers add up."""

    SUM = "sum"
    OVERLAP = "overlap"
    DUPLEX = "duplex"


def _known(*planned: Planned) -> Callable[[str | None], str | None]:
    """A callback that refuses the name of an objective that no search of ``planned`` minimises."""

    def check(name: str | None) -> str | None:
        known = offered(*planned)
        if name is not None and name not in (objective.name for objective in known):
            elsewhere = name in (objective.name for objective in OBJECTIVES)
            names = tuple(objective.name for objective in known)
            fault = ObjectiveOfSolve(name, names) if elsewhere else UnknownObjective(name, names)
            raise UsageError(fault, where="--objective")
        return name

    return check


def _objective(*planned: Planned, default: str) -> Any:
    """The option ``--objective`` of a command that plans ``planned``, with the help of each objective."""
    known = offered(*planned)
    return typer.Option(
        "--objective",
        metavar=f"[{'|'.join(objective.name for objective in known)}]",
        help=f"{'; '.join(f'{objective.name}: {objective.help}' for objective in known)} (default: {default}).",
        callback=_known(*planned),
        autocompletion=lambda incomplete: [one.name for one in known if one.name.startswith(incomplete)],
        show_default=False,
    )


CompileObjective = Annotated[
    str | None,
    _objective(
        Planned.OPS,
        Planned.MESHES,
        Planned.PROFILE,
        default="throughput; of a profile with backward times training",
    ),
]
SolveObjective = Annotated[str | None, _objective(Planned.PAPER, default="what the file is for")]


class Split(StrEnum):
    """Which splits are allowed."""

    CONTIGUOUS = "contiguous"
    ANY = "any"


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="An ONNX file, zoo:NAME[,option=value...], or a profile (JSON, .txt, .ir).",
        autocompletion=complete_model,
    ),
]
BuildArgument = Annotated[Path, typer.Argument(metavar="DIR", help="A directory that 'dnnc compile' wrote.")]
TopologyOption = Annotated[
    str,
    typer.Option(
        "-t",
        "--topology",
        metavar="TOPOLOGY",
        help="A TOML or JSON file, or preset:NAME ('dnnc topology presets').",
        autocompletion=complete_topology,
    ),
]
DimOption = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar="NAME=VALUE",
        help="Bind a symbolic dimension, by its name or as INPUT.AXIS: a number, another's name, or (compile) the range of "
        "sizes that a build shall take, 1..512, planned for the largest. Repeatable.",
    ),
]
LimitOption = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME=NUMBER",
        help="Accept more of MODEL than by default. inlined-nodes: nodes that its functions may expand to; inference-bytes: "
        "memory of shape inference; inference-seconds: its time; sparse-bytes: one sparse tensor written out. Repeatable.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
ShortOption = Annotated[
    bool,
    typer.Option(
        "--short",
        help="Print the IR for a person: no locations, facts and long data. It does not read back the same.",
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
TimingOption = Annotated[bool, typer.Option("--timing", help="Print the seconds of each pass to standard error.")]
PrintBeforeOption = Annotated[
    list[str] | None, typer.Option("--print-before", metavar="PASS|all", help="Print the IR before a pass. Repeatable.")
]
PrintAfterOption = Annotated[
    list[str] | None, typer.Option("--print-after", metavar="PASS|all", help="Print the IR after a pass. Repeatable.")
]
PrintChangeOption = Annotated[bool, typer.Option("--print-on-change", help="Print the IR after each pass that changed it.")]
RunsOption = Annotated[
    Path | None,
    typer.Option("--runs", metavar="FILE.csv", help="Add what was measured to this file, a row for 'dnnc calibrate'."),
]
ClusterOption = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="HOST:PORT",
        help="Run each device on its host: a node of the Ray cluster whose head is there.",
    ),
]
HostNodesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        metavar="NAME=NODE",
        help="The node of a host: address, host name or id. Else that with the resource 'host:NAME', or one that suffices.",
    ),
]
PortsOption = Annotated[
    str, typer.Option("--ports", metavar="FIRST-LAST", help="Ports on which hosts listen for values of each other.")
]
PORTS = "26000-26999"
WaitOption = Annotated[
    float,
    typer.Option(
        "--wait",
        min=0.0,
        max=MOST_SECONDS,
        callback=finite,
        metavar="SECONDS",
        help="How long a host that was lost may take to be back, before the run ends. 0: not at all.",
    ),
]
WAIT = 60.0
EmulateOption = Annotated[
    bool,
    typer.Option(
        "--emulate",
        help="Run what is for several hosts or other devices on the CPU of this host, to check its numbers.",
    ),
]
PrintFolderOption = Annotated[
    Path | None,
    typer.Option("--print-folder", metavar="DIR", help="Print to one file per pass in DIR, not to standard error."),
]


def parse_pairs(items: Iterable[str] | None, option: str, expected: str) -> dict[str, str]:
    """``["a=1", "b=2"]`` as a dict, in order. Raises UsageError for an item without ``=`` or a name given twice."""
    pairs: dict[str, str] = {}
    for item in items or ():
        name, equals, value = item.rpartition("=")
        if not equals or not name or not value:
            raise UsageError(NotAPair(option, item, expected, _example(option)), where=option)
        if pairs.setdefault(name, value) != value:
            raise UsageError(NamedTwice(name, pairs[name], value), where=option)
    return pairs


def _example(option: str) -> str:
    examples = {"--dim": "batch=8", "--limit": "inlined-nodes=50000"}
    return examples.get(option, "/encoder/MatMul=cpu0")


def parse_stages(text: str | None, mesh: bool) -> int | None:
    """``--stages`` as a number; None if it is not given. ``auto`` is 0 with a mesh, else None. Raises UsageError."""
    if text is None or (text == "auto" and not mesh):
        return None
    if text == "auto":
        return 0
    if not text.isdecimal() or len(text) > 9 or (int(text) == 0 and not mesh):
        raise UsageError(NotAStageCount(text), where="--stages")
    return int(text)


def parse_count(text: str | None, option: str) -> int | None:
    """A number, 0 for ``auto``; None if it is not given. Raises UsageError."""
    if text is None or text == "auto":
        return None if text is None else 0
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= 1 << 20:
        raise UsageError(NotACount(text), where=option)
    return int(text)


def cluster_options(
    address: str, hosts: list[str] | None, ports: str, wait: float = WAIT, *, emulate: bool = False
) -> ClusterOptions | None:
    """What ``--cluster``, ``--host``, ``--ports`` and ``--wait`` state of a cluster; None without one. Raises UsageError."""
    from dnnc.engines.hosts.options import stated_cluster, stated_hosts

    return stated_cluster(address, stated_hosts(hosts or ()), ports, wait, emulate=emulate)


def parse_limits(items: Iterable[str] | None) -> Limits:
    """``--limit`` options over the default limits. Raises UsageError."""
    limits = {}
    for name, value in parse_pairs(items, "--limit", "NAME=NUMBER").items():
        field = name.replace("-", "_")
        if field not in OPTIONS:
            known = tuple(option.replace("_", "-") for option in OPTIONS)
            raise UsageError(UnknownLimit(name, known), where="--limit")
        if not (value.isascii() and value.isdecimal()) or len(value) > 18:
            raise UsageError(NotALimit(name, value[:40]), where="--limit")
        limits[field] = int(value)
    return replace(LIMITS, **limits)


def parse_dims(items: Iterable[str] | None) -> dict[str, int | str]:
    """``--dim`` options: a number, 0 for an empty dimension, or the name of another dimension. Raises UsageError."""
    dims: dict[str, int | str] = {}
    for name, value in parse_sizes(items).items():
        if isinstance(value, range):
            raise UsageError(RangeNotTaken(name, value.start, value.stop - 1), where="--dim")
        dims[name] = value
    return dims


def parse_sizes(items: Iterable[str] | None) -> dict[str, int | str | range]:
    """``--dim`` options that may be a range too: ``1..512``. Raises UsageError."""
    dims: dict[str, int | str | range] = {}
    for name, value in parse_pairs(items, "--dim", "NAME=VALUE").items():
        least, dots, most = value.partition("..")
        if dots and (least.isdecimal() or most.isdecimal()):
            if len(most) > 19 or not (least.isdecimal() and most.isdecimal() and int(least) <= int(most)):
                raise UsageError(NotARange(name, value[:40]), where="--dim")
            dims[name] = range(int(least), int(most) + 1)
            continue
        if value.lstrip("+-").isdecimal():
            if len(value) > 19 or int(value) < 0:
                raise UsageError(NotADimension(name, value[:40]), where="--dim")
            dims[name] = int(value)
        else:
            dims[name] = value
    return dims


def named(record: type[R], given: Mapping[str, Any], **parsed: Any) -> R:
    """A record of options. ``given``: parameters of a command, of which those count that have the name of a field; None is the
    field's default. ``parsed``: fields that are not their parameter as it is."""
    names = {one.name for one in fields(record)} - parsed.keys()  # type: ignore[arg-type]
    own = {name: given.get(name) for name in names}
    return record(**{name: _as_field(value) for name, value in own.items() if value is not None}, **parsed)


def _as_field(value: Any) -> Any:
    return value.value if isinstance(value, StrEnum) else tuple(value) if isinstance(value, list) else value
