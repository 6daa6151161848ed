"""Decisions: copies that were decided alike share a variant, whatever was decided, and it all comes back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ir
from dnnc.compile.context import pass_context, with_topology
from dnnc.machines.topology import load_topology
from dnnc.onnx import DIALECTS
from dnnc.zoo import build
from ir.core.diagnostics import DiagnosticSink
from ir.core.facets import DECISIONS, Facet, ShardRule, StageSet
from ir.core.module import Func, Mesh, Module, Plan, Resource
from ir.core.ops import Op, Value
from ir.core.types import Layout, Replicate, Shard, TensorType
from passes.framework.base import PassContext
from passes.framework.manager import PassManager
from passes.framework.pipeline import parse_pipeline
from passes.graph.folding import expand, fold, folding, is_block
from passes.prepare.fold import FoldPass
from tests.passes.graph.folding.graphs import STREAM, Net, of, round_trip, summary, transformer

LAYER = 22
MESH = Mesh("@mesh", (("x", 2),), ("a", "b"))
SPLIT = Layout("@mesh", (Shard(0),))
OTHER = Layout("@mesh", (Shard(1),))
KINDS = ("Relu", "MatMul", "Add", "Where")
LAYOUTS = (None, SPLIT, OTHER, Layout("@mesh", (Replicate(),)))
FACETS: tuple[tuple[Facet, ...], ...] = (
    (),
    (StageSet((0,)),),
    (StageSet((1,)),),
    (ShardRule("m"),),
    (ShardRule("n"), StageSet((0,))),
    (ShardRule("m"), StageSet((1,))),
)

Change = Callable[[Op], Op]


def with_mesh(module: Module) -> Module:
    return module.extend([MESH])


def with_ops(module: Module, change: Change) -> Module:
    """The module with each op of its entry changed, and results of the entry of the types that they have then."""
    ops = tuple(map(change, module.entry.ops))
    types = {value.name: value.type for op in ops for value in op.results}
    results = tuple(Value(value.name, types.get(value.name, value.type)) for value in module.entry.results)
    return module.replace(module.entry, replace(module.entry, ops=ops, results=results))


def laid(op: Op, layout: Layout | None) -> Op:
    results = [Value(v.name, replace(v.type, layout=layout)) for v in op.results if isinstance(v.type, TensorType)]
    return replace(op, results=tuple(results))


def decided(module: Module, strategies: Sequence[str]) -> Module:
    """A transformer with all ops of a layer sharded by its strategy, one value in it laid accordingly, in stage 0."""

    def change(op: Op) -> Op:
        scope = op.location.scope.split(".")
        strategy = strategies[int(scope[1])] if len(scope) > 1 else ""
        if not strategy:
            return op
        op = op.with_facets(StageSet((0,)), ShardRule(f"{strategy}.{op.name}"))
        return laid(op, SPLIT if strategy == "rows" else OTHER) if op.name == "onnx.Gelu" else op

    return with_ops(with_mesh(module), change)


def bodies(folded: Module, size: int = 0) -> list[Func]:
    """The functions that fold wrote, of so many ops, those of functions inside included."""
    funcs = {func.name: func for func in folded.of_type(Func) if func is not folded.entry}

    def ops(func: Func) -> int:
        return sum(ops(funcs[op.get("callee")]) if op.name == "dnnc.call" else 1 for op in func.ops)

    return [func for func in funcs.values() if not size or ops(func) == size]


def said(func: Func) -> dict[str, object]:
    return {key: attribute.value for key, attribute in func.attributes if key != "fold.order"}


# -- one variant for each distinct decision ----------------------------------------------------------------------------


def test_layers_decided_alike_share_a_variant() -> None:
    """Two strategies, and layers about which nothing was decided: the block and two variants of it."""
    folded = round_trip(decided(transformer(7), ["rows", "columns", "", "columns", "rows", "", "columns"]))
    assert {func.name: said(func) for func in bodies(folded, LAYER)} == {
        "@block_0": {"fold.copies": 2},
        "@block_0.v1": {"fold.copies": 2, "fold.variant": "block_0"},
        "@block_0.v2": {"fold.copies": 3, "fold.variant": "block_0"},
    }
    callees = [op.get("callee") for op in folded.entry.ops if op.name == "dnnc.call"]
    first, second, plain = "@block_0.v1", "@block_0.v2", "@block_0"
    assert callees == [first, second, plain, second, first, plain, second]


def test_a_decision_of_all_ops_stands_on_the_call() -> None:
    """Layers that differ in their stage alone are calls of one body without decisions."""
    stages = [0, 0, 1, 1, 2]
    module = transformer(5)

    def change(op: Op) -> Op:
        scope = op.location.scope.split(".")
        return op.with_facets(StageSet((stages[int(scope[1])],) if len(scope) > 1 else (0, 1)))

    folded = round_trip(with_ops(module, change))
    assert [said(func) for func in bodies(folded, LAYER)] == [{"fold.copies": 5}]
    calls = [op for op in folded.entry.ops if op.name == "dnnc.call"]
    assert [call.facet(StageSet) for call in calls] == [StageSet((stage,)) for stage in stages]
    assert not any(isinstance(facet, DECISIONS) for func in bodies(folded) for op in func.ops for facet in op.facets)


def test_a_copy_decided_like_no_other_is_written_out() -> None:
    module = decided(transformer(5), ["rows", "rows", "columns", "rows", "rows"])
    folded = round_trip(module)
    assert [said(func)["fold.copies"] for func in bodies(folded, LAYER)] == [4]
    assert sum("layer.2." in op.location.scope for op in folded.entry.ops) > 0


def test_variants_of_parts_inside_variants() -> None:
    """Linear layers stand in both kinds of layers, decided in two ways; the one that reads the laid value is like no other."""
    folded = round_trip(decided(transformer(6), ["rows", "columns"] * 3))
    inner = bodies(folded, 2)
    assert [said(func)["fold.variant"] for func in inner] == ["block_1", "block_1"]
    assert [said(func)["fold.copies"] for func in inner] == [15, 15]
    for outer in bodies(folded, LAYER):
        assert Counter(op.name for op in outer.ops)["dnnc.call"] == 5
        assert len({op.get("callee") for op in outer.ops if op.name == "dnnc.call"}) == 1


# -- any decisions -----------------------------------------------------------------------------------------------------


@st.composite
def chains(draw: st.DrawFn) -> tuple[Module, list[list[str]]]:
    """Copies of a block in a row, something else between them, each decided in one of a few ways: the module, and the values
    that the ops of each copy make."""
    size, count = draw(st.integers(3, 6)), draw(st.integers(2, 7))
    pattern = [(draw(st.sampled_from(KINDS)), draw(st.lists(st.integers(-1, n), max_size=2))) for n in range(size)]
    net = Net()
    x = net.arg("x")
    copies = []
    for copy in range(count):
        net.scope = f"copy.{copy}."
        values = [x]
        for number, (kind, operands) in enumerate(pattern):
            names = [values[o] if o >= 0 else net.weight(f"w{number}") for o in (number, *operands)]
            values.append(net.op(kind, *names, at=number))
        copies.append(values[1:])
        net.scope = ""
        x = net.op("Gap", values[-1], at=copy)
    module = with_mesh(net.build(x))
    ways = draw(st.integers(1, 3))
    choices = [[(draw(st.sampled_from(FACETS)), draw(st.sampled_from(LAYOUTS))) for _ in range(size)] for _ in range(ways)]
    weights = [draw(st.sampled_from(LAYOUTS)) for _ in range(ways)]
    facets: dict[str, tuple[Facet, ...]] = {}
    layouts: dict[str, Layout | None] = {}
    for copy, values in enumerate(copies):
        way = draw(st.integers(0, ways - 1))
        for number, (value, (found, layout)) in enumerate(zip(values, choices[way], strict=True)):
            facets[value] = found
            layouts[value] = layout
            layouts[f"@copy.{copy}.w{number}"] = weights[way]
    return applied(module, facets, layouts), copies


def applied(module: Module, facets: Mapping[str, tuple[Facet, ...]], layouts: Mapping[str, Layout | None]) -> Module:
    symbols = [
        replace(symbol, type=replace(symbol.type, layout=layouts.get(symbol.name)))
        if isinstance(symbol, Resource) and isinstance(symbol.type, TensorType)
        else symbol
        for symbol in module.symbols
    ]
    module = replace(module, symbols=tuple(symbols))
    return with_ops(module, lambda op: laid(op.with_facets(*facets.get(op.id, ())), layouts.get(op.id)))


def ways_decided(module: Module, copies: Sequence[Sequence[str]]) -> Counter[object]:
    """What was decided about each copy, by a walk of the test's own: facets but for what all ops of the copy hold, the types
    that are made, and the types that are read."""
    ops = {op.id: op for op in module.entry.ops}
    types = {value.name: value.type for op in module.entry.ops for value in op.results}
    types.update((resource.name, resource.type) for resource in module.of_type(Resource))
    types.update((value.name, value.type) for value in module.entry.args)
    found: Counter[object] = Counter()
    for values in copies:
        held = [{f for f in ops[value].facets if isinstance(f, DECISIONS)} for value in values]
        common = set.intersection(*held)
        found[
            tuple(frozenset(facets - common) for facets in held),
            tuple(types[value] for value in values),
            tuple(types[name] for value in values for name in ops[value].operands),
        ] += 1
    return found


@given(chains())
@settings(max_examples=12)
def test_as_many_variants_as_distinct_decisions(case: tuple[Module, list[list[str]]]) -> None:
    """Of those decisions that more than one copy has; a single one is written out."""
    module, copies = case
    assert not ir.verify(module, dialects=DIALECTS)
    folded = round_trip(module)
    expected = sorted(count for count in ways_decided(module, copies).values() if count > 1)
    assert sorted(said(func)["fold.copies"] for func in bodies(folded)) == expected  # type: ignore[type-var]
    assert fold(folded) == folded


@given(chains())
@settings(max_examples=20)
def test_what_repeats_does_not_depend_on_decisions(case: tuple[Module, list[list[str]]]) -> None:
    module, _ = case
    bare = with_ops(module, lambda op: laid(replace(op, facets=()), None))
    resources = [
        replace(r, type=replace(r.type, layout=None)) for r in bare.of_type(Resource) if isinstance(r.type, TensorType)
    ]
    bare = replace(bare, symbols=(*resources, *(s for s in bare.symbols if not isinstance(s, Resource))))
    found, without = of(module), of(bare)
    assert summary(found) == summary(without)
    assert [block.copies for block in found.blocks] == [block.copies for block in without.blocks]


# -- one change --------------------------------------------------------------------------------------------------------

CHANGES: dict[str, Change] = {
    "a strategy": lambda op: op.with_facets(ShardRule("another")),
    "a layout": lambda op: laid(op, OTHER),
    "a layout less": lambda op: laid(op, None),
    "a stage": lambda op: op.with_facets(StageSet((1,))),
    "a decision less": lambda op: replace(op, facets=tuple(f for f in op.facets if not isinstance(f, ShardRule))),
}


@pytest.mark.parametrize("layers", [(2, 4), (3,)], ids=["two copies", "one copy"])
@pytest.mark.parametrize("name", CHANGES)
def test_one_change_makes_one_variant(name: str, layers: tuple[int, ...]) -> None:
    """Two layers of six whose Gelu is decided otherwise are one variant more and nothing else changes; one is written out."""
    module = decided(transformer(6), ["rows"] * 6)
    scopes = {f"layer.{layer}." for layer in layers}
    changed = with_ops(module, lambda op: CHANGES[name](op) if op.name == "onnx.Gelu" and op.location.scope in scopes else op)
    before, after = round_trip(module), round_trip(changed)
    one, *more = bodies(after, LAYER)
    (was,) = bodies(before, LAYER)
    assert replace(one, attributes=()) == replace(was, attributes=())
    assert said(one) == {"fold.copies": 6 - len(layers), "fold.variant": "block_0"}
    assert [said(func) for func in more] == [{"fold.copies": 2, "fold.variant": "block_0"}] * (len(layers) == 2)
    parts = [[replace(func, attributes=()) for func in bodies(module, 2)] for module in (before, after)]
    assert parts[0] == parts[1], "the blocks inside stay as they are"


def test_a_weight_laid_otherwise_makes_a_variant() -> None:
    module = transformer(6)
    layouts = {f"@layer.{layer}.up": SPLIT if layer < 3 else OTHER for layer in range(6)}
    folded = round_trip(applied(with_mesh(module), {}, layouts))
    assert [said(func)["fold.copies"] for func in bodies(folded, LAYER)] == [3, 3]


def test_a_change_of_layout_is_part_of_its_layer() -> None:
    """Layers that change layouts alike are calls of one function, the changes inside; one that changes otherwise is not."""

    def laid_out(layouts: Sequence[Layout]) -> Module:
        net = Net()
        net.module.add(MESH)
        x = net.func.arg("x", replace(STREAM, layout=SPLIT))
        for layer, layout in enumerate(layouts):
            y = net.op("Sigmoid", net.op("Relu", x))
            x = net.func.op("comm.reshard", (y,), replace(STREAM, layout=layout), name=f"x{layer}")
        return net.build(x)

    folded = round_trip(laid_out([SPLIT] * 6))
    assert [len(func.ops) for func in bodies(folded)] == [3]
    assert [op.name for op in folded.entry.ops] == ["dnnc.call"] * 6
    folded = round_trip(laid_out([SPLIT] * 4 + [OTHER] + [SPLIT] * 2))
    assert [said(func)["fold.copies"] for func in bodies(folded, 3)] == [5]


# -- passes on folded modules ------------------------------------------------------------------------------------------


def after(module: Module, pipeline: str) -> Module:
    return PassManager(parse_pipeline(pipeline)).run(module, pass_context(DiagnosticSink()))


def prepared(spec: str, pipeline: str) -> Module:
    return after(with_topology(build(spec), load_topology("preset:h100x8", DiagnosticSink())), pipeline)


BERT = "bert-base,layers=6,hidden=24,vocab=64,seq=16"
MODELS = {
    "one mesh": (
        "gpt3-175b,layers=4,hidden=96,vocab=64,seq=16",
        "canonicalize,unfuse,cost",
        "partition{stages=1,mesh=8},place,schedule,lower",
    ),
    "two axes": ("gpt2,layers=3,hidden=48,vocab=64,seq=16", "canonicalize,unfuse,cost", "partition{stages=1,mesh=2x4}"),
    "stages on meshes": (
        "gpt2,layers=6,hidden=48,vocab=64,seq=16",
        "canonicalize,unfuse,cost",
        "partition{stages=2,mesh=2},lower",
    ),
    "stages": (BERT, "canonicalize,cost", "partition{stages=2},place,schedule,lower"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_passes_give_a_folded_module_back_folded(name: str) -> None:
    """What they decide is what they decide about the module that was never folded; a text with variants is shorter."""
    spec, first, then = MODELS[name]
    module = prepared(spec, first)
    plain, folded = after(module, then), after(fold(module), then)
    assert expand(folded) == plain
    assert fold(plain) == folded
    assert bodies(folded)
    assert len(folded.entry.ops) < len(plain.entry.ops) / 2
    assert not ir.verify(folded, dialects=DIALECTS)
    text = ir.print_module(folded)
    assert len(text.splitlines()) < len(ir.print_module(plain).splitlines())
    assert ir.load_module(text, dialects=DIALECTS) == folded


def test_a_pass_that_leaves_the_functions_alone_leaves_them_folded_as_they_are() -> None:
    module = prepared(BERT, "canonicalize,cost,partition{stages=2},fold")
    placed = after(module, "place,schedule")
    assert all(func is old for func, old in zip(placed.of_type(Func), module.of_type(Func), strict=True))
    assert placed.first(Plan) != module.first(Plan)


@pytest.mark.parametrize("then", ["cost", "canonicalize,unfuse,cost"])
def test_facts_are_those_of_the_expanded_program(then: str) -> None:
    """In a body weights are arguments, which cost otherwise and cannot be taken apart."""
    module = prepared(BERT, "canonicalize")
    folded = after(fold(module), then)
    assert bodies(folded)
    assert expand(folded) == after(module, then)


def test_the_analysis_is_shared() -> None:
    """``fold`` asks for the analysis that other passes ask for."""
    context, module = PassContext(), transformer(3)
    first = replace(module.entry, ops=module.entry.ops[:1])
    context.analyses.put(folding(first, module), folding, module.entry, module)
    assert not any(map(is_block, FoldPass().run(module, context).of_type(Func)))
