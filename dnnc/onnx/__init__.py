"""ONNX: its types, attributes, operators and files, as those of the IR.

- ``types``, ``elements``, ``arrays``, ``attributes``: types, elements and attribute values, both ways;
- ``domains``, ``schemas``, ``opdefs``: operators and their definitions in the IR;
- ``model``, ``weights``: what an import yields, and where the bytes of its weights are;
- ``importer``: a model file to a module; ``protobuf``: a file walked without reading its data;
- ``faults``: what is refused, by code;
- ``ort``, ``providers``: the one door to onnxruntime, and its execution providers.

Everything is imported at first use: a stage process imports this package too and must start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ir.system.lazy import exports

if TYPE_CHECKING:
    from dnnc.onnx.importer.read import import_model
    from dnnc.onnx.model import Arrays, ImportedModel, bind_module, dim_flags, free_symbols, require_bound
    from dnnc.onnx.opdefs import DIALECTS

__all__ = [
    "DIALECTS",
    "Arrays",
    "ImportedModel",
    "bind_module",
    "dim_flags",
    "free_symbols",
    "import_model",
    "require_bound",
]

__getattr__ = exports(
    __name__,
    {
        "importer.read": "import_model",
        "model": "Arrays ImportedModel bind_module dim_flags free_symbols require_bound",
        "opdefs": "DIALECTS",
    },
)
