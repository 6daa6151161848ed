"""Shows a topology: device types, hosts with their devices, and links. Equal devices and links share a row."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from dnnc.report.tables import Table, columns, table_text
from ir.core.topology import DeviceType, Link, Topology
from ir.text.units import bytes_text, rate_text, seconds_text


def topology_text(topology: Topology) -> str:
    """Tables of device types, devices and links."""
    parts = [
        f"{topology.name.removeprefix('@')}: {_count(len(topology.devices), 'device')}, {_count(len(topology.hosts), 'host')}\n"
    ]
    rows = []
    providers = any(type_.provider for type_ in topology.types)
    for type_ in topology.types:
        bandwidth = rate_text(type_.memory_bandwidth, "B/s") if type_.memory_bandwidth else "-"
        shown = (type_.provider or "-",) if providers else ()
        cells = (
            type_.name.removeprefix("@"),
            type_.kind,
            _limit(type_.memory),
            bandwidth,
            seconds_text(type_.overhead),
            *shown,
        )
        for number, peak in enumerate(_peaks(type_) or ("-",)):
            rows.append((*(cells if number == 0 else ("",) * len(cells)), peak))
    heads = f"<type <kind memory bandwidth per_op {'<provider ' if providers else ''}<peak"
    parts.append(table_text(Table(columns(heads), tuple(rows))))
    devices = []
    for _, run in groupby(topology.devices, key=lambda d: (d.type, d.host, topology.memory(d))):
        members = list(run)
        first = members[0]
        memory = first.memory if first.memory is not None else topology.type(first.type).memory
        names = _span([device.name for device in members])
        devices.append((names, str(len(members)), first.type.removeprefix("@"), first.host, _limit(memory)))
    parts.append(table_text(Table(columns("<devices count <type <host memory"), tuple(devices))))
    if topology.links:
        links = []
        for _, run_ in groupby(topology.links, key=_link_kind):
            same = list(run_)
            first_link = same[0]
            ends = "-".join(first_link.ends) if len(same) == 1 and len(first_link.ends) <= 3 else f"{len(_ends(same))} points"
            mode = first_link.duplex + (" shared" if first_link.shared else "")
            bandwidth = rate_text(first_link.bandwidth, "B/s")
            links.append(
                (_span([link.name for link in same]), str(len(same)), ends, bandwidth, seconds_text(first_link.latency), mode)
            )
        parts.append(table_text(Table(columns("<links count <ends bandwidth latency <mode"), tuple(links))))
    return "\n".join(parts)


def _peaks(type_: DeviceType) -> list[str]:
    """Peak rates, fastest first; element types with equal rates are joined."""
    by_rate: dict[float, list[str]] = {}
    for dtype, rate in type_.rates:
        by_rate.setdefault(rate, []).append(dtype)
    return [f"{rate_text(rate, 'FLOP/s')} {'/'.join(by_rate[rate])}" for rate in sorted(by_rate, reverse=True)]


def _limit(memory: int | None) -> str:
    return "unlimited" if memory is None else bytes_text(memory)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _span(names: list[str]) -> str:
    """``first .. last`` for several names."""
    return names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}"


def _link_kind(link: Link) -> tuple[Link, bool]:
    """The properties of a link except its ends: links with equal properties share a row."""
    return replace(link, name="", ends=()), len(link.ends) > 2


def _ends(links: list[Link]) -> set[str]:
    return {end for link in links for end in link.ends}
