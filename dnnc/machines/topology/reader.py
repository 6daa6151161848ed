"""Builds a topology from a document.

One idea: a file is a list of *entries* (hosts, devices, switches, links, routes), each of which may stand for many by a
pattern (``gpu{0..7}``); a template repeats a whole host with its insides, under ``HOST.`` names. Definitions (types, templates)
are read first, then points, then links and routes between them, so that the order in a file does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from dnnc.machines.presets import find_preset
from dnnc.machines.topology.device_types import device_type, unmade_likes
from dnnc.machines.topology.document import Document, file_syntax, parse_document, read_file
from dnnc.machines.topology.faults import (
    BrokenRoute,
    CountAndPattern,
    DeviceIdWithoutProvider,
    HostMissing,
    IncludedTooDeep,
    LinkForms,
    LinkTaken,
    LinkToItself,
    MemoryBandwidthMissing,
    MeshTooLarge,
    NameTaken,
    NoDevices,
    NoFolderToInclude,
    NoPoints,
    OtherVersion,
    PresetOfSeveralTypes,
    RatesMissing,
    RouteTaken,
    TooManyLinks,
    TooManyPoints,
    UnequalEnds,
    UnequalNames,
    WrongPattern,
    WrongValue,
)
from dnnc.machines.topology.names import expand, match_points
from dnnc.machines.topology.reachable import require_reachable, why_broken
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from ir.core.limits import LIMITS
from ir.core.topology import Device, DeviceType, Host, Link, Route, Switch, Topology
from ir.text.positions import Path
from ir.verifier.machines import MOST_CORES, MOST_DEVICE_ID

VERSION = 1
MAX_POINTS, MAX_LINKS, MAX_ENDS = LIMITS.topology_points, LIMITS.topology_links, LIMITS.topology_ends
MAX_LOOKED = LIMITS.topology_names
MAX_DEPTH = 8
"""Of files that include files."""

_ROOT = ("version", "name", "include", "types", "templates", "hosts", "devices", "switches", "links", "routes")
_HOST = ("name", "count", "template", "prefix", "cores", "memory", "address")
_TEMPLATE = ("cores", "memory", "devices", "switches", "links", "routes")
_DEVICE = ("name", "count", "type", "host", "memory", "device_id")
_LINK = ("name", "ends", "each", "to", "mesh", "bandwidth", "latency", "duplex", "shared", "collectives", "training")
_COLLECTIVES = ("start", "small", "switch")
_IN_TRAINING = ("bandwidth", "latency", "start")
_ROUTE = ("from", "to", "links", "both")


@dataclass(slots=True)
class _Scope:
    """The names in sight of an entry: the points of one host instance, by local name; after them all points."""

    prefix: str = ""
    local: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Reader:
    """Builds one topology; ``faults`` collects what is wrong."""

    faults: DiagnosticSink
    folder: FilePath | None
    depth: int = 0
    types: dict[str, DeviceType] = field(default_factory=dict)
    templates: dict[str, tuple[Document, Path, dict[str, Any]]] = field(default_factory=dict)
    hosts: dict[str, Host] = field(default_factory=dict)
    devices: dict[str, Device] = field(default_factory=dict)
    switches: dict[str, Switch] = field(default_factory=dict)
    links: dict[str, Link] = field(default_factory=dict)
    routes: dict[tuple[str, str], Route] = field(default_factory=dict)
    parallel: dict[str, int] = field(default_factory=dict)  # names made for links -> how many were made alike
    ends: int = 0
    looked: int = 0
    points: dict[str, str] = field(default_factory=dict)  # name -> what it is
    incomplete: bool = False

    def topology(self, doc: Document, name: str) -> Topology:
        doc.faults = self.faults
        if not self.version(doc):
            return Topology(f"@{name}", (), (), ())
        doc.keys((), doc.data, _ROOT, "a topology")
        name = doc.text(("name",), doc.data, default=name)
        self.definitions(doc)
        instances = self.read_hosts(doc)
        root = _Scope()
        if not self.hosts and doc.data.get("devices"):
            self.add_point("host", "host", doc, ("devices",))
            self.hosts["host"] = Host("host")
        self.read_points(doc, (), doc.data, root, host="")
        for source, path, table, scope, _host in instances:
            self.read_wires(source, path, table, scope)
        self.read_wires(doc, (), doc.data, root)
        if not self.devices and not self.faults.diagnostics:
            doc.fault((), NoDevices())
        used = {device.type for device in self.devices.values()}
        # The file's own types all, in its order; of those that it includes, what its devices are.
        own = {key: self.types[key] for key in doc.table(("types",), doc.data) if key in self.types}
        result = Topology(
            f"@{name}",
            (*(type_ for name, type_ in self.types.items() if name not in own and name in used), *own.values()),
            tuple(self.hosts.values()),
            tuple(self.devices.values()),
            tuple(self.switches.values()),
            tuple(self.links.values()),
            tuple(self.routes.values()),
        )
        if not self.faults.diagnostics:
            require_reachable(result, self.points, doc)
        return result

    def version(self, doc: Document) -> bool:
        """Whether this reader knows the file's version; else nothing more of it is read."""
        version = doc.data.get("version")
        if version == VERSION and not isinstance(version, bool):
            return True
        doc.fault(("version",), OtherVersion(f"version {version!r}" if "version" in doc.data else "no version", VERSION))
        return False

    # definitions: types and templates

    def definitions(self, doc: Document) -> None:
        """Types and templates of ``doc`` and of what it includes."""
        for number, spec in enumerate(doc.strings(("include",), doc.data)):
            included = self.included(spec, doc, ("include", number))
            if included is not None:
                self.types |= included.types
                self.templates |= included.templates
        types = doc.table(("types",), doc.data)
        made: dict[str, DeviceType] = {}
        for name in types:
            for each in reversed(unmade_likes(name, doc, types, made)):
                made[each] = self.types[each] = self.read_type(each, doc, types, made)
        for name in doc.table(("templates",), doc.data):
            path: Path = ("templates", name)
            template = doc.as_table(path, doc.data["templates"][name])
            doc.keys(path, template, _TEMPLATE, "a template")
            self.templates[name] = (doc, path, template)

    def included(self, spec: str, doc: Document, path: Path) -> Reader | None:
        """Reader that holds the definitions of a preset or another file."""
        if self.depth >= MAX_DEPTH:
            doc.fault(path, IncludedTooDeep(MAX_DEPTH))
            return None
        try:
            if spec.startswith("preset:"):
                preset = find_preset(spec.removeprefix("preset:"))
                text, where, folder, syntax = preset.text, spec, None, "toml"
            else:
                if self.folder is None:
                    doc.fault(path, NoFolderToInclude(spec))
                    return None
                file = self.folder / spec
                text, where, folder, syntax = read_file(file), str(file), file.parent, file_syntax(file)
            included = parse_document(text, where, syntax)
        except InvalidInput as error:
            for diagnostic in error.diagnostics:
                if diagnostic.span is None and not diagnostic.where.endswith((".toml", ".json")):
                    doc.fault(path, diagnostic)
                else:
                    self.faults.emit(diagnostic)
            return None
        reader = Reader(self.faults, folder, self.depth + 1)
        included.faults = self.faults
        if reader.version(included):
            reader.definitions(included)
        return reader

    def read_type(self, name: str, doc: Document, types: Mapping[str, Any], made: Mapping[str, DeviceType]) -> DeviceType:
        """The type ``name`` of this file. ``made``: the types of this file that it may be like."""
        path: Path = ("types", name)
        spec = types[name]
        table = {"like": spec} if isinstance(spec, str) else doc.as_table(path, spec)
        base = DeviceType(name)
        if "like" in table:
            like_path = path if isinstance(spec, str) else (*path, "like")
            like = doc.text((*path, "like"), table)
            base = (made.get(like) if like in types else self.type_like(like, doc, types, like_path)) or base
        elif "rates" not in table:
            doc.fault(path, RatesMissing(name))
        result = device_type(name, doc, path, table, base)
        if "like" not in table and "memory_bandwidth" not in table:
            doc.fault(path, MemoryBandwidthMissing(name))
        return result

    def type_like(self, like: str, doc: Document, types: Mapping[str, Any], path: Path) -> DeviceType | None:
        """The type of a preset, or of what the file includes."""
        if like.startswith("preset:"):
            return self.preset_type(like, doc, path)
        if like in self.types:
            return self.types[like]
        if like:
            doc.unknown(path, "type", like, sorted({*types, *self.types}), hint="a type that comes with dnnc is preset:NAME")
        return None

    def preset_type(self, spec: str, doc: Document, path: Path) -> DeviceType | None:
        """The device type that a preset is made of."""
        reader = self.included(spec, doc, path)
        if reader is None:
            return None
        name = find_preset(spec.removeprefix("preset:")).type
        if not name:
            doc.fault(path, PresetOfSeveralTypes(spec, tuple(sorted(reader.types))))
        return reader.types.get(name)

    # points: hosts, devices, switches

    def read_hosts(self, doc: Document) -> list[tuple[Document, Path, dict[str, Any], _Scope, str]]:
        """Hosts with the devices and switches of their templates. Returns what is left to wire: per instance, its template."""
        instances: list[tuple[Document, Path, dict[str, Any], _Scope, str]] = []
        for number, host in enumerate(doc.tables(("hosts",), doc.data)):
            path: Path = ("hosts", number)
            doc.keys(path, host, _HOST, "a host")
            template: dict[str, Any] = {}
            source, source_path = doc, path
            wanted = doc.text((*path, "template"), host, default="")
            if wanted and wanted not in self.templates:
                doc.unknown((*path, "template"), "template", wanted, sorted(self.templates))
            elif wanted:
                source, source_path, template = self.templates[wanted]
            shared = source.whole((*source_path, "cores"), template, most=MOST_CORES)
            cores = doc.whole((*path, "cores"), host, default=shared, most=MOST_CORES)
            memory = doc.memory((*path, "memory"), host, default=source.memory((*source_path, "memory"), template))
            prefix = host.get("prefix")
            if prefix is not None and not isinstance(prefix, str):
                doc.text((*path, "prefix"), host)
                prefix = None
            names = self.names(doc, path, host)
            for name, address in zip(names, self.addresses(doc, (*path, "address"), host, len(names)), strict=True):
                if not self.add_point(name, "host", doc, (*path, "name")):
                    continue
                self.hosts[name] = Host(name, cores, memory, address)
                scope = _Scope(f"{name}." if prefix is None else prefix, {"host": name})
                if template:
                    self.read_points(source, source_path, template, scope, name)
                    instances.append((source, source_path, template, scope, name))
        return instances

    def addresses(self, doc: Document, path: Path, host: Mapping[str, Any], count: int) -> list[str]:
        """The address of each host that an entry stands for: a text for all of them, or a list with one for each."""
        stated = host.get("address")
        if not isinstance(stated, list):
            return [doc.text(path, host, default="")] * count
        if len(stated) == count and all(isinstance(one, str) and one for one in stated):
            return list(stated)
        doc.fault(path, WrongValue(f"{len(stated)} values", f"{count} addresses, one for each host"))
        return [""] * count

    def read_points(self, doc: Document, base: Path, table: Mapping[str, Any], scope: _Scope, host: str) -> None:
        """Devices and switches of the file (``host`` empty) or of one instance of a template."""
        for number, device in enumerate(doc.tables((*base, "devices"), table)):
            path: Path = (*base, "devices", number)
            doc.keys(path, device, _DEVICE, "a device")
            type_name = self.device_type(doc, (*path, "type"), device)
            memory = doc.memory((*path, "memory"), device)
            home = host or self.home(doc, path, device)
            first_id = self.device_id(doc, (*path, "device_id"), device, type_name)
            for place, name in enumerate(self.names(doc, path, device)):
                if self.add_point(scope.prefix + name, "device", doc, (*path, "name")):
                    device_id = None if first_id is None else first_id + place
                    self.devices[scope.prefix + name] = Device(scope.prefix + name, type_name, home, memory, device_id)
                    scope.local[name] = scope.prefix + name
        for number, pattern in enumerate(doc.strings((*base, "switches"), table)):
            path = (*base, "switches", number)
            for name in self.expanded(doc, path, pattern):
                if self.add_point(scope.prefix + name, "switch", doc, path):
                    self.switches[scope.prefix + name] = Switch(scope.prefix + name)
                    scope.local[name] = scope.prefix + name

    def home(self, doc: Document, path: Path, device: Mapping[str, Any]) -> str:
        """The host of a device that stands outside templates; needs no saying while there is only one."""
        name = doc.text((*path, "host"), device, default="")
        if not name:
            if len(self.hosts) != 1:
                doc.fault(path, HostMissing(len(self.hosts)))
            return next(iter(self.hosts), "")
        if name not in self.hosts:
            doc.unknown((*path, "host"), "host", name, list(self.hosts))
        return name

    def device_type(self, doc: Document, path: Path, device: Mapping[str, Any]) -> str:
        name = doc.text(path, device)
        if not name:
            return name
        if name.startswith("preset:"):
            type_ = self.preset_type(name, doc, path)
            if type_ is None:
                return ""
            self.types.setdefault(type_.name, type_)
            return type_.name
        if name not in self.types:
            doc.unknown(path, "device type", name, list(self.types), hint="a type that comes with dnnc is preset:NAME")
        return name

    def device_id(self, doc: Document, path: Path, device: Mapping[str, Any], type_name: str) -> int | None:
        """The number of an entry's first device, from which the others count on."""
        number = doc.whole(path, device, least=0, most=MOST_DEVICE_ID - MAX_POINTS)
        if number is not None and type_name in self.types and not self.types[type_name].provider:
            doc.fault(path, DeviceIdWithoutProvider(type_name))
        return number

    def names(self, doc: Document, path: Path, table: Mapping[str, Any]) -> list[str]:
        """The names that ``name`` and ``count`` of an entry stand for."""
        pattern = doc.text((*path, "name"), table)
        if not pattern:
            return []
        count = doc.whole((*path, "count"), table, most=MAX_POINTS)
        if count is None and "count" in table:
            self.incomplete = True
        elif count is None:
            return self.expanded(doc, (*path, "name"), pattern)
        elif "{" in pattern:
            doc.fault((*path, "count"), CountAndPattern(pattern))
        else:
            return [f"{pattern}{number}" for number in range(count)]
        return []

    def expanded(self, doc: Document, path: Path, pattern: str) -> list[str]:
        try:
            return expand(pattern, MAX_POINTS)
        except ValueError as error:
            doc.fault(path, WrongPattern(str(error)))
            return []

    def add_point(self, name: str, what: str, doc: Document, path: Path) -> bool:
        if name in self.points:
            doc.fault(path, NameTaken(name, what, self.points[name]))
            return False
        if len(self.points) >= MAX_POINTS:
            if not self.incomplete:
                doc.fault(path, TooManyPoints(MAX_POINTS))
            self.incomplete = True
            return False
        self.points[name] = what
        return True

    # wires: links and routes

    def read_wires(self, doc: Document, base: Path, table: Mapping[str, Any], scope: _Scope) -> None:
        if self.incomplete:  # what names the points that are lacking would be told as unknown
            return
        for number, link in enumerate(doc.tables((*base, "links"), table)):
            path: Path = (*base, "links", number)
            doc.keys(path, link, _LINK, "a link")
            self.read_link(doc, path, link, scope)
        for number, route in enumerate(doc.tables((*base, "routes"), table)):
            path = (*base, "routes", number)
            doc.keys(path, route, _ROUTE, "a route")
            self.read_route(doc, path, route, scope)

    def read_link(self, doc: Document, path: Path, table: Mapping[str, Any], scope: _Scope) -> None:
        bandwidth = doc.bandwidth((*path, "bandwidth"), table, required=True)
        latency = doc.seconds((*path, "latency"), table)
        duplex = doc.choice((*path, "duplex"), table, ("full", "half"))
        shared = doc.flag((*path, "shared"), table)
        inside: Path = (*path, "collectives")
        collectives = doc.table(inside, table)
        doc.keys(inside, collectives, _COLLECTIVES, "what collectives cost")
        start, switch = (doc.seconds((*inside, key), collectives) for key in ("start", "switch"))
        small = doc.bandwidth((*inside, "small"), collectives)
        inside = (*path, "training")
        trained = doc.table(inside, table)
        doc.keys(inside, trained, _IN_TRAINING, "what a link does in training")
        in_training = (
            doc.bandwidth((*inside, "bandwidth"), trained),
            *(doc.seconds((*inside, key), trained) for key in ("latency", "start")),
        )
        groups = self.link_ends(doc, path, table, scope)
        if not groups:
            return
        names = self.link_names(doc, path, table, groups, scope)
        for name, ends in zip(names, groups, strict=True):
            if len(set(ends)) < len(ends) or len(ends) < 2:
                twice = next((end for end in ends if ends.count(end) > 1), ends[0])
                doc.fault(path, LinkToItself(name, twice))
            elif name in self.links:
                doc.fault((*path, "name"), LinkTaken(name))
            elif len(self.links) >= MAX_LINKS or self.ends + len(ends) > MAX_ENDS:
                doc.fault(path, TooManyLinks(MAX_LINKS, MAX_ENDS))
                self.faults.raise_errors()
            else:
                self.ends += len(ends)
                self.links[name] = Link(name, ends, bandwidth, latency, duplex, shared, start, small, switch, *in_training)

    def link_ends(self, doc: Document, path: Path, table: Mapping[str, Any], scope: _Scope) -> list[tuple[str, ...]]:
        """The ends of every link that an entry stands for."""
        forms = [form for form in ("ends", "each", "mesh") if form in table]
        if len(forms) != 1 or ("to" in table) != (forms == ["each"]):
            keys = ", ".join([*forms, *(["to"] if "to" in table else [])]) or "none of them"
            doc.fault(path, LinkForms(keys))
            return []
        form = forms[0]
        before = len(self.faults.diagnostics)
        chosen = self.select(doc, (*path, form), table, scope)
        if not chosen or len(self.faults.diagnostics) > before:
            return []
        if form == "ends":
            return [tuple(chosen)]
        if form == "mesh":
            if len(chosen) ** 2 > 2 * MAX_LINKS:
                doc.fault((*path, "mesh"), MeshTooLarge(len(chosen)))
                return []
            return [(a, b) for number, a in enumerate(chosen) for b in chosen[number + 1 :]]
        targets = self.select(doc, (*path, "to"), table, scope)
        if len(targets) == 1:
            targets = targets * len(chosen)
        if targets and len(targets) != len(chosen):
            doc.fault(path, UnequalEnds(len(chosen), len(targets)))
            return []
        return list(zip(chosen, targets, strict=True)) if targets else []

    def link_names(
        self, doc: Document, path: Path, table: Mapping[str, Any], groups: list[tuple[str, ...]], scope: _Scope
    ) -> list[str]:
        pattern = doc.text((*path, "name"), table, default="")
        if pattern:
            names = self.expanded(doc, (*path, "name"), pattern)
            if len(names) == 1 and len(groups) > 1:
                names = [f"{pattern}{number}" for number in range(len(groups))]
            if len(names) == len(groups):
                return [scope.prefix + name for name in names]
            if names:
                doc.fault((*path, "name"), UnequalNames(len(names), len(groups)))
        names = []
        for ends in groups:
            plain = "-".join(ends) if len(ends) == 2 else f"{ends[0]}-to-{ends[-1]}"
            name, count = plain, self.parallel.get(plain, 0) + 1
            while name in self.links or name in self.parallel:
                count += 1
                name = f"{plain}:{count}"
            self.parallel[plain] = count
            self.parallel.setdefault(name, 1)
            names.append(name)
        return names

    def select(self, doc: Document, path: Path, table: Mapping[str, Any], scope: _Scope) -> list[str]:
        """The points that a selector names, in order, each once. See ``topology_names``."""
        chosen: list[str] = []
        selectors = doc.strings(path, table)
        single = isinstance(table.get(str(path[-1])), str)
        if table.get(str(path[-1])) == []:
            doc.fault(path, NoPoints())
        for number, selector in enumerate(selectors):
            place = path if single else (*path, number)
            try:
                chosen += match_points(selector, scope.local, self.points, self.devices, self.look)
            except KeyError as error:
                doc.unknown(place, "point", error.args[0], [*scope.local, *self.points])
            except ValueError as error:
                doc.fault(place, WrongPattern(str(error)))
        return chosen if path[-1] == "ends" else list(dict.fromkeys(chosen))

    def look(self, names: int) -> None:
        """Counts names that selectors are compared with. Raises ValueError for too many."""
        self.looked += names
        if self.looked > MAX_LOOKED:
            raise ValueError(f"the selectors look at more than {MAX_LOOKED} names; patterns such as gpu{{0..7}} look at none")

    def read_route(self, doc: Document, path: Path, table: Mapping[str, Any], scope: _Scope) -> None:
        before = len(self.faults.diagnostics)
        ends = []
        for key in ("from", "to"):
            name = doc.text((*path, key), table)
            full = scope.local.get(name, name)
            if name and full not in self.devices:
                doc.unknown((*path, key), "device", name, [*self.devices])
            elif name:
                ends.append(full)
        links: list[str] = []
        for number, name in enumerate(doc.strings((*path, "links"), table)):
            full = scope.prefix + name if scope.prefix + name in self.links else name
            if full not in self.links:
                doc.unknown((*path, "links", number), "link", name, list(self.links))
            else:
                links.append(full)
        if len(self.faults.diagnostics) > before:
            return
        pairs = [(ends[0], ends[1], links)]
        if doc.flag((*path, "both"), table):
            pairs.append((ends[1], ends[0], links[::-1]))
        for source, target, way in pairs:
            if why := why_broken(self.links, source, target, way):
                doc.fault(path, BrokenRoute(why))
            elif (source, target) in self.routes:
                doc.fault(path, RouteTaken(source, target))
            else:
                self.routes[source, target] = Route(source, target, tuple(way))
