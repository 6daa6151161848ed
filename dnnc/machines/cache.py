"""The measured topology of this machine in the user's cache, so that it is measured once.

One file for each machine and software: its name is a digest of the facts of the host (``facts``), of the number of devices, of
the versions of what computes, and of the modules that measure. With other hardware, limits, versions or measurements the
machine is measured again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import platform
from importlib import metadata
from pathlib import Path

from dnnc.machines.facts import Facts
from dnnc.machines.topology.read import read_topology
from dnnc.machines.topology.writer import Notes, topology_to_toml
from ir.core.diagnostics import DnncError
from ir.core.topology import Topology
from ir.system.scratch import whole_file

_LOG = logging.getLogger(__name__)
_SOFTWARE = ("dnnc", "numpy", "onnxruntime", "torch")
"""Packages whose versions decide how fast this machine computes, or how that is measured."""
_MEASURING = ("handover.py", "kernels/gpus.py", "kernels/training.py", "measure.py", "probes.py", "profile.py", "samples.py")
"""The modules of this folder that say what is measured, and how."""


def cache_file(facts: Facts, devices: int | None, *, training: bool = True) -> Path:
    """Where the measured topology of this machine with so many devices (None: one for each NUMA node) is kept. ``training``:
    measured for training too."""
    versions = {name: _version(name) for name in _SOFTWARE}
    method = hashlib.sha256(b"\0".join((Path(__file__).parent / name).read_bytes() for name in _MEASURING)).hexdigest()
    known = [dataclasses.asdict(facts), devices, training, versions, method, platform.python_version(), platform.release()]
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return user / "dnnc" / "machines" / f"{facts.host}-{digest}.toml"


def kept(path: Path) -> Topology | None:
    """The topology in a file of the cache; None where there is none, or none that can be read."""
    try:
        return read_topology(path.read_text(encoding="utf-8"), name="local", where=str(path))
    except (OSError, UnicodeDecodeError, DnncError) as error:
        _LOG.debug("%s is not used: %s", path, error)
        return None


def keep(path: Path, topology: Topology, notes: Notes) -> None:
    """Writes the topology, with notes on each number, into the cache; does nothing where the cache cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(topology_to_toml(topology, notes).encode())
    except (OSError, DnncError) as error:
        _LOG.debug("%s is not written: %s", path, error)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
