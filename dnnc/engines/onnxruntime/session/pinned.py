"""Pinned memory: pages of the host that stay where they are, so that a GPU copies from and to them directly.

CUDA copies from and to other memory through a buffer of its own: on an H100, 16 MiB to the GPU and back took 1.3 ms, and
0.34 ms where both sides were pinned. Memory that processes share is mapped as long as the process lives, so it is pinned once.
"""

from __future__ import annotations

import ctypes
import mmap
from functools import cache
from typing import Any

import numpy as np

from dnnc.onnx.elements import Array

_PORTABLE = 1
"""CU_MEMHOSTREGISTER_PORTABLE of cuda.h: pinned for all contexts of the process."""
_pinned: set[int] = set()
"""Addresses of the mappings that were tried."""


def pin(array: Array) -> None:
    """Pins the mapping that the array lies in, if it lies in one: other memory may be freed. Where CUDA cannot (a limit on
    locked memory), copies are slower. A session on the GPU must have been opened in this thread."""
    root: Any = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(_owner(root), mmap.mmap) or root.ctypes.data in _pinned:
        return
    _pinned.add(root.ctypes.data)
    register = _register()
    if register is not None:
        register(ctypes.c_void_p(root.ctypes.data), ctypes.c_size_t(root.nbytes), ctypes.c_uint(_PORTABLE))


def _owner(root: Array) -> Any:
    """What holds the memory of an array that is no view of another."""
    return root.base.obj if isinstance(root.base, memoryview) else root.base


@cache
def _register() -> Any:
    """``cuMemHostRegister`` of the driver; None without one."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuMemHostRegister_v2
    except (OSError, AttributeError):
        return None
