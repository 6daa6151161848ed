"""``dnnc cluster``: looks at the machines of a Ray cluster before something runs on them."""

from __future__ import annotations

import typer

from dnnc.cli.console import put, put_json, show_warnings
from dnnc.cli.options import shared as opt
from dnnc.cli.panels import PanelGroup
from ir.core.diagnostics import DiagnosticSink, InvalidInput

app = typer.Typer(
    cls=PanelGroup, help="Machines that several hosts of a plan run on.", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def _group() -> None:
    pass


@app.command()
def check(
    topology: opt.TopologyOption,
    cluster: opt.ClusterOption,
    host: opt.HostNodesOption = None,
    ports: opt.PortsOption = opt.PORTS,
    json: opt.JsonOption = False,
) -> None:
    """Ask the node of each host of a topology what it has; exit 3 names what is missing for a run."""
    from dnnc.engines.hosts.options import ClusterOptions, port_range, require_packages, stated_hosts
    from dnnc.machines import machines_of

    options = ClusterOptions(cluster, stated_hosts(host or ()), port_range(ports))
    require_packages()
    from dnnc.engines.cluster.nodes.survey import survey

    sink = DiagnosticSink()
    machines = machines_of(topology, sink)
    show_warnings(sink.diagnostics)
    found = survey(machines, options)
    if json:
        put_json("cluster", {"hosts": [one.to_json() for one in found]})
    else:
        from dnnc.report import Table, columns, print_table
        from ir.text.units import bytes_text

        rows = tuple(
            (
                one.host,
                str(one.node),
                str(one.facts.cores),
                bytes_text(one.facts.memory),
                bytes_text(one.facts.disk),
                f"{one.clock * 1e3:+.1f} ms",
                ", ".join(f"{name} {version}" for name, version in one.facts.versions.items() if version),
                ", ".join(name.removesuffix("ExecutionProvider") for name in one.facts.providers),
            )
            for one in found
        )
        print_table(Table(columns("host <node cores memory disk clock <versions <providers"), rows))
    if faults := [fault for one in found for fault in one.faults]:
        raise InvalidInput(faults)
    if not json:
        put("\nevery host has what its devices need, and all reach each other")
