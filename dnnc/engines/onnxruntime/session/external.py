"""Opens sessions whose external data is in open files, so that onnxruntime reads these files even if their paths have changed.

onnxruntime finds external data by path. So the locations in the model are replaced by ``/proc/self/fd/N``, which opens the same
file again; onnxruntime maps it, and processes share the memory. Where no path leads to the file (it was deleted, or there is no
``/proc``), onnxruntime copies the weights from a memory map instead.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping
from typing import Any

from dnnc.onnx.protobuf.places import locations, relocated


def open_path(descriptor: int) -> str:
    """A path that opens the file of ``descriptor`` again; empty where there is none."""
    path = f"/proc/self/fd/{descriptor}"
    try:
        target = os.stat(os.path.realpath(path))  # raises OSError for a deleted file
        return path if os.path.samestat(target, os.fstat(descriptor)) else ""
    except OSError:
        return ""


def session_on(model: bytes, weights: Mapping[str, int], options: Callable[[], Any], start: Callable[[bytes, Any], Any]) -> Any:
    """An onnxruntime session of a model whose external data is in open files. ``weights``: from a location in the model to a
    file descriptor; ``options()`` makes session options, ``start(model, options)`` a session. Raises ValueError for a location
    that is not in ``weights``, and what onnxruntime raises."""
    names = locations(model)
    if unknown := [name for name in names if name not in weights]:
        raise ValueError(f"the model refers to '{unknown[0]}', which is no weights file of the build")
    if not names:
        return start(model, options())
    paths = {name: open_path(weights[name]) for name in names}
    if all(paths.values()):
        by_path = options()
        # onnxruntime asks that the files are below this folder, so it is the root.
        by_path.add_session_config_entry("session.model_external_initializers_file_folder_path", "/")
        try:
            return start(relocated(model, lambda name: paths[name][1:]), by_path)
        except Exception:  # onnxruntime's own; goes on from memory if a file was deleted meanwhile
            if all(open_path(weights[name]) for name in names):
                raise
    from_memory = options()
    maps = [_mapped(weights[name]) for name in names]
    from_memory.add_external_initializers_from_files_in_memory(list(names), maps, [len(data) for data in maps])
    return start(model, from_memory)


def _mapped(descriptor: int) -> mmap.mmap | bytes:
    return mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) if os.fstat(descriptor).st_size else b""
