"""The intermediate representation: types, ops, modules, their text, and the checks that keep them honest.

``core`` is the program as data, ``ops`` the dialects that dnnc defines, ``text`` its text, ``layout_rules`` how ops may be
split, ``verifier`` the invariants, ``system`` files and what the operating system says.

Public names are reached from here. Each module loads when one of its names is first used, so that ``import ir`` is cheap and
needs no lark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ir.system.lazy import exports

if TYPE_CHECKING:
    from ir.core.attributes import Attribute, Attributes, AttrKind, Dense, attr, attributes
    from ir.core.diagnostics import (
        CheckFailed,
        Diagnostic,
        DiagnosticSink,
        DnncError,
        ExitCode,
        Infeasible,
        InvalidInput,
        InvariantError,
        Severity,
        Span,
        UsageError,
    )
    from ir.core.facets import (
        BackwardTime,
        Color,
        Cost,
        Direction,
        Facet,
        Facets,
        Group,
        InTraining,
        Measured,
        OptimizerState,
        Phase,
        ShardRule,
        StageSet,
        Sync,
        Time,
        Transfer,
    )
    from ir.core.module import (
        Action,
        Declared,
        External,
        Func,
        Inline,
        Mesh,
        Module,
        Plan,
        PlanStage,
        Program,
        Random,
        Resource,
        ResourceData,
        Schedule,
        Splat,
        Stage,
        State,
        StoredData,
        Symbol,
        View,
    )
    from ir.core.ops import UNKNOWN_LOCATION, Location, Op, Region, Value
    from ir.core.topology import Device, DeviceType, Host, Link, Route, Switch, Topology
    from ir.core.types import (
        UNKNOWN,
        BytesType,
        Dim,
        DType,
        Layout,
        MapType,
        OptionalType,
        Partial,
        Placement,
        Replicate,
        SeqType,
        Shard,
        TensorType,
        Type,
        UnknownType,
        type_bytes,
    )
    from ir.ops.builder import BodyBuilder, Builder, FuncBuilder, RegionBuilder
    from ir.text.parser import ParseResult, SourceMap, parse, parse_module, read_text
    from ir.text.printer import print_module, print_op, print_symbol
    from ir.verifier import load_module, verify

__getattr__ = exports(
    __name__,
    {
        "core.attributes": "Attribute Attributes AttrKind Dense attr attributes",
        "ops.builder": "BodyBuilder Builder FuncBuilder RegionBuilder",
        "core.diagnostics": (
            "CheckFailed Diagnostic DiagnosticSink DnncError ExitCode Infeasible InvalidInput InvariantError Severity "
            "Span UsageError"
        ),
        "core.facets": (
            "BackwardTime Color Cost Direction Facet Facets Group InTraining Measured OptimizerState Phase ShardRule "
            "StageSet Sync Time Transfer"
        ),
        "core.module": (
            "Action Declared External Func Inline Mesh Module Plan PlanStage Program Random Resource ResourceData "
            "Schedule Splat Stage State StoredData Symbol View"
        ),
        "core.ops": "UNKNOWN_LOCATION Location Op Region Value",
        "core.topology": "Device DeviceType Host Link Route Switch Topology",
        "core.types": (
            "UNKNOWN BytesType Dim DType Layout MapType OptionalType Partial Placement Replicate SeqType Shard "
            "TensorType Type UnknownType type_bytes"
        ),
        "text.parser": "ParseResult SourceMap parse parse_module read_text",
        "text.printer": "print_module print_op print_symbol",
        "verifier": "load_module verify",
    },
)

__all__ = [
    "UNKNOWN",
    "UNKNOWN_LOCATION",
    "Action",
    "AttrKind",
    "Attribute",
    "Attributes",
    "BackwardTime",
    "BodyBuilder",
    "Builder",
    "BytesType",
    "CheckFailed",
    "Color",
    "Cost",
    "DType",
    "Declared",
    "Dense",
    "Device",
    "DeviceType",
    "Diagnostic",
    "DiagnosticSink",
    "Dim",
    "Direction",
    "DnncError",
    "ExitCode",
    "External",
    "Facet",
    "Facets",
    "Func",
    "FuncBuilder",
    "Group",
    "Host",
    "InTraining",
    "Infeasible",
    "Inline",
    "InvalidInput",
    "InvariantError",
    "Layout",
    "Link",
    "Location",
    "MapType",
    "Measured",
    "Mesh",
    "Module",
    "Op",
    "OptimizerState",
    "OptionalType",
    "ParseResult",
    "Partial",
    "Phase",
    "Placement",
    "Plan",
    "PlanStage",
    "Program",
    "Random",
    "Region",
    "RegionBuilder",
    "Replicate",
    "Resource",
    "ResourceData",
    "Route",
    "Schedule",
    "SeqType",
    "Severity",
    "Shard",
    "ShardRule",
    "SourceMap",
    "Span",
    "Splat",
    "Stage",
    "StageSet",
    "State",
    "StoredData",
    "Switch",
    "Symbol",
    "Sync",
    "TensorType",
    "Time",
    "Topology",
    "Transfer",
    "Type",
    "UnknownType",
    "UsageError",
    "Value",
    "View",
    "attr",
    "attributes",
    "load_module",
    "parse",
    "parse_module",
    "print_module",
    "print_op",
    "print_symbol",
    "read_text",
    "type_bytes",
    "verify",
]
