"""INV01, INV02, INV13 and the facets of resources: the symbols of a module as such."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import PurePosixPath

from ir.core.attributes import AttrKind
from ir.core.facets import DECISIONS, InTraining, OptimizerState, Sync
from ir.core.module import External, Func, Inline, Plan, Random, Resource, Schedule, Splat, Stage, Symbol, View
from ir.core.ranges import MOST_MEMORY
from ir.core.topology import Topology
from ir.core.types import DType, TensorType
from ir.text.dense import storage_fault
from ir.verifier.findings import Findings
from ir.verifier.values import attribute_faults, facet_faults, type_faults

MOST_VERSION = 1 << 31
"""Of an opset or of ONNX; its own are below 30."""
_TEXTS = ("producer", "unit")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")


def check_symbols(findings: Findings) -> None:
    """Names of symbols, attributes of the module, resources."""
    module = findings.module
    if not is_symbol(module.name):
        findings.add("INV01", f"the module's name '{module.name}' does not begin with @", None)
    for fault in attribute_faults(module.attributes):
        findings.add("INV08", f"of the module: {fault}", None)
    for key, attribute in module.attributes:
        version = key.startswith("opset.") or key == "ir_version"
        if version and not (attribute.kind is AttrKind.INT and 0 <= attribute.value < MOST_VERSION):
            findings.add("INV08", f"of the module: attribute '{key}' is a number from 0 to {MOST_VERSION - 1}", None)
        if key in _TEXTS and attribute.kind is not AttrKind.STRING:
            findings.add("INV08", f"of the module: attribute '{key}' is a text", None)
    seen: set[type[Symbol]] = set()
    for symbol in module.symbols:
        kind = type(symbol)
        if kind in seen and kind in (Topology, Schedule, Plan):
            findings.add("INV02", f"{symbol.name} is a second {kind.__name__.lower()}; a module has at most one", symbol)
        seen.add(kind)
        if not is_symbol(symbol.name):
            findings.add("INV01", f"the symbol's name '{symbol.name}' does not begin with @", symbol)
        if findings.symbols[symbol.name] is not symbol:
            findings.add("INV02", f"symbol {symbol.name} is defined twice", symbol)
        if isinstance(symbol, Func | Stage):
            for fault in attribute_faults(symbol.attributes):
                findings.add("INV08", f"of {symbol.name}: {fault}", symbol)
        if isinstance(symbol, Resource):
            _check_resource(findings, symbol)


def is_symbol(name: str) -> bool:
    return name[:1] == "@"


def _check_resource(findings: Findings, resource: Resource) -> None:
    unsound = type_faults(resource.type, findings.meshes)
    for fault in unsound:
        findings.add("INV07", f"of {resource.name}: {fault}", resource)
    for fault in () if unsound else _data_faults(resource):  # what data a type needs is known of a sound type
        findings.add("INV13", f"of {resource.name}: {fault}", resource)
    if resource.digest and not _DIGEST.match(resource.digest):
        findings.add(
            "INV13", f"the digest of {resource.name} is not sha256: and 64 hexadecimal digits", resource, about="digest"
        )
    for fault in facet_faults(resource.facets, None):
        findings.add("INV09", f"of {resource.name}: {fault}", resource)
    for facet in resource.facets:
        if not isinstance(facet, Sync | OptimizerState | InTraining):
            kind = "decision" if isinstance(facet, DECISIONS) else "fact"
            findings.add("INV09", f"{facet.keyword} is a {kind} about an op, not about resource {resource.name}", resource)


def _range(dtype: DType) -> tuple[int, int]:
    """The least and the largest value of an integer type; booleans are 0 and 1."""
    if dtype is DType.BOOL:
        return 0, 1
    return (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1) if dtype.value[0] == "i" else (0, (1 << dtype.bits) - 1)


def _view_faults(resource: Resource, view: View) -> list[str]:
    """The box lies in the whole, its elements are as many as those of the type, and the whole has data of its shape."""
    type_ = resource.type
    if not isinstance(type_, TensorType) or type_.sparse:
        return [f"a view is of a dense tensor, not of {type_}"]
    shape, start, length = (list(numbers) for numbers in (view.shape, view.start, view.length))
    if len({len(shape), len(start), len(length)}) > 1:
        return [f"shape {shape}, start {start} and length {length} of a view have one number per dimension"]
    boxes = zip(view.shape, view.start, view.length, strict=True)
    if any(first < 0 or count < 0 or first + count > size for size, first, count in boxes):
        return [f"the box from {start}, {length} long, is not inside {shape}"]
    if math.prod(view.length) != type_.elements:
        return [f"the box is {length} long, which is not as many elements as {type_} has"]
    return _data_faults(replace(resource, type=replace(type_, shape=view.shape), data=view.whole))


def _data_faults(resource: Resource) -> list[str]:
    data, type_ = resource.data, resource.type
    if isinstance(data, View):
        return _view_faults(resource, data)
    if isinstance(data, External):
        faults = [
            f"{what} {n} of the external data is not from 0 to {MOST_MEMORY - 1}"
            for what, n in (("offset", data.offset), ("length", data.length))
            if not 0 <= n < MOST_MEMORY
        ]
        path = PurePosixPath(data.file.replace("\\", "/"))
        if not data.file or path.is_absolute() or ".." in path.parts or re.match(r"[A-Za-z]:", data.file):
            faults.append(f"the external file '{data.file}' is not a relative path inside the model's folder")
        expected = (
            type_.nbytes if isinstance(type_, TensorType) and not type_.sparse and type_.dtype is not DType.STRING else None
        )
        if expected is not None and data.length != expected:
            faults.append(f"{type_} has {expected} bytes but the external data has {data.length}")
        return faults
    if isinstance(data, Inline):
        return [fault] if isinstance(type_, TensorType) and (fault := storage_fault(type_, data.data)) else []
    if isinstance(data, Splat | Random) and (not isinstance(type_, TensorType) or type_.dtype is DType.STRING):
        return [f"{type(data).__name__.lower()} data needs a tensor of numbers, not {type_}"]
    if isinstance(data, Splat):
        if not isinstance(type_, TensorType) or not (type_.dtype.is_integer or type_.dtype is DType.BOOL):
            return []
        if not isinstance(data.value, int):
            return [f"splat({data.value}) is not an integer, as {type_} needs"]
        low, high = _range(type_.dtype)
        return [] if low <= data.value <= high else [f"splat({data.value}) does not fit {type_.dtype.value}: {low} to {high}"]
    if isinstance(data, Random):
        faults = []
        if data.distribution not in ("normal", "uniform"):
            faults.append(f"unknown distribution '{data.distribution}'; expected normal or uniform")
        if not (math.isfinite(data.scale) and math.isfinite(data.mean)) or data.scale < 0 or not 0 <= data.seed < 1 << 64:
            faults.append("scale and seed of random data are finite and at least 0, the seed of at most 64 bits")
        return faults
    return []
