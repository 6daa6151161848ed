"""Summarises a module: inputs, weights, ops and their cost.

``ModelSummary`` is the data (``--json`` prints it), ``summary_text`` the text. Each op in a region counts once, however often
it runs. For a folded module, the ops of the expanded program are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dnnc.report.tables import Table, columns, key_values, table_text
from ir.core.dims import symbols
from ir.core.facets import DECISIONS, Cost
from ir.core.module import Func, Module, Resource, State
from ir.core.ops import Value, all_ops
from ir.core.types import TensorType, type_bytes, without_layout
from ir.text.units import bytes_text, count_text, percent_text
from passes.graph.folding import copies_of, expand, expanded_bodies
from passes.prepare.states import Role, caches, recurrent, roles_of


@dataclass(frozen=True, slots=True)
class Repeated:
    """A function that ``fold`` wrote: number of ``ops`` of its expanded body and of ``copies`` in the program. ``decided``:
    kinds of decisions on its ops, sorted; ``layout`` if values are split."""

    name: str
    ops: int
    copies: int
    decided: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """``parameters``: elements of all resources; ``weight_bytes``: their bytes. ``flops``: of one run. ``formula_ops`` and
    ``default_ops``: ops with a cost formula, and ops counted by bytes only. These three are None before the pass ``cost``.
    ``dims``: dimensions to bind, sorted. ``states``: what may stay from step to step, by its name: input, output and how it is
    kept. ``repeats``: functions of a folded module."""

    name: str
    producer: str
    opsets: tuple[tuple[str, int], ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    resources: int
    parameters: int
    weight_bytes: int
    ops: tuple[tuple[str, int], ...]
    flops_by_type: tuple[tuple[str, int], ...]
    flops: int | None
    formula_ops: int | None
    default_ops: tuple[tuple[str, int], ...]
    dims: tuple[str, ...]
    repeats: tuple[Repeated, ...] = ()
    states: tuple[tuple[str, str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON-ready data; types are IR text."""
        return {
            "name": self.name,
            "producer": self.producer,
            "opsets": dict(self.opsets),
            "inputs": [{"name": value.name, "type": str(value.type)} for value in self.inputs],
            "outputs": [{"name": value.name, "type": str(value.type)} for value in self.outputs],
            "resources": self.resources,
            "parameters": self.parameters,
            "weight_bytes": self.weight_bytes,
            "ops": dict(self.ops),
            "flops": self.flops,
            "flops_by_type": dict(self.flops_by_type),
            "ops_with_formula": self.formula_ops,
            "ops_counted_by_bytes": dict(self.default_ops),
            "dims": list(self.dims),
            "states": [{"input": source, "output": result, "kept": how} for source, result, how in self.states],
            "repeats": [
                {"function": one.name, "ops": one.ops, "copies": one.copies, "decided": list(one.decided)}
                for one in self.repeats
            ],
        }


def summarize(module: Module, costed: Module | None = None) -> ModelSummary:
    """Counts of a module's entry function and resources; costs are taken from ``costed`` (the same program after the pass
    ``cost``), or from the module itself. Raises ValueError without a function."""
    given, module = module, expand(module)
    entry: Func = module.entry
    resources = tuple(one for one in module.of_type(Resource) if not isinstance(one.data, State))
    ops = tuple(all_ops(entry.ops))
    costed_entry = expand(costed).entry if costed else entry
    known = [(op, cost) for op in all_ops(costed_entry.ops) if (cost := op.facet(Cost)) is not None]
    flops: Counter[str] = Counter()
    for op in costed_entry.ops:  # the cost of an op includes its regions
        if (cost := op.facet(Cost)) is not None:
            flops[op.name] += cost.flops
    attributes = {key: attribute.value for key, attribute in module.attributes}
    prefix = "opset."
    return ModelSummary(
        name=module.name,
        producer=str(attributes.get("producer", "")),
        opsets=tuple((key.removeprefix(prefix), int(v)) for key, v in sorted(attributes.items()) if key.startswith(prefix)),
        inputs=entry.args,
        outputs=entry.results,
        resources=len(resources),
        parameters=sum(_elements(resource) for resource in resources),
        weight_bytes=sum(type_bytes(resource.type) or 0 for resource in resources),
        ops=_counted(op.name for op in ops),
        flops_by_type=tuple(sorted(((k, v) for k, v in flops.items() if v), key=lambda item: (-item[1], item[0]))),
        flops=sum(flops.values()) if known else None,
        formula_ops=sum(cost.kind != "default" for _, cost in known) if known else None,
        default_ops=_counted(op.name for op, cost in known if cost.kind == "default"),
        dims=tuple(sorted(_dims(entry))),
        repeats=repeats(given),
        states=_states(module),
    )


GIVEN = "given where a sequence begins"


def _states(module: Module) -> tuple[tuple[str, str, str], ...]:
    """The states of a module, and the inputs that would be states if they were asked for."""
    entry = module.entry
    kept = [(name[1:], state.result, "a state" if state.result else GIVEN) for name, state in module.states.items()]
    pairs = caches(entry)
    cached = [(pair.source, pair.result, "a cache: --context keeps it") for pair in pairs]
    roles = roles_of(entry, {pair.source for pair in pairs}) if pairs else {}
    cached += [(name, "", f"{GIVEN}: --context keeps it") for name, role in roles.items() if role is Role.GIVEN]
    named = [(pair.source, pair.result, f"--state {pair} keeps it") for pair in recurrent(entry)]
    return (*kept, *cached, *named)


def repeats(module: Module) -> tuple[Repeated, ...]:
    """The functions that ``fold`` wrote, in the order of the module."""
    found = []
    for func, body in expanded_bodies(module):
        ops = tuple(all_ops(body))
        kinds = {facet.keyword for op in ops for facet in op.facets if isinstance(facet, DECISIONS)}
        values = [*func.args, *(value for op in ops for value in op.results)]
        kinds |= {"layout" for value in values if without_layout(value.type) is not value.type}
        found.append(Repeated(func.name, len(ops), copies_of(func), tuple(sorted(kinds))))
    return tuple(found)


def summary_text(summary: ModelSummary) -> str:
    """The summary in words and a table of ops; lines within 80 columns for names of ordinary length."""
    pairs = [("model", summary.name.removeprefix("@"))]
    if summary.producer:
        pairs.append(("producer", summary.producer))
    if summary.opsets:
        pairs.append(("opsets", ", ".join(f"{domain} {version}" for domain, version in summary.opsets)))
    pairs += [("input", f"{value.name} : {value.type}") for value in summary.inputs]
    pairs += [("output", f"{value.name} : {value.type}") for value in summary.outputs]
    pairs += [("state", f"{source}{result and f' becomes {result}'} ({how})") for source, result, how in summary.states]
    total = sum(count for _, count in summary.ops)
    pairs.append(("weights", f"{count_text(summary.parameters)} elements, {bytes_text(summary.weight_bytes)}"))
    pairs.append(("ops", f"{total} of {len(summary.ops)} types"))
    if summary.flops is not None:
        pairs.append(("flops", f"{count_text(summary.flops)} per run"))
    if summary.formula_ops is not None:
        rest = ", ".join(f"{count} {name}" for name, count in summary.default_ops)
        formula = f"{summary.formula_ops} ops by formula"
        pairs.append(("cost", f"{formula}; by bytes only: {rest}" if rest else f"{formula}, none by bytes only"))
    if summary.dims:
        pairs.append(("dims", f"{', '.join(summary.dims)} (bind with --dim NAME=NUMBER)"))
    flops = dict(summary.flops_by_type)
    rows = []
    for name, count in summary.ops:
        share = percent_text(flops.get(name, 0) / summary.flops) if summary.flops else "-"
        rows.append((name, str(count), count_text(flops[name]) if name in flops else "-", share))
    text = key_values(pairs) + "\n" + table_text(Table(columns("<op count flops share"), tuple(rows)))
    functions = tuple([(one.name, str(one.ops), str(one.copies), ", ".join(one.decided) or "-") for one in summary.repeats])
    return text + ("\n" + table_text(Table(columns("<function ops copies <decided"), functions)) if functions else "")


def _counted(names: Iterator[str]) -> tuple[tuple[str, int], ...]:
    """Names with their number of occurrences, most frequent first, then by name."""
    return tuple(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))


def _elements(resource: Resource) -> int:
    type_ = resource.type
    return (type_.elements or 0) if isinstance(type_, TensorType) else 0


def _dims(entry: Func) -> set[str]:
    """Symbolic dimensions of the arguments. When these are bound, every other dimension is a number."""
    shapes = [value.type.shape or () for value in entry.args if isinstance(value.type, TensorType)]
    return {name for shape in shapes for dim in shape if isinstance(dim, str) for name in symbols(dim)}
