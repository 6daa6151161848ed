"""dnnc: compiles a neural network and a description of machines into one program per device.

Importing this package is cheap: it only makes sure that the three packages it shares a directory with (``grammars``, ``ir``,
``passes``) are its own. Their names are short, so another project's package of the same name may come first on the path;
that would fail later in ways nobody can read.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "from_torch", "into_torch"]


def __getattr__(name: str) -> Any:
    """``from_torch`` and ``into_torch``, which need the extra ``train``, are imported when somebody asks for them."""
    if name not in ("from_torch", "into_torch"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    if find_spec("torch") is None:
        raise ImportError(f"dnnc.{name} needs PyTorch: pip install 'dnnc[train]'")
    return getattr(
        import_module("dnnc.engines.torch.module.from_module" if name == "from_torch" else "dnnc.engines.torch.module"), name
    )


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
