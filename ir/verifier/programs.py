"""INV01, INV03 to INV12: the bodies of functions and stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ir.core.attributes import Attributes, AttrKind
from ir.core.facets import DECISIONS, Facet, OptimizerState, Sync
from ir.core.module import Func, Program, Resource, Stage, Symbol
from ir.core.names import quote_name
from ir.core.ops import Op, Region, Value, all_ops
from ir.core.types import TensorType, Type
from ir.ops.opdefs import OpDef, module_opsets, opdef
from ir.verifier.copies import Copies, is_variant
from ir.verifier.findings import Findings
from ir.verifier.values import MAX_NESTING, attribute_faults, compatible, facet_faults, type_faults


def check_programs(findings: Findings) -> None:
    """Every function and stage of the module, and the calls between functions; INV10 and INV20 with ``copies``."""
    counts = _call_counts(findings)
    checker = _Checker(findings)
    for symbol in findings.module.symbols:
        if isinstance(symbol, Func | Stage | Program):
            checker.program(symbol, shared=counts.get(symbol.name, 0) > 1)
    checker.copies.check_variants({name for name, count in counts.items() if count > 1})


class _Checker:
    """Checks one body after the other. Results that depend on a type, attributes or a definition alone are cached."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self.opsets = module_opsets(findings.module)
        self.definitions: dict[str, OpDef | None] = {}
        self.sound_types: set[int] = set()
        self.sound_attributes: set[int] = set()
        self.program_: Func | Stage | Program
        self.visible: dict[str, Type]
        self.assigned: dict[str, Type]
        self.undefined: list[tuple[str, str, str, Op | None, Region | None]]
        self.log: list[str]
        self.shared: bool
        self.copies = Copies(findings)

    def program(self, program: Func | Stage | Program, shared: bool) -> None:
        self.program_, self.shared = program, shared
        self.visible, self.assigned, self.undefined, self.log = {}, {}, [], []
        for value in program.args:
            self.assign(value, None)
        self.body(program.ops, 0)
        for value in program.results:
            self.use("INV05", value.name, None, "result")
            self.type(value, None)
            assigned_type = self.visible.get(value.name) or self.resource_type(value.name)
            if value.name[:1] == "@" and isinstance(assigned_type, TensorType) and isinstance(value.type, TensorType):
                assigned_type = replace(
                    assigned_type, layout=value.type.layout
                )  # a stage may keep it otherwise than the first that reads it
            if isinstance(program, Program):
                continue  # a part of the result, as INV23 says
            if assigned_type is not None and not compatible(assigned_type, value.type):
                self.add(
                    "INV05", f"result {value.name} is declared {value.type} but is {assigned_type}", None, about=value.name
                )
        for code, name, what, user, part in self.undefined:
            where = "before or outside the body that assigns it" if name in self.assigned else "but never assigned"
            self.add(code, f"{what} {quote_name(name)} is used {where}", user, part=part, about=name)

    def add(
        self, code: str, message: str, op: Op | None, *, part: Region | None = None, about: str = "", hint: str = ""
    ) -> None:
        self.findings.add(code, message, self.program_, op, part=part, about=about, hint=hint)

    def body(self, ops: Sequence[Op], depth: int) -> None:
        for op in ops:
            for name in op.operands:
                if name:
                    self.use("INV04", name, op, "operand")
            if op.attributes:
                self.attributes(op)
            if op.facets:
                self.facets(op)
            self.definition(op)
            if op.regions:
                self.regions(op, depth)
            for value in op.results:
                self.assign(value, op)

    def regions(self, op: Op, depth: int) -> None:
        if depth >= MAX_NESTING:
            self.add("INV07", f"regions are nested more than {MAX_NESTING} deep", op)
            return
        keys = [key for key, _ in op.regions]
        if len(set(keys)) != len(keys):
            self.add("INV08", "two regions have the same key", op)
        for _, region in op.regions:
            mark = len(self.log)
            for value in region.args:
                self.assign(value, op)
            self.body(region.ops, depth + 1)
            for name in region.results:
                self.use("INV05", name, op, "yield", region)
            for name in self.log[mark:]:
                self.visible.pop(name, None)
            del self.log[mark:]

    def assign(self, value: Value, op: Op | None) -> None:
        name = value.name
        self.type(value, op)
        if not name and op is not None:
            return
        if name[:1] != "%":
            self.add("INV01", f"the value's name '{name}' does not begin with %", op)
        if name in self.assigned:
            self.add("INV03", f"{name} is assigned twice", op, about=name)
        self.assigned[name] = self.visible[name] = value.type
        self.log.append(name)

    def use(self, code: str, name: str, op: Op | None, what: str, part: Region | None = None) -> None:
        if name in self.visible:
            return
        if name[:1] == "@":
            symbol = self.findings.symbols.get(name)
            if symbol is None:
                self.add("INV06", f"{what} {name} is not a symbol of the module", op, part=part, about=name)
            elif not isinstance(symbol, Resource):
                self.add("INV06", f"{what} {name} is a {_kind(symbol)}, not a resource", op, part=part, about=name)
        elif name[:1] == "%":
            self.undefined.append((code, name, what, op, part))
        else:
            self.add("INV01", f"the {what} '{name}' begins with neither % nor @", op, part=part)

    def type(self, value: Value, op: Op | None) -> None:
        if id(value.type) not in self.sound_types:
            faults = type_faults(value.type, self.findings.meshes)
            for fault in faults:
                code = "INV06" if fault.endswith("not a mesh of the module") else "INV07"
                self.add(code, f"of {value.name}: {fault}", op, about=value.name)
            if not faults:
                self.sound_types.add(id(value.type))

    def attributes(self, op: Op) -> None:
        if id(op.attributes) in self.sound_attributes:
            return
        faults = [("INV08", fault) for fault in attribute_faults(op.attributes)]
        faults += [("INV06", fault) for fault in self.missing_symbols(op.attributes)]
        for code, fault in faults:
            self.add(code, f"of {op.id}: {fault}", op)
        if not faults:
            self.sound_attributes.add(id(op.attributes))

    def missing_symbols(self, attributes: Attributes) -> Iterable[str]:
        for key, attribute in attributes:
            if attribute.kind is AttrKind.SYMBOL and attribute.value not in self.findings.symbols:
                yield f"attribute '{key}' names {attribute.value}, which is not a symbol of the module"

    def facets(self, op: Op) -> None:
        for fault in facet_faults(op.facets, op):
            self.add("INV09", f"of {op.id}: {fault}", op)
        for facet in op.facets:
            if isinstance(facet, Sync | OptimizerState):
                self.add("INV09", f"facet '{facet.keyword}' of {op.id} belongs on a resource", op, about=facet.keyword)
            elif self.shared and isinstance(facet, DECISIONS):
                self.decision(op, facet)

    def decision(self, op: Op, facet: Facet) -> None:
        """A decision in a function that is called more than once."""
        if not isinstance(self.program_, Program) and is_variant(self.program_):
            return
        self.add(
            "INV10",
            f"{op.id} holds the decision '{facet.keyword}', but {self.program_.name} is called more than once",
            op,
            about=f"{facet.keyword}<",
            hint="clone the function for each distinct decision",
        )

    def definition(self, op: Op) -> None:
        name = op.name
        if name not in self.definitions:
            self.definitions[name] = opdef(name, self.opsets, self.findings.dialects)
        definition = self.definitions[name]
        if definition is None:
            return
        faults = definition.faults(op)
        for fault in faults:
            self.add("INV11", fault, op, about=name)
        if name == "dnnc.call" and not faults:
            self.call(op)
        if definition.typed is not None and not faults:
            for fault in definition.typed(op, [self.value_type(operand) for operand in op.operands]):
                self.add("INV11", fault, op, about=name)

    def call(self, op: Op) -> None:
        callee = self.findings.symbols.get(op.get("callee"))
        if callee is None:
            return
        if not isinstance(callee, Func):
            self.add("INV06", f"{op.id} calls {callee.name}, which is a {_kind(callee)}, not a function", op, about=callee.name)
            return
        pairs = (
            ("operands", [self.value_type(name) for name in op.operands], callee.args),
            ("results", [value.type for value in op.results], callee.results),
        )
        for what, given, declared in pairs:
            if len(given) != len(declared):
                self.add("INV12", f"{callee.name} has {len(declared)} {what}, but the call {len(given)}", op, about=callee.name)
                continue
            for type_, value in zip(given, declared, strict=True):
                if type_ is not None and not compatible(type_, value.type):
                    message = f"the call gives {type_} where {callee.name} declares {value.name} as {value.type}"
                    self.add("INV12", message, op, about=callee.name)
        for fault in self.copies.faults(op, callee):
            self.add(fault.code, fault.message, op, about=fault.about, hint=fault.hint)

    def value_type(self, name: str) -> Type | None:
        return self.visible.get(name) or self.resource_type(name)

    def resource_type(self, name: str) -> Type | None:
        symbol = self.findings.symbols.get(name)
        return symbol.type if isinstance(symbol, Resource) else None


def _kind(symbol: Symbol) -> str:
    return {"Func": "function"}.get(type(symbol).__name__, type(symbol).__name__.lower())


def _calls(ops: Iterable[Op]) -> Iterable[tuple[str, Op]]:
    return ((op.get("callee", ""), op) for op in all_ops(ops) if op.name == "dnnc.call")


def _call_counts(findings: Findings) -> dict[str, int]:
    """How many copies of each function the expanded program has, capped at 2; a cycle of calls is a fault."""
    funcs = {func.name: func for func in findings.module.of_type(Func)}
    calls = {name: [(callee, op) for callee, op in _calls(func.ops) if callee in funcs] for name, func in funcs.items()}
    callers = {name: 0 for name in funcs}
    for edges in calls.values():
        for callee, _ in edges:
            callers[callee] += 1
    ready = [name for name, count in callers.items() if count == 0]
    counts = {name: 1 if callers[name] == 0 else 0 for name in funcs}
    left = dict(callers)
    done = set()
    while ready:
        name = ready.pop()
        done.add(name)
        for callee, _ in calls[name]:
            counts[callee] = min(2, counts[callee] + counts[name])
            left[callee] -= 1
            if left[callee] == 0:
                ready.append(callee)
    for name, edges in calls.items():
        for callee, op in edges:
            if name not in done and callee not in done and _reaches(calls, callee, name):
                findings.add("INV12", f"{name} calls itself through {callee}", funcs[name], op, about=callee)
    return counts


def _reaches(calls: dict[str, list[tuple[str, Op]]], start: str, goal: str) -> bool:
    seen, todo = {start}, [start]
    while todo:
        name = todo.pop()
        if name == goal:
            return True
        for callee, _ in calls[name]:
            if callee not in seen:
                seen.add(callee)
                todo.append(callee)
    return False
