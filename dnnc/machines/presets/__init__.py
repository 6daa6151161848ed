"""Presets: names such as ``cpu-4``, ``a100``, ``a100x8``, ``8xh100x8``, to topology text.

``cpu-N`` is N one-core workers on this machine, ``TYPExM`` one host of M devices, ``NxTYPExM`` N such hosts; hosts of unequal
devices have names of their own, such as ``a100-v100``. ``cpu-N`` takes options after commas, so that a plan need not depend on
the machine it is made on: ``cpu-4,cores=2,memory=16GiB``.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Template

from dnnc.machines.faults import LocalIsWhole, PresetWithoutOptions, UnknownPreset, WrongPresetOption, WrongPresetSize
from ir.core.diagnostics import InvalidInput
from ir.system.host import local_cores, local_memory

__all__ = ["Preset", "find_preset", "preset_names"]

_FOLDER = Path(__file__).parent
MAX_DEVICES = 4096
"""Of one preset."""
_GIB = 1 << 30
_CPU = re.compile(r"cpu(?:-(\d{1,9}))?\Z")


@dataclass(frozen=True, slots=True)
class Preset:
    """``text`` in the topology format; ``type``: the device type it is made of, empty if there are several; ``slowdown``:
    workers per core, where more than one share it; ``workers`` and ``cores``: those of ``cpu-N``, else 0."""

    name: str
    type: str
    text: str
    slowdown: float = 1.0
    workers: int = 0
    cores: int = 0


def preset_names() -> list[tuple[str, str]]:
    """Names for people, with one line each; ``N`` and ``M`` stand for any number."""
    rows = [("cpu-N", "N one-core workers on this machine")]
    for kind in _kinds():
        rows.append((kind, _title(f"{kind}.toml")))
        rows.append((f"{kind}xM", f"one host of M of them, such as {kind}x8"))
        rows.append((f"Nx{kind}xM", f"N such hosts and the network between them, such as 8x{kind}x8"))
    return rows + [(name, _title(f"{name}.mixed.toml")) for name in _mixed()]


def find_preset(name: str) -> Preset:
    """The preset called ``name`` (without ``preset:``). Raises InvalidInput: unknown, or a number that makes no sense."""
    where = f"preset:{name}"
    base, *options = name.split(",")
    cpu = _CPU.match(base)
    if cpu:
        return _cpu_preset(base, int(cpu[1] or 1), options, where)
    if base == "local":
        raise InvalidInput(LocalIsWhole(), where=where)
    found = _cluster().match(base)
    if found is None and base not in _mixed():
        known = ["cpu-N", "local", *_kinds(), *_mixed()]
        examples = [*known[1:], "cpu-2", *(f"{kind}x8" for kind in _kinds()), *(f"8x{kind}x8" for kind in _kinds())]
        near = difflib.get_close_matches(base, examples, n=1, cutoff=0.75)
        raise InvalidInput(UnknownPreset(base, near[0] if near else "", tuple(known)), where=where)
    if options:
        raise InvalidInput(PresetWithoutOptions(options[0]), where=where)
    if found is None:
        return Preset(base, "", Template(_text(f"{base}.mixed.toml")).substitute(name=base))
    hosts, kind, devices = int(found[1] or 1), found[2], int(found[3] or 1)
    if not (1 <= devices <= MAX_DEVICES and 1 <= hosts <= MAX_DEVICES and hosts * devices <= MAX_DEVICES):
        raise InvalidInput(WrongPresetSize(hosts * devices, MAX_DEVICES), where=where)
    file = f"{kind}.cluster.toml" if hosts > 1 else f"{kind}.toml"
    text = Template(_text(file)).substitute(name=base, hosts=hosts - 1, devices=devices - 1, count=devices)
    return Preset(base, kind, text)


def _cpu_preset(base: str, workers: int, options: list[str], where: str) -> Preset:
    """N workers: one core each while the cores suffice; an equal part of the machine's memory each."""
    cores, memory = local_cores(), local_memory()
    for option in options:
        key, _, value = option.partition("=")
        found = re.fullmatch(r"(\d{1,6})", value) if key == "cores" else re.fullmatch(r"(\d{1,9})GiB", value)
        if key not in ("cores", "memory") or found is None or int(found[1]) < 1:
            raise InvalidInput(WrongPresetOption(option, "cores=N or memory=NGiB"), where=where)
        cores, memory = (int(found[1]), memory) if key == "cores" else (cores, int(found[1]) * _GIB)
    if not 1 <= workers <= MAX_DEVICES:
        raise InvalidInput(WrongPresetSize(workers, MAX_DEVICES), where=where)
    share = max(1 << 20, memory // workers // (1 << 20) * (1 << 20))
    text = Template(_text("cpu.toml")).substitute(
        name=base, devices=workers - 1, cores=cores, total=f"{memory} B", memory=f"{share >> 20} MiB"
    )
    return Preset(base, "core", text, max(1.0, workers / cores), workers, cores)


@cache
def _kinds() -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.toml") if "." not in file.stem and file.stem != "cpu"))


@cache
def _mixed() -> tuple[str, ...]:
    """Clusters of unequal hosts, which are as they are: their names have no numbers to choose."""
    return tuple(sorted(file.name.removesuffix(".mixed.toml") for file in _FOLDER.glob("*.mixed.toml")))


@cache
def _cluster() -> re.Pattern[str]:
    """Hosts, kind and devices of a name. Spells out the kinds, since ``rtx4090`` is no host of 4090."""
    return re.compile(rf"(?:(\d{{1,9}})x)?({'|'.join(map(re.escape, _kinds()))})(?:x(\d{{1,9}}))?\Z")


def _title(file: str) -> str:
    """What a file describes: its first words."""
    words = _text(file).removeprefix("# ").partition(" (`preset:")[0]
    return words[:1].lower() + words[1:]


@cache
def _text(file: str) -> str:
    return (_FOLDER / file).read_text("utf-8")


__all__ = ["MAX_DEVICES", "Preset", "find_preset", "preset_names"]
