"""A topology as TOML text that reads back equal: ``read_topology(topology_to_toml(t)) == t``.

Neighbours that differ only in a consecutive number are one entry with a pattern. The names of the topology must be those that
the format allows, and its types must state rates and a memory bandwidth.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

from dnnc.machines.topology.quantities import Quantity, quantity_text
from dnnc.machines.topology.reader import VERSION
from ir.core.topology import Device, DeviceType, Host, Link, Topology

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")
_NUMBERED = re.compile(r"(.*?)(0|[1-9][0-9]{0,8})([^0-9]*)\Z")
T = TypeVar("T", Host, Device)
Fields = Sequence[tuple[str, str]]
Notes = Mapping[tuple[str, str], str]
"""Comments by table and key. Tables: ``types.core``, ``hosts.a``, ``devices.cpu0``, ``links.memory`` (of a pattern, its first
name), ``""`` for the file. Key ``""``: the table itself, whose comment may have several lines."""


def topology_to_toml(topology: Topology, notes: Notes | None = None) -> str:
    """The text of ``topology`` in the format of ``dnnc/machines/README.md``, with ``notes`` as comments."""
    notes = notes or {}
    lines = [*_remarks(notes, ""), f"version = {VERSION}", f"name = {_text(topology.name[1:])}"]
    if topology.switches:
        lines.append(f"switches = {_list(_patterns(switch.name for switch in topology.switches))}")
    for type_ in topology.types:
        table = f"types.{type_.name}"
        lines += ["", *_remarks(notes, table), f"[types.{_key(type_.name)}]", *_assignments(_type(type_), notes, table)]
    for kind, points in (
        ("hosts", _runs(topology.hosts, _host)),
        ("devices", _runs(topology.devices, _device)),
    ):
        for names, fields in points:
            table = f"{kind}.{_first(names)}"
            lines += ["", *_remarks(notes, table), f"[[{kind}]]"]
            lines += _assignments([("name", _text(names)), *fields], notes, table)
    for first, fields in _links(topology.links):
        table = f"links.{first}"
        lines += ["", *_remarks(notes, table), "[[links]]", *_assignments(fields, notes, table)]
    for route in topology.routes:
        fields = [("from", _text(route.source)), ("to", _text(route.target)), ("links", _list(route.links))]
        lines += ["", "[[routes]]", *_assignments(fields, notes, "routes")]
    return "\n".join(lines) + "\n"


def _type(type_: DeviceType) -> Fields:
    fields = [("kind", _text(type_.kind))]
    if type_.cores > 1:
        fields.append(("cores", str(type_.cores)))
    rates = [f"{dtype} = {_text(quantity_text(rate, Quantity.RATE))}" for dtype, rate in type_.rates]
    fields.append(("rates", f"{{ {', '.join(rates)} }}"))
    if type_.scalar_rate:
        fields.append(("scalar_rate", _text(quantity_text(type_.scalar_rate, Quantity.RATE).replace("FLOP/s", "OP/s"))))
    fields.append(("memory_bandwidth", _text(quantity_text(type_.memory_bandwidth, Quantity.BANDWIDTH))))
    if type_.memory is not None:
        fields.append(("memory", _text(quantity_text(type_.memory, Quantity.MEMORY))))
    if type_.reserved:
        fields.append(("reserved", _text(quantity_text(type_.reserved, Quantity.MEMORY))))
    if type_.overhead:
        fields.append(("overhead", _text(quantity_text(type_.overhead, Quantity.TIME))))
    if type_.launch:
        fields.append(("launch", _text(quantity_text(type_.launch, Quantity.TIME))))
    if type_.handover:
        fields.append(("handover", _text(quantity_text(type_.handover, Quantity.TIME))))
    if type_.overlap is not None:
        fields.append(("overlap", f"{type_.overlap!r}"))
    if type_.efficiency:
        parts = [f"{_key(kind)} = {fraction!r}" for kind, fraction in type_.efficiency]
        fields.append(("efficiency", f"{{ {', '.join(parts)} }}"))
    if type_.free_transfers:
        fields.append(("free_transfers", "true"))
    if type_.source:
        fields.append(("source", _text(type_.source)))
    if type_.provider:
        fields.append(("provider", _text(type_.provider)))
    if type_.provider_options:
        parts = [f"{_key(key)} = {_text(value)}" for key, value in type_.provider_options]
        fields.append(("provider_options", f"{{ {', '.join(parts)} }}"))
    if products := _products(type_):
        fields.append(("products", f"{{ {', '.join(products)} }}"))
    return fields


def _products(type_: DeviceType) -> list[str]:
    kinds = {"unit_bandwidth": Quantity.BANDWIDTH, "store_bandwidth": Quantity.BANDWIDTH, "cache": Quantity.MEMORY}
    kinds |= {"cache_bandwidth": Quantity.BANDWIDTH, "step": Quantity.TIME, "split": Quantity.TIME}
    parts = [f"{key} = {_text(quantity_text(value, kind))}" for key, kind in kinds.items() if (value := getattr(type_, key))]
    return [f"units = {type_.units}", *parts, f"balance = {type_.balance!r}"] if type_.units else parts


def _host(host: Host) -> Fields:
    fields = [] if host.cores is None else [("cores", str(host.cores))]
    if host.memory is not None:
        fields.append(("memory", _text(quantity_text(host.memory, Quantity.MEMORY))))
    return [*fields, ("address", _text(host.address))] if host.address else fields


def _device(device: Device) -> Fields:
    fields = [("type", _text(device.type)), ("host", _text(device.host))]
    if device.memory is not None:
        fields.append(("memory", _text(quantity_text(device.memory, Quantity.MEMORY))))
    return fields if device.device_id is None else [*fields, ("device_id", str(device.device_id))]


def _links(links: Sequence[Link]) -> Iterable[tuple[str, Fields]]:
    """Entries of the links, each with the name of its first link. Links from several points to one or as many others are one
    entry if the reader gives them the names that they have."""
    taken: set[str] = set()
    for _, group in groupby(links, key=_star_key):
        run = list(group)
        pattern = _pattern([link.ends[0] for link in run]) if len(run) > 1 else None
        plain = all(link.name == "-".join(link.ends) and link.name not in taken for link in run)
        targets = {link.ends[1] for link in run}
        target = targets.pop() if len(targets) == 1 else _pattern([link.ends[1] for link in run])
        if pattern is not None and target is not None and plain and len({link.ends[0] for link in run}) == len(run):
            yield run[0].name, [("each", _text(pattern)), ("to", _text(target)), *_link(run[0])]
        else:
            for link in run:
                yield link.name, [("name", _text(link.name)), ("ends", _list(link.ends)), *_link(link)]
        taken |= {link.name for link in run}


def _star_key(link: Link) -> tuple[object, ...]:
    """Equal for neighbours that may be one entry: links of two ends, equal but for the last number in the names of the ends."""
    shape = tuple(re.sub(r"[0-9]+(?=[^0-9]*\Z)", "#", end) for end in link.ends[:2])
    heads = tuple(end.rpartition(".")[0] for end in link.ends[:2])
    alone = link.name if len(link.ends) != 2 else ""
    return (shape, heads, alone, replace(link, name="", ends=()))


def _link(link: Link) -> Fields:
    fields = [("bandwidth", _text(quantity_text(link.bandwidth, Quantity.BANDWIDTH)))]
    if link.latency:
        fields.append(("latency", _text(quantity_text(link.latency, Quantity.TIME))))
    if link.duplex != "full":
        fields.append(("duplex", _text(link.duplex)))
    if link.shared:
        fields.append(("shared", "true"))
    amounts = [(key, getattr(link, key), Quantity.TIME) for key in ("start", "switch")]
    amounts.insert(1, ("small", link.small, Quantity.BANDWIDTH))
    in_training = [
        ("bandwidth", link.training_bandwidth, Quantity.BANDWIDTH),
        ("latency", link.training_latency, Quantity.TIME),
        ("start", link.training_start, Quantity.TIME),
    ]
    for name, table in (("collectives", amounts), ("training", in_training)):
        inside = [f"{key} = {_text(quantity_text(value, kind))}" for key, value, kind in table if value]
        fields += [(name, f"{{ {', '.join(inside)} }}")] if inside else []
    return fields


def _runs(items: Sequence[T], fields: Callable[[T], Fields]) -> Iterable[tuple[str, Fields]]:
    """The items as entries: neighbours with equal fields and consecutive numbers are one pattern."""
    known = {item.name: item for item in items}
    for _, group in groupby(enumerate(items), key=lambda one: fields(_without_place(*one))):
        for pattern in _patterns([item.name for _, item in group]):
            yield pattern, fields(known[_first(pattern)])


def _without_place(place: int, item: T) -> T:
    """The item, a device with the number that the first of all would have: the devices of a pattern count on from its first."""
    if isinstance(item, Device) and item.device_id is not None:
        return replace(item, device_id=item.device_id - place)
    return item


def _patterns(names: Iterable[str]) -> list[str]:
    """Names and patterns for ``names``, in order; consecutive numbers are one pattern."""
    runs: list[list[str]] = []
    for name in names:
        if runs and _pattern([*runs[-1][-1:], name]) is not None:
            runs[-1].append(name)
        else:
            runs.append([name])
    return [_pattern(run) or run[0] for run in runs]


def _pattern(names: Sequence[str]) -> str | None:
    """``gpu{0..7}`` for gpu0 to gpu7 in that order; None if the names are no such run."""
    matches = [_NUMBERED.match(name) for name in names]
    first = matches[0]
    if first is None or len(names) < 2:
        return None
    start = int(first[2])
    for offset, match in enumerate(matches):
        if match is None or (match[1], match[3]) != (first[1], first[3]) or int(match[2]) != start + offset:
            return None
    return f"{first[1]}{{{start}..{start + len(names) - 1}}}{first[3]}"


def _assignments(fields: Fields, notes: Notes, table: str) -> list[str]:
    lines = ((f"{key} = {value}", notes.get((table, key))) for key, value in fields)
    return [f"{line}  # {_comment(note)}" if note else line for line, note in lines]


def _remarks(notes: Notes, table: str) -> list[str]:
    """The comment of a table, in lines."""
    return [f"# {_comment(line)}".rstrip() for line in notes.get((table, ""), "").splitlines()]


def _comment(text: str) -> str:
    """The text in one line without control characters, which comments of TOML may not have."""
    return re.sub(r"[\x00-\x08\x0a-\x1f\x7f]", " ", text)


def _first(pattern: str) -> str:
    """The first name of a pattern of ``_pattern``; any other name itself."""
    return re.sub(r"\{(\d+)\.\.\d+\}", r"\1", pattern)


def _key(name: str) -> str:
    return name if _BARE.match(name) else _text(name)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _list(values: Iterable[str]) -> str:
    return f"[{', '.join(map(_text, values))}]"
