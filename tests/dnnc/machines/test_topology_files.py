"""Topology files: the round trip, JSON beside TOML, files that are no topology. Single faults: golden/topology."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.machines.presets import preset_names
from dnnc.machines.topology import load_topology, read_topology, topology_to_toml
from dnnc.machines.topology import reader as topology_reader
from ir.core.diagnostics import DiagnosticSink, ExitCode, InvalidInput
from ir.core.limits import Limits
from ir.core.topology import Device, DeviceType, Host, Link, Route, Switch, Topology
from ir.core.types import DType
from ir.text.positions import positions
from passes.costs import network

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "topology"
VALID = ("two_hosts", "unequal", "mesh", "providers")

# Round trip


_amounts = st.floats(min_value=1e-12, max_value=1e18, allow_nan=False, allow_infinity=False)
_times = st.one_of(st.just(0.0), st.floats(min_value=1e-15, max_value=1e3))
_memory = st.one_of(st.none(), st.integers(0, 1 << 50), st.sampled_from([80 << 30, 24 * 10**9]))
_fractions = st.floats(min_value=1e-6, max_value=1.0)
_stems = st.sampled_from(["gpu", "h", "node1.gpu", "a-b:", "x/", "9", "gpu0"])
_names = st.builds(lambda stem, number: f"{stem}{number}", _stems, st.integers(0, 12))
_words = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1, max_size=12)
_values = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="/\\"), max_size=12)
_options = st.dictionaries(_words, _values, max_size=2)
_providers = st.one_of(
    st.just(("", ())),
    st.tuples(
        st.sampled_from(["CPUExecutionProvider", "XExecutionProvider"]),
        _options.map(lambda options: tuple(sorted(options.items()))),
    ),
)


_products = st.one_of(
    st.just((0, 0.0, 0.0, 0, 0.0, 0.0, 0.0, 0.0)),
    st.just((0, 0.0, 0.0, 1 << 20, 60e9, 0.0, 0.0, 0.0)),
    st.tuples(st.integers(1, 200), _amounts, _amounts, st.integers(0, 1 << 30), _amounts, _times, _times, st.floats(0.0, 1.0)),
)


_addresses = st.sampled_from(["", "192.0.2.1", "lab.local"])


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Any topology that a file can describe: connected, names as the format allows, types with rates and a bandwidth."""
    names = iter(draw(st.lists(_names, min_size=14, max_size=14, unique=True)))
    drawn = tuple(
        DeviceType(
            name,
            draw(st.sampled_from(["cpu", "gpu", "npu"])),
            tuple(
                sorted(
                    draw(st.dictionaries(st.sampled_from([d.value for d in DType]), _amounts, min_size=1, max_size=3)).items()
                )
            ),
            draw(_amounts),
            draw(_memory),
            draw(_times),
            tuple(sorted(draw(st.dictionaries(_words, _fractions, max_size=2)).items())),
            draw(st.booleans()),
            draw(st.one_of(st.just(""), _words)),
            draw(_times),
            *draw(_providers),
            *draw(_products),
            draw(_times),
            draw(st.integers(0, 1 << 30)),
            draw(st.integers(1, 64)),
            draw(st.one_of(st.just(0.0), _amounts)),
        )
        for name in draw(st.lists(_words, min_size=1, max_size=2, unique=True))
    )
    types = tuple(
        type_ if type_.memory is None else replace(type_, reserved=min(type_.reserved, max(0, type_.memory - 1)))
        for type_ in drawn
    )
    named = {type_.name for type_ in types if type_.provider}
    numbers = st.one_of(st.none(), st.integers(0, 9))
    hosts = tuple(
        Host(next(names), draw(st.one_of(st.none(), st.integers(1, 99))), draw(_memory), draw(_addresses))
        for _ in range(draw(st.integers(1, 2)))
    )
    devices = tuple(
        Device(
            next(names),
            type_name := draw(st.sampled_from(types)).name,
            draw(st.sampled_from(hosts)).name,
            draw(_memory),
            draw(numbers) if type_name in named else None,
        )
        for _ in range(draw(st.integers(1, 6)))
    )
    switches = tuple(Switch(next(names)) for _ in range(draw(st.integers(0, 2))))
    points = [point.name for point in (*hosts, *devices, *switches)]
    made: dict[str, Link] = {}

    def add(ends: tuple[str, ...]) -> None:
        plain = "-".join(ends)
        name = plain if plain not in made and draw(st.booleans()) else f"link{len(made)}"
        duplex, shared = draw(st.sampled_from(["full", "half"])), draw(st.booleans())
        link = Link(name, ends, draw(_amounts), draw(_times), duplex, shared, draw(_times), draw(_amounts), draw(_times))
        made.setdefault(name, link)

    hub = draw(st.sampled_from(points))
    alike = draw(st.booleans())
    for device in devices:
        if device.name != hub and alike:
            made[f"{device.name}-{hub}"] = Link(f"{device.name}-{hub}", (device.name, hub), 1e9, 1e-6)
        elif device.name != hub:
            add((device.name, hub))
    for _ in range(draw(st.integers(0, 2))):
        add(tuple(draw(st.lists(st.sampled_from(points), min_size=2, max_size=4, unique=True))) if len(points) > 1 else (hub,))
    links = tuple(made.values())
    routes = []
    for link in links:
        ends = [end for end in link.ends if any(device.name == end for device in devices)]
        if len(ends) > 1 and draw(st.booleans()) and not any((r.source, r.target) == (ends[0], ends[1]) for r in routes):
            routes.append(Route(ends[0], ends[1], (link.name,)))
    return Topology("@t", types, hosts, devices, switches, links, tuple(routes))


def test_a_type_whose_process_takes_all_memory_is_refused() -> None:
    text = """version = 1
[types.mid]
kind = "gpu"
rates = { f32 = "1 TFLOP/s" }
memory_bandwidth = "1 GB/s"
memory = "16 GiB"
reserved = "16 GiB"
[[devices]]
name = "a"
type = "mid"
"""
    with pytest.raises(InvalidInput, match=r":7:12.*'reserved' of 'mid' is 16 GiB, and its 'memory' 16 GiB: nothing is left"):
        read_topology(text)
    assert read_topology(text.replace('reserved = "16 GiB"', 'reserved = "15 GiB"')).types[0].reserved == 15 << 30


def test_hosts_have_addresses() -> None:
    """One for each host of a pattern; as many as there are hosts, or it is told."""
    text = """version = 1
[types.core]
kind = "cpu"
rates = { f32 = "1 TFLOP/s" }
memory_bandwidth = "1 GB/s"
[[hosts]]
name = "lab{0..1}"
address = ["192.0.2.1", "lab1.local"]
[[devices]]
name = "a"
type = "core"
host = "lab0"
"""
    assert [host.address for host in read_topology(text).hosts] == ["192.0.2.1", "lab1.local"]
    with pytest.raises(InvalidInput, match="found 1 values, expected 2 addresses, one for each host"):
        read_topology(text.replace(', "lab1.local"', ""))


@given(topologies())
@settings(max_examples=25)
def test_what_is_written_reads_back_equal(topology: Topology) -> None:
    text = topology_to_toml(topology)
    assert read_topology(text) == topology
    assert topology_to_toml(read_topology(text)) == text


@given(topologies())
@settings(max_examples=20)
def test_json_means_what_toml_means(topology: Topology) -> None:
    text = topology_to_toml(topology)
    assert read_topology(json.dumps(tomllib.loads(text)), syntax="json") == topology


@pytest.mark.parametrize("name", VALID)
def test_golden_files_as_json(name: str, tmp_path: Path) -> None:
    text = (GOLDEN / f"{name}.toml").read_text()
    file = tmp_path / f"{name}.json"
    file.write_text(json.dumps(tomllib.loads(text), indent=1))
    assert load_topology(str(file), DiagnosticSink()) == load_topology(str(GOLDEN / f"{name}.toml"), DiagnosticSink())


def test_equal_neighbours_become_one_entry() -> None:
    topology = load_topology("preset:a100x8", DiagnosticSink())
    text = topology_to_toml(topology)
    assert text.count("[[devices]]") == 1
    assert text.count("[[links]]") == 1
    assert 'each = "gpu{0..7}"' in text


@pytest.mark.parametrize(
    ("numbers", "entries"),
    [((0, 0), 2), ((1, 2), 1), ((3, 4, 5, 7), 2), ((1, 0), 2), ((None, None), 1), ((0, None), 2), ((2, 2, 3), 2)],
)
def test_numbers_of_providers_are_those_that_were(numbers: tuple[int | None, ...], entries: int) -> None:
    """Two devices on one GPU became a pattern, whose second device is on the next GPU."""
    gpu = DeviceType("gpu", "gpu", (("f32", 1e12),), 1e11, provider="CUDAExecutionProvider")
    devices = tuple(Device(f"gpu{at}", "gpu", "h", device_id=number) for at, number in enumerate(numbers))
    topology = Topology(
        "@t", (gpu,), (Host("h"),), devices, (), tuple(Link(f"l{at}", ("h", f"gpu{at}"), 1e9) for at in range(len(devices))), ()
    )
    text = topology_to_toml(topology)
    assert read_topology(text) == topology
    assert text.count("[[devices]]") == entries


# Files that are no topology


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.toml", b"", "found no version"),
        ("half.toml", b'version = 1\nname = "a', "not valid TOML"),
        ("half.json", b'{"version": 1, ', "not valid JSON"),
        ("list.json", b"[1, 2]", "found a list at the top"),
        ("twice.json", b'{"version": 1, "version": 1}', "'version' stands twice"),
        ("noise.toml", bytes(range(256)) * 64, "not UTF-8"),
        ("deep.json", b"[" * 100_000, "nest more than 100 deep"),
        ("deep.toml", b"a = " + b"[" * 100_000, "nested too deeply"),
        ("other.yaml", b"version: 1", "expected a topology file (.toml or .json)"),
    ],
)
def test_files_that_are_no_topology(name: str, content: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(InvalidInput) as caught:
        load_topology(str(file), DiagnosticSink())
    assert words in str(caught.value)
    assert str(file) in str(caught.value)
    assert caught.value.exit_code is ExitCode.INVALID_INPUT


def test_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "huge.toml"
    with file.open("wb") as stream:
        stream.truncate(1 << 30)
    with pytest.raises(InvalidInput, match="1073741824 bytes"):
        load_topology(str(file), DiagnosticSink())


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such file") as caught:
        load_topology(str(tmp_path / "lab.toml"), DiagnosticSink())
    assert "preset:NAME" in caught.value.diagnostics[0].hint
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(InvalidInput, match="a folder"):
        load_topology(str(tmp_path / "folder.toml"), DiagnosticSink())


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    for syntax in ("toml", "json"):
        with pytest.raises(InvalidInput):
            read_topology(text, syntax=syntax)
        with pytest.raises(InvalidInput):
            read_topology(f"version = 1\n{text}", syntax=syntax)


_keys = [
    *("version", "name", "include", "types", "templates", "hosts", "devices", "switches", "links", "routes", "ends", "each"),
    *("to", "mesh", "like", "rates", "memory", "count", "host", "type", "template", "from", "both", "prefix", "f32"),
]
_json = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-5, 5), st.floats(), st.sampled_from([*_keys, "1 GB/s", "gpu{0..3}", "*", "{"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(_keys), inner, max_size=4)),
    max_leaves=25,
)


@given(st.dictionaries(st.sampled_from(_keys), _json, max_size=8))
@settings(max_examples=50)
def test_any_structure_is_read_or_refused_with_places(data: dict[str, object]) -> None:
    text = json.dumps({**data, "version": 1})
    try:
        read_topology(text, syntax="json")
    except InvalidInput as error:
        assert all(diagnostic.where for diagnostic in error.diagnostics)  # noqa: PT017


def test_a_file_includes_another(tmp_path: Path) -> None:
    (tmp_path / "types.toml").write_text('version = 1\n[types.t]\nrates = { f32 = "1 TFLOP/s" }\nmemory_bandwidth = "1 GB/s"\n')
    (tmp_path / "lab.toml").write_text(
        'version = 1\ninclude = ["types.toml", "preset:a100"]\n[[devices]]\nname = "a"\ntype = "t"\n'
    )
    topology = load_topology(str(tmp_path / "lab.toml"), DiagnosticSink())
    assert [type_.name for type_ in topology.types] == ["t"]  # the preset's type is not used
    assert topology.name == "@lab"
    (tmp_path / "types.toml").write_text('version = 1\n[types.t]\nrates = "fast"\n')
    with pytest.raises(InvalidInput) as caught:
        load_topology(str(tmp_path / "lab.toml"), DiagnosticSink())
    assert caught.value.diagnostics[0].where == str(tmp_path / "types.toml")


def test_a_file_that_includes_itself(tmp_path: Path) -> None:
    file = tmp_path / "self.toml"
    file.write_text('version = 1\ninclude = "self.toml"\n')
    with pytest.raises(InvalidInput, match="include each other more than 8 deep"):
        load_topology(str(file), DiagnosticSink())


def _types(likes: list[tuple[str, str]]) -> str:
    """A topology of one device of the first type, whose types are each like another."""
    tables = "".join(f'[types.{name}]\nlike = "{like}"\n' for name, like in likes)
    return f'version = 1\nname = "t"\n{tables}[[devices]]\nname = "d"\ntype = "{likes[0][0]}"\n'


def test_types_that_are_like_one_another_in_a_long_row(tmp_path: Path) -> None:
    """However long the row is, in whichever order its types stand."""
    path = tmp_path / "row.toml"
    path.write_text(_types([(f"t{i}", f"t{i + 1}") for i in range(3000)] + [("t3000", "preset:a100")]))
    topology = load_topology(str(path), DiagnosticSink())
    assert topology.types[0].rates == topology.types[-1].rates
    assert topology.types[0].name == "t0"


def test_types_that_are_like_themselves(tmp_path: Path) -> None:
    """A circle is told once, at the type where it closes, however long it is."""
    path = tmp_path / "circle.toml"
    path.write_text(_types([(f"t{i}", f"t{(i + 1) % 2000}") for i in range(2000)]))
    with pytest.raises(InvalidInput) as raised:
        load_topology(str(path), DiagnosticSink())
    (fault,) = [d for d in raised.value.diagnostics if "is like itself" in d.message]
    assert fault.message.endswith("t1998 -> t1999 -> t0")
    assert fault.span is not None
    assert fault.span.line == 3


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"templates": {"t": 3}, "hosts": [{"name": "h", "template": "t"}]}, "found 3, expected a table"),
        ({"routes": [{"from": "d", "to": "d", "links": 1.5}]}, "found 1.5, expected text or a list"),
        ({"routes": [{"from": "d", "to": "d", "links": [2]}]}, "found 2, expected text"),
    ],
)
def test_what_is_no_table_and_no_list_is_told_once(entry: dict[str, object], words: str, tmp_path: Path) -> None:
    tree = {"version": 1, "name": "t", "types": {"c": {"like": "preset:a100"}}, "devices": [{"name": "d", "type": "c"}]}
    path = tmp_path / "t.json"
    path.write_text(json.dumps(tree | entry))
    with pytest.raises(InvalidInput) as raised:
        load_topology(str(path), DiagnosticSink())
    (fault,) = raised.value.diagnostics
    assert fault.message.startswith(words)
    assert fault.span is not None


def test_names_that_a_refused_count_would_have_made_are_not_told_as_unknown() -> None:
    wires = '[[links]]\nends = ["d1", "d2"]\nbandwidth = "1 GB/s"\n'
    with pytest.raises(InvalidInput) as raised:
        read_topology(HEAD + devices(1_000_000) + wires)
    (fault,) = raised.value.diagnostics
    assert fault.message == "found 1000000, expected a whole number from 1 to 50000"


def test_a_slip_in_a_pattern_does_not_fill_the_memory() -> None:
    with pytest.raises(InvalidInput, match="more than 50000 names"):
        read_topology('version = 1\nswitches = ["s{0..999999999}{0..999999999}"]\n')


# Positions


def test_positions_of_toml() -> None:
    text = 'a.b = "x"\n[t."u v"]\nk = [1, { z = """\n""" }]\n[[l]]\n[[l]]\nm = 5 # c\n'
    found = positions(text, "toml")
    assert (found.value(("a", "b")).line, found.value(("a", "b")).column) == (1, 7)
    assert (found.value(("t", "u v", "k", 1, "z")).line, found.value(("t", "u v", "k", 1, "z")).column) == (3, 15)
    assert found.key(("l", 1, "m")).line == 7
    assert found.value(("l", 1, "m")).length == 1
    assert found.value(("l", 1, "absent")).line == 6  # the table that lacks it


def _leaves(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], object]]:
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in _leaves(inner, (*path, key))]
    if isinstance(value, list):
        return [leaf for key, inner in enumerate(value) for leaf in _leaves(inner, (*path, key))]
    return [(path, value)]


@given(_json)
def test_every_json_value_is_found_where_it_stands(value: object) -> None:
    text = json.dumps({"v": value}, indent=1)
    found = positions(text, "json")
    for path, leaf in _leaves({"v": value}):
        start, end = found.values[path]
        assert text[start:end] == json.dumps(leaf)


# Presets


def test_every_listed_preset_loads() -> None:
    for name, _ in preset_names():
        spec = name.replace("N", "2").replace("M", "4")
        topology = load_topology(f"preset:{spec}", DiagnosticSink())
        assert topology.name == f"@{spec}"
        assert read_topology(topology_to_toml(topology)) == topology
        assert all(type_.source for type_ in topology.types)


# The reference


def test_the_examples_of_the_reference_are_valid() -> None:
    text = (GOLDEN.parents[1] / "dnnc" / "machines" / "README.md").read_text()
    examples = text.split("```toml\n")[1:]
    sizes = []
    for example in examples:
        topology = read_topology(example.split("```")[0], name="example")
        assert read_topology(topology_to_toml(topology)) == topology
        sizes.append((len(topology.hosts), len(topology.devices)))
    assert sizes == [(1, 5), (8, 64), (2, 6)]


def test_the_reference_lists_every_key() -> None:
    from dnnc.machines.topology import device_types

    text = (GOLDEN.parents[1] / "dnnc" / "machines" / "README.md").read_text()
    for keys in (topology_reader._ROOT, device_types._TYPE, topology_reader._HOST, topology_reader._TEMPLATE,
                 topology_reader._DEVICE, topology_reader._LINK, topology_reader._ROUTE, device_types._PRODUCTS,
                 topology_reader._COLLECTIVES):  # fmt: skip
        for key in keys:
            assert key in ("types", "templates", "hosts", "devices", "links", "routes") or f"`{key}`" in text, key


HEAD = """version = 1
switches = ["s"]
types.c = { rates = { f32 = "1 TFLOP/s" }, memory_bandwidth = "1 GB/s" }
"""


def devices(count: int, unlike: bool = False) -> str:
    """Devices on one switch; ``unlike``: no two of them alike."""
    if not unlike:
        return f'[[devices]]\nname = "d"\ncount = {count}\ntype = "c"\n'
    return "".join(f'[[devices]]\nname = "d{i}"\ntype = "c"\nmemory = "{i + 1} MB"\n' for i in range(count))


LINKS = '[[links]]\neach = "d*"\nto = "s"\nbandwidth = "1 GB/s"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a" + ".a" * 500_000 + " = 1", "a dotted key has more than 16 parts"),
        ('"a"' + '."a"' * 50 + " = 1", "a dotted key has more than 16 parts"),
        (HEAD + devices(600) + '[[links]]\nmesh = "d*"\nbandwidth = "1 GB/s"\n', "has too many links"),
        pytest.param(
            HEAD + devices(19_000) + '[[links]]\nends = ["d12?4", "s"]\nbandwidth = "1 GB/s"\n' * 600,
            "the selectors look at",
            marks=pytest.mark.slow,
        ),
        (HEAD + devices(4_000) + '[[links]]\nends = ["*x", "s"]\nbandwidth = "1 GB/s"\n' * 1000, "matches '*x'"),
        (HEAD + '[[devices]]\nname = "d"\ntype = "y"\n' * 3_000, "unknown device type 'y'"),
        (
            HEAD + '[[devices]]\nname = "d"\ntype = "c"\nmemory = "' + "1" * 1_000_000 + ' x y"\n',
            "a text of 1000004 characters",
        ),
        (HEAD + '[[devices]]\nname = "d"\ntype = "c"\nmemory = "1e15 GiB"\n', 'memory = "unlimited"'),
        (HEAD + '[[hosts]]\nname = "h"\ncores = 0\n' + devices(1), "from 1 to 1048576"),
        (HEAD + f'[[hosts]]\nname = "h"\ncores = {"9" * 5000}\n' + devices(1), "not a topology"),
        (HEAD + devices(2) + LINKS.replace("1 GB/s", "1e300 GB/s"), "found '1e300 GB/s'"),
        (HEAD + devices(2) + LINKS.replace("1 GB/s", "1e-300 GB/s"), "found '1e-300 GB/s'"),
    ],
    ids=range(12),
)
def test_a_text_that_asks_for_too_much_is_refused_at_once(text: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_topology(text)
    assert any(words in diagnostic.message + diagnostic.hint for diagnostic in caught.value.diagnostics)
    assert len(caught.value.diagnostics) <= 100


def test_links_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology_reader, "MAX_LINKS", 100)
    assert len(read_topology(HEAD + devices(2) + LINKS * 50).links) == 100
    with pytest.raises(InvalidInput, match="more than 100 links"):
        read_topology(HEAD + devices(2) + LINKS * 51)


def test_routes_of_a_whole_data_centre_are_refused_and_of_a_bus_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "LIMITS", Limits(route_steps=50_000))
    unlike = read_topology(HEAD + devices(300, unlike=True) + LINKS)
    with pytest.raises(InvalidInput, match="too many routes"):
        network.Network(unlike).port("d0")
    bus = read_topology(HEAD + devices(5_000) + '[[links]]\nends = ["d*", "s"]\nbandwidth = "1 GB/s"\n')
    assert network.Network(bus).port("d7").bandwidth == 1e9
    assert [len(members) for members in network.device_classes(bus)] == [5_000]
