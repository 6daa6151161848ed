"""Plans by name: what they split, and that the search is never above them and finds what they are known for unaided."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest

from dnnc.compile.context import pass_context
from ir.core.diagnostics import DiagnosticSink
from ir.core.types import Replicate, Shard
from ir.ops.boxes import shape_of
from ir.text.parser import parse_module
from passes.costs.exchange import Speed
from passes.framework.manager import PassManager
from passes.framework.pipeline import parse_pipeline
from passes.graph.folding import folding
from passes.meshes.costs.bill import Bill, Decisions
from passes.meshes.costs.price import price
from passes.meshes.mesh import Axis, DeviceMesh
from passes.partition.layouts import ShardInput, ShardPlan, build, decisions_of, solve
from passes.partition.layouts.mesh.named import UnfitError, activation_sums, named_plan, restricted
from passes.prepare.cost import CostPass
from tests.ir.layout_rules.test_models import imported
from tests.passes.partition.layouts.models import CHIP, mesh, prepared, problem_of

GPT3 = "zoo:gpt3-175b,layers=2,seq=256"
ZOO = ("zoo:gpt2,layers=2,qkv=separate,vocab=50264,seq=256", GPT3, "zoo:t5-base,layers=2", "zoo:t5-large,layers=2")
EXPERTS = "zoo:mixtral-8x7b,layers=2,hidden=512,heads=8,ffn=1024,seq=64,vocab=512,batch=8"


def bill_of(given: ShardInput, plan: ShardPlan, spec: str, batch: int = 8) -> Bill:
    """What the independent walk counts; it must agree with the plan."""
    module, _ = prepared(spec, batch)
    bill = price(module, module.entry, given.mesh, decisions_of(given, plan.choices))
    assert bill.total == pytest.approx(plan.value, rel=1e-9)
    assert bill.memory == pytest.approx(plan.memory)
    return bill


def named(spec: str, name: str, *sizes: int, batch: int = 8) -> tuple[ShardInput, ShardPlan]:
    given = problem_of(spec, sizes, batch=batch)
    return given, named_plan(prepared(spec, batch)[0], given, name)


def kept(given: ShardInput, plan: ShardPlan) -> dict[str, str]:
    """Where each weight is, on one axis."""
    return {name: str(lies[0]) for name, lies in decisions_of(given, plan.choices).kept.items()}


@pytest.mark.slow
@pytest.mark.parametrize("degree", [8])
@pytest.mark.parametrize("spec", ZOO)
def test_search_is_never_above_megatron(spec: str, degree: int) -> None:
    given, plan = named(spec, "megatron", degree)
    found = solve(given.problem)
    assert found.status == "optimal"
    assert found.value <= plan.value
    assert bill_of(given, plan, spec).communication > 0


def test_megatron_of_gpt() -> None:
    """Column, then row; embedding and head by vocabulary, which are one weight; one all-reduce each."""
    spec = GPT3.replace("seq", "vocab=50264,seq")
    given, plan = named(spec, "megatron", 8)
    lies = kept(given, plan)
    for layer in ("h.0", "h.1"):
        for column in ("attn.query", "attn.key", "attn.value", "mlp.c_fc"):
            assert lies[f"@{layer}.{column}.weight"] == "S(1)"
            assert lies[f"@{layer}.{column}.bias"] == "S(0)"
        for row in ("attn.c_proj", "mlp.c_proj"):
            assert lies[f"@{layer}.{row}.weight"] == "S(0)"
    assert lies["@wte.weight"] == "S(0)"
    assert Counter(one.kind for one in bill_of(given, plan, spec).collectives) == {"all_reduce": 2 * 2 + 1}


def test_megatron_splits_the_head_of_a_training_step() -> None:
    """Also where a loss reads whole rows of the logits: members exchange columns for rows, and their gradients back."""
    spec = "zoo:gpt2,layers=1,qkv=separate,hidden=64,heads=4,vocab=256,seq=16,positions=16"
    steps = parse_pipeline("training{loss=cross-entropy:logits},canonicalize,cost")
    module = PassManager(steps).run(imported(spec, 4), pass_context(DiagnosticSink()))
    given = build(module, module.entry, mesh(2), folding(module.entry, module), training=True)
    plan = named_plan(module, given, "megatron")
    assert kept(given, plan)["@wte.weight"] == "S(0)"
    bill = price(module, module.entry, given.mesh, decisions_of(given, plan.choices), training=True)
    assert bill.total == pytest.approx(plan.value, rel=1e-9)
    exchanged = [one for one in bill.collectives if one.kind == "all_to_all"]
    assert len(exchanged) == 2, "of the logits, and of their gradients"


def test_sums_of_megatron_in_stages_are_whole_or_split() -> None:
    """Not left as terms, which would put off the all-reduce of a pair; all other ops do what they do on one mesh."""
    given, plan = named(ZOO[0], "megatron", 2)
    ops = plan.choices[: len(given.func.ops)]
    found, sums = restricted(given, "megatron", ops), activation_sums(given.func)
    assert sums
    for number, choice in enumerate(ops):
        own = given.strategies[given.problem.kinds[number]][choice]
        allowed = {strategies[0] for strategies in found.strategies[found.problem.kinds[number]]}
        assert own[0] in allowed
        assert len(allowed) == 1 or number in sums
        assert all(one is own[0] or (one is not None and one.factor is not None) for one in allowed)


def test_megatron_of_t5() -> None:
    """Two blocks per layer of the encoder, three per layer of the decoder, the embedding once for each stack."""
    given, plan = named(ZOO[2], "megatron", 4)
    assert Counter(one.kind for one in bill_of(given, plan, ZOO[2]).collectives) == {"all_reduce": 2 * (2 + 3) + 2}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "batch", "pairs"), [("bert", 8, 4), ("llama", 1, 8), ("vit", 8, 8)])
def test_megatron_of_shared_models(name: str, batch: int, pairs: int, shared_dir: Path) -> None:
    """Exports: at least so many pairs, heads merged with samples where the exporter did so."""
    spec = str(shared_dir / "models" / f"{name}.onnx")
    given, plan = named(spec, "megatron", 2, batch=batch)
    kinds = Counter(one.kind for one in bill_of(given, plan, spec, batch).collectives)
    assert set(kinds) == {"all_reduce"}
    assert kinds["all_reduce"] >= pairs


def test_megatron_of_llama_and_vit() -> None:
    for spec in ("zoo:llama-70b,layers=2,seq=64", "zoo:vit-base,layers=2"):
        given, plan = named(spec, "megatron", 4)
        assert Counter(one.kind for one in bill_of(given, plan, spec).collectives)["all_reduce"] in (4, 5)


def test_megatron_beside_data() -> None:
    """On two axes the batch is split over the first where it divides; else both are the tensor axis."""
    spec = "zoo:gpt3-175b,layers=1,seq=64,vocab=512,batch={}"
    given, plan = named(spec.format(2), "megatron", 2, 4)
    lies = decisions_of(given, plan.choices).kept
    assert lies["@h.0.mlp.c_fc.weight"] == (Replicate(), Shard(1))
    given, plan = named(spec.format(1), "megatron", 2, 4)
    assert decisions_of(given, plan.choices).kept["@h.0.mlp.c_fc.weight"] == (Shard(1), Shard(1))


def test_what_cannot_be_split() -> None:
    with pytest.raises(UnfitError, match="batch of 1"):
        named("zoo:vit-base,layers=1", "data", 4)
    with pytest.raises(UnfitError, match="batch of 2"):  # on two of them alone, four would do the same
        named("zoo:mlp,batch=2", "data", 2, 4)
    with pytest.raises(UnfitError, match="no experts"):
        named("zoo:vit-base,layers=1", "expert", 4)
    with pytest.raises(UnfitError, match="columns"):
        named("zoo:mlp,inputs=2,hidden=2,outputs=2", "megatron", 3)
    with pytest.raises(KeyError):
        named("zoo:mlp", "magic", 2)


def test_data_splits_samples_and_keeps_weights_whole() -> None:
    given, plan = named("zoo:resnet50,batch=8", "data", 8)
    assert set(kept(given, plan).values()) == {"R"}
    bill = bill_of(given, plan, "zoo:resnet50,batch=8")
    assert not bill.collectives
    _, whole = named("zoo:resnet50,batch=8", "replicate", 8)
    assert plan.value < whole.value / 4


def test_data_makes_parts_of_the_batch_of_weights_alone() -> None:
    """ViT's class token is spread over a member's own samples, not over all of them, of which it would take its part."""
    given, plan = named("zoo:vit-base,layers=1,batch=8", "data", 8)
    assert decisions_of(given, plan.choices).strategies["%class_token.spread"] == ("d0",)


@pytest.mark.parametrize("routing", ["dense", "capacity"])
def test_search_is_never_above_expert_parallel(routing: str) -> None:
    """Experts lie apart, the rest is split by samples, what goes to experts and back is exchanged."""
    spec = f"{EXPERTS},routing={routing}"
    given, plan = named(spec, "expert", 8)
    lies = kept(given, plan)
    experts = {lies[f"@model.layers.{layer}.moe.{part}.weight"] for layer in (0, 1) for part in ("up", "gate", "down")}
    assert experts == {"S(0)"}
    assert lies["@model.layers.0.self_attn.q_proj.weight"] == "R"
    kinds = Counter(one.kind for one in bill_of(given, plan, spec).collectives)
    assert set(kinds) <= {"all_to_all", "all_gather", "reduce_scatter"}
    assert kinds["all_to_all"] + kinds["reduce_scatter"] >= 2
    if routing == "capacity":
        assert kinds["all_to_all"] >= 4
    found = solve(given.problem)
    assert found.value <= plan.value
    assert found.status == "optimal"


def test_experts_are_split_where_memory_asks_for_it() -> None:
    """Whole experts do not fit: the search finds expert parallelism, or better, within the memory of that plan."""
    spec = f"{EXPERTS},routing=capacity"
    given, plan = named(spec, "expert", 8)
    found = solve(given.problem, memory=plan.memory)
    assert found.memory <= plan.memory
    assert found.value <= plan.value


def test_million_classes() -> None:
    """A batch-split trunk with a class-split head, found unaided."""
    spec = "zoo:resnet50,classes=1000000,batch=64"
    given = problem_of(spec, (8,))
    found = solve(given.problem)
    decisions = decisions_of(given, found.choices)
    assert found.status == "optimal"
    assert decisions.kept["@fc.weight"] in ((Shard(0),), (Shard(1),))
    trunk = [names[0] for name, names in decisions.strategies.items() if "layer" in name and "conv" in name]
    assert trunk
    assert set(trunk) == {"batch"}
    _, data = named(spec, "data", 8)
    assert found.value < data.value


def test_memory_of_a_named_plan() -> None:
    from passes.partition.layouts import NoPlanError

    given = problem_of(ZOO[0], (8,))
    with pytest.raises(NoPlanError):
        named_plan(prepared(ZOO[0])[0], given, "replicate", memory=1000.0)


def pairs() -> Decisions:
    """Three pairs of products with a norm behind each; one token, which no axis splits."""
    weights, ops, value = [], [], "%x"
    for i in range(3):
        weights += [
            f"resource @a{i} : tensor<512x2048xf32> = declared",
            f"resource @b{i} : tensor<2048x512xf32> = declared",
            f"resource @s{i} : tensor<512xf32> = declared",
        ]
        ops += [
            f"%h{i} = onnx.MatMul({value}, @a{i}) : tensor<1x1x2048xf32>",
            f"%g{i} = onnx.Relu(%h{i}) : tensor<1x1x2048xf32>",
            f"%p{i} = onnx.MatMul(%g{i}, @b{i}) : tensor<1x1x512xf32>",
            f"%y{i} = onnx.LayerNormalization(%p{i}, @s{i}) : tensor<1x1x512xf32>",
        ]
        value = f"%y{i}"
    lines = ["module @pairs {opset.onnx = 20} {", *weights]
    lines += ["func @main(%x : tensor<1x1x512xf32>) -> (%y2 : tensor<1x1x512xf32>) {", *ops, "}", "}"]
    module = CostPass().run(parse_module("\n".join(lines)), pass_context(DiagnosticSink()))
    given = build(module, module.entry, mesh(4), None)
    found = solve(given.problem)
    decisions = decisions_of(given, found.choices)
    bill = price(module, module.entry, given.mesh, decisions)
    assert Counter(one.kind for one in bill.collectives) == {"all_reduce": 3}
    assert found.value == named_plan(module, given, "megatron").value
    return decisions


def test_column_row_pair_is_found() -> None:
    """W1 by column, W2 by row, one all-reduce for the pair: the plan that Megatron writes by hand."""
    decisions = pairs()
    for i in range(3):
        assert decisions.kept[f"@a{i}"] == (Shard(1),)
        assert decisions.kept[f"@b{i}"] == (Shard(0),)
        assert [decisions.strategies[f"%{part}{i}"] for part in "hgp"] == [("n",), ("d2",), ("k",)]


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["zoo:gpt3-175b,layers=2,seq=31", "zoo:t5-large,layers=2,seq=31"])
def test_pairs_are_found_in_transformers(spec: str) -> None:
    """Tokens that do not divide: every product of a layer is of a column-row pair, with one reduction behind each pair."""
    given = problem_of(spec, (8,))
    found = solve(given.problem)
    _, expert = named(spec, "megatron", 8)
    lies, by_hand = kept(given, found), kept(given, expert)
    types = {name: resource.type for name, resource in prepared(spec)[0].resources.items()}
    split = [name for name, layout in by_hand.items() if layout != "R" and len(shape_of(types[name]) or ()) == 2]
    # T5's queries to the encoder come by row more cheaply: one reduce-scatter in the place of an all-gather.
    weights = [name for name in split if name not in ("@wte.weight", "@shared.weight") and ".cross.q." not in name]
    assert len(weights) >= 12
    assert {name: lies[name] for name in weights} == {name: by_hand[name] for name in weights}
    # A norm's mean of squares may be summed as well: one number per token.
    kinds = Counter(one.kind for one in bill_of(given, found, spec).collectives if one.size > 4 * 31)
    rows = sum(by_hand[name] == "S(0)" for name in weights)
    assert kinds["all_reduce"] + kinds["reduce_scatter"] <= rows + 2 + 2  # the embeddings, the queries


@pytest.mark.parametrize(("shares", "batch"), [((3, 2), 4), ((7, 5), 2), ((1, 2), 2)])
def test_shares_need_no_more_elements_than_leave_no_part_empty(shares: tuple[int, ...], batch: int) -> None:
    """As many as their sum were asked for."""
    two = DeviceMesh((Axis("x", 2, Speed(1e10, 0.0), shares=shares),), (), (CHIP,))
    spec = "zoo:bert-base,layers=1,hidden=64,heads=4,vocab=128,seq=16"
    module, found = prepared(f"{spec},batch={batch}")
    plan = named_plan(module, given := build(module, module.entry, two, found), "data")
    assert {"m", "d0"} <= {strategy[0] for strategy in decisions_of(given, plan.choices).strategies.values()}
    module, found = prepared(spec)
    with pytest.raises(UnfitError, match="the batch of 1 cannot be split over 2 devices"):
        named_plan(module, build(module, module.entry, two, found), "data")


@pytest.mark.parametrize(("batch", "fits"), [(3, False), (4, True)])
def test_axes_cut_what_those_before_them_left(batch: int, fits: bool) -> None:
    """Of 3 samples shares of 3:2 leave the second row one, which 2:1 do not divide."""
    axes = (Axis("x", 2, Speed(1e10, 0.0), shares=(3, 2)), Axis("y", 2, Speed(1e10, 0.0), shares=(2, 1)))
    module, found = prepared(f"zoo:bert-base,layers=1,hidden=64,heads=4,vocab=128,seq=16,batch={batch}")
    given = build(module, module.entry, DeviceMesh(axes, (), (CHIP,)), found)
    with nullcontext() if fits else pytest.raises(UnfitError, match=f"the batch of {batch} cannot be split over 2x2 devices"):
        named_plan(module, given, "data")
