"""dnnc: compiles a neural network and a description of machines into one program per device.

In Python: ``dnnc.plan(model, machines=..)`` makes a plan, ``Plan.write`` a build, ``Build.start`` a running session
(``dnnc.api``; the guide shows all of it).

Rooms, each of which may import those before it (``tests/test_architecture.py``):

- ``onnx``: models from ONNX files, and the door to onnxruntime; ``build``: directories of programs; ``data``: arrays of runs;
- ``report``: tables, timelines, the page; ``zoo``: models that come with dnnc; ``engines``: what runs builds;
- ``machines``: topology files, presets, measurement; ``search_tag``: another search method, to compare with;
- ``compile``: from a model and a topology to a build; ``study``: other machines, profiles, calibration;
- ``check``: whether a build computes the model; ``workloads``: profiled graphs of the literature;
- ``api``: what Python programs call; ``cli``: the command.

Importing this package is cheap: what it offers is imported when it is asked for. It only makes sure that the three packages it
shares a directory with (``grammars``, ``ir``, ``passes``) are its own. Their names are short, so another project's package of
the same name may come first on the path; that would fail later in ways nobody can read.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dnnc.api.build import Build, CheckResult, Training, load
    from dnnc.api.exporting import export
    from dnnc.api.machines import measure_cluster
    from dnnc.api.options import PlanOptions
    from dnnc.api.plan import Plan, plan
    from dnnc.api.session import Argument, Session
    from dnnc.api.terms import DnncWarning
    from dnnc.engines.onnxruntime.errors import RuntimeFailure
    from dnnc.engines.torch.module import into_torch
    from dnnc.engines.torch.module.from_module import from_torch
    from dnnc.engines.torch.module.optimizers import optimizer_options
    from ir.core.diagnostics import DnncError, Infeasible, InvalidInput, UsageError
    from ir.core.topology import Topology

__all__ = [
    "Argument",
    "Build",
    "CheckResult",
    "DnncError",
    "DnncWarning",
    "Infeasible",
    "InvalidInput",
    "Plan",
    "PlanOptions",
    "RuntimeFailure",
    "Session",
    "Topology",
    "Training",
    "UsageError",
    "__version__",
    "export",
    "from_torch",
    "into_torch",
    "load",
    "measure_cluster",
    "optimizer_options",
    "plan",
]

_HOME = {
    "dnnc.api.build": ("Build", "CheckResult", "Training", "load"),
    "dnnc.api.exporting": ("export",),
    "dnnc.api.machines": ("measure_cluster",),
    "dnnc.api.options": ("PlanOptions",),
    "dnnc.api.plan": ("Plan", "plan"),
    "dnnc.api.session": ("Argument", "Session"),
    "dnnc.api.terms": ("DnncWarning",),
    "dnnc.engines.onnxruntime.errors": ("RuntimeFailure",),
    "dnnc.engines.torch.module": ("into_torch",),
    "dnnc.engines.torch.module.from_module": ("from_torch",),
    "dnnc.engines.torch.module.optimizers": ("optimizer_options",),
    "ir.core.diagnostics": ("DnncError", "Infeasible", "InvalidInput", "UsageError"),
    "ir.core.topology": ("Topology",),
}
"""Modules and the names in them that are imported when somebody asks for them."""


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOME.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    if home.startswith("dnnc.engines.torch") and find_spec("torch") is None:
        raise ImportError(f"dnnc.{name} needs PyTorch: pip install 'dnnc[train]'")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _foreign_packages() -> str:
    """What is wrong with the packages beside this one; empty when nothing is."""
    home = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    for name in ("grammars", "ir", "passes"):
        spec = find_spec(name)
        if spec is None:
            return f"its package '{name}' was not found; expected {os.path.join(home, name)}; install dnnc again"
        places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
        own = os.path.join(home, name)
        if not any(os.path.commonpath((own, os.path.realpath(place))) == own for place in places):
            return (
                f"found another package named '{name}' first on the path: {places[0] if places else name}; expected "
                f"{own}; run from another directory, or take that one's folder out of PYTHONPATH"
            )
    return ""


_fault = _foreign_packages()
if _fault:
    if os.path.splitext(os.path.basename(sys.argv[0]))[0] in ("dnnc", "-m"):  # the command: a person reads this, not a program
        raise SystemExit(f"dnnc: error: dnnc cannot start: {_fault}")
    raise ImportError(f"dnnc cannot be imported: {_fault}")
