"""Loads torch so that it works in any directory and leaves no files behind.

While torch is loaded, MKL ends the process where the current directory was removed. ``torch._dynamo``, which optimizers load,
fails there too, and makes a folder for compiled kernels in the temporary directory, which dnnc never fills.
"""

from __future__ import annotations

import importlib
import os
from contextlib import suppress

from ir.system.scratch import temporary_directory

CACHE = "TORCHINDUCTOR_CACHE_DIR"
"""Names the folder; torch makes it if it is not there."""


def leave_nothing() -> None:
    """From now on torch makes no folder in this process, which is dnnc's own."""
    os.environ.setdefault(CACHE, str(temporary_directory()))


def load_torch_elsewhere() -> None:
    """Where the current directory was removed, load torch from another, and go back."""
    try:
        os.getcwd()
    except FileNotFoundError:
        here = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        os.chdir("/")
        try:
            with suppress(ImportError):
                importlib.import_module("torch._dynamo")
        finally:
            os.fchdir(here)
            os.close(here)
