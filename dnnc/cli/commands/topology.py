"""``dnnc topology``: look at descriptions of machines, check them, and make them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dnnc.cli.commands import machine
from dnnc.cli.console import put, put_json, show_warnings
from dnnc.cli.logs import with_verbose
from dnnc.cli.options import shared as opt
from dnnc.cli.panels import PanelGroup
from ir.core.diagnostics import DiagnosticSink

if TYPE_CHECKING:
    from ir.core.topology import Topology

app = typer.Typer(
    cls=PanelGroup, help="Descriptions of the machines that a plan may use.", no_args_is_help=True, rich_markup_mode=None
)

_LOOK, _MAKE = "Look at them", "Make them"
"""Panels of the commands."""

TopologyArgument = Annotated[
    str,
    typer.Argument(metavar="TOPOLOGY", help="A TOML or JSON file, or preset:NAME.", autocompletion=opt.complete_topology),
]


@app.command(rich_help_panel=_LOOK)
def show(
    topology: TopologyArgument,
    ir: Annotated[bool, typer.Option("--ir", help="Print IR text, which has the exact numbers.")] = False,
    toml: Annotated[bool, typer.Option("--toml", help="Print a TOML file that reads back equal.")] = False,
    json: opt.JsonOption = False,
) -> None:
    """Print the devices, hosts and links of TOPOLOGY."""
    from dnnc.machines import machines_of
    from dnnc.machines.topology import topology_to_toml

    sink = DiagnosticSink()
    loaded = machines_of(topology, sink)
    show_warnings(sink.diagnostics)
    if toml:
        put(topology_to_toml(loaded).rstrip("\n"))
    elif json:
        from dataclasses import asdict

        put_json("topology", {"topology": asdict(loaded)})
    elif ir:
        from ir import Module, print_module

        put(print_module(Module(loaded.name, (loaded,))))
    else:
        from dnnc.report import topology_text

        put(topology_text(loaded))


@app.command(rich_help_panel=_LOOK)
def validate(
    topologies: Annotated[list[str], typer.Argument(metavar="TOPOLOGY...", help="Files or presets to check.")],
) -> None:
    """Check TOPOLOGY files: print what each holds, or what is wrong and where."""
    from dnnc.machines.topology import load_topology
    from ir.core.diagnostics import Diagnostic, InvalidInput

    faults: list[Diagnostic] = []
    for spec in topologies:
        sink = DiagnosticSink()
        try:
            put(f"{spec}: ok, {_contents(load_topology(spec, sink))}")
        except InvalidInput as error:
            faults += error.diagnostics
        show_warnings(sink.diagnostics)
    if faults:
        raise InvalidInput(faults)


@app.command(rich_help_panel=_LOOK)
def presets(json: opt.JsonOption = False) -> None:
    """List the machines that come with dnnc."""
    from dnnc.machines.presets import preset_names
    from dnnc.report import Table, columns, table_text

    names = [*preset_names(), ("local", "this machine as it is now, detected and measured")]
    if json:
        put_json("presets", {"presets": [{"name": name, "help": text} for name, text in names]})
    else:
        put(table_text(Table(columns("<preset <machine"), tuple((f"preset:{name}", text) for name, text in names))))


app.command(short_help="Describe this host: cores, memory, GPUs.", rich_help_panel=_MAKE)(machine.detect)
app.command(short_help="Measure the devices of this host.", rich_help_panel=_MAKE)(with_verbose(machine.measure))
app.command(rich_help_panel=_MAKE)(machine.merge)


def _contents(topology: Topology) -> str:
    counts = {
        "host": len(topology.hosts),
        "device": len(topology.devices),
        "switch": len(topology.switches),
        "link": len(topology.links),
    }
    plural = {"switch": "switches"}
    return ", ".join(f"{n} {word if n == 1 else plural.get(word, word + 's')}" for word, n in counts.items() if n)
