"""``preset:local``: this machine, detected and measured. It is measured once: its numbers are kept in the user's cache
(``dnnc.machines.cache``)."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace

from dnnc.machines.faults import MeasuredNow, WrongPresetOption
from dnnc.machines.topology import load_topology
from ir.core.diagnostics import DiagnosticSink, InvalidInput, Severity
from ir.core.topology import Topology

_LOG = logging.getLogger(__name__)
_LOCAL = re.compile(r"preset:local(?:,(.*))?\Z", re.DOTALL)


def is_local(spec: str) -> bool:
    """Whether ``spec`` is ``preset:local``, with or without options."""
    return _LOCAL.match(spec) is not None


def machines_of(
    spec: str,
    sink: DiagnosticSink,
    progress: Callable[[str, float | None], None] = lambda label, fraction: None,
    *,
    training: bool = True,
) -> Topology:
    """The topology that ``spec`` names: a file or preset (``load_topology``), or ``preset:local``, which is measured where it
    is not yet, with a note that says so. Without ``training`` that takes a third of the time, and the numbers are for inference
    alone. Raises DnncError."""
    local = _LOCAL.match(spec)
    topology = load_topology(spec, sink) if local is None else _measured(local[1], spec, sink, progress, training)
    counts = len(topology.devices), len(topology.types), len(topology.hosts), len(topology.links)
    _LOG.debug("%s: %d devices of %d types on %d hosts, %d links", spec, *counts)
    return topology


def _measured(
    option: str | None, spec: str, sink: DiagnosticSink, progress: Callable[[str, float | None], None], training: bool
) -> Topology:
    """This machine as it was measured before, or measured now. What a busy machine shows is not kept."""
    from dnnc.machines.cache import cache_file, keep, kept
    from dnnc.machines.detect import detected
    from dnnc.machines.facts import read_facts
    from dnnc.machines.measure import busy_warning, duration, host_here, measured

    devices = _devices(option, spec)
    facts = read_facts()
    file = cache_file(facts, devices, training=training)
    for known in (file,) if training else (cache_file(facts, devices), file):
        if (before := kept(known)) is not None:
            _LOG.debug("%s: as %s has it", spec, known)
            return before
    topology, notes = detected(facts, devices)
    progress(f"measure this machine, about {duration(training)} seconds", None)
    topology, found, share = measured(topology, facts, host_here(topology, facts), progress=progress, training=training)
    if busy := busy_warning(share):
        sink.warn(busy, where=spec)
        return topology
    keep(file, topology, {**notes, **found})
    sink.emit(replace(MeasuredNow(str(file)).at(spec), severity=Severity.NOTE))
    return topology


def _devices(option: str | None, spec: str) -> int | None:
    if option is None:
        return None
    devices = re.fullmatch(r"devices=(\d{1,4})", option)
    if devices is None or not int(devices[1]):
        raise InvalidInput(WrongPresetOption(option, "devices=N"), where=spec)
    return int(devices[1])
