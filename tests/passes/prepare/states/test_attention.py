"""The operator ``Attention`` over caches in place: appended by Concat before it, or by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from dnnc.compile.load import load_model
from dnnc.onnx import DIALECTS
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from ir.core.module import Module
from ir.core.types import TensorType
from ir.verifier import verify
from passes.framework.base import PassContext
from passes.graph.folding import expand
from passes.prepare.canonicalize import CanonicalizePass
from passes.prepare.states import StatesPass, caches
from tests.passes.prepare.states.test_decoding import session

HEADS, SHARED, WIDTH, WORDS, BATCH, CONTEXT = 4, 2, 8, 50, 3, 9
FORMS = ("bool mask", "float mask", "inside", "inside, mask", "scatter")


def decoder(form: str, causal: int = 1) -> onnx.ModelProto:
    """One layer of grouped queries with rows of ``places`` for positions."""
    random = np.random.default_rng(0)
    hidden = HEADS * WIDTH
    weights: dict[str, Any] = {name: random.normal(size=(WORDS, hidden)) for name in ("words", "places")}
    weights |= {
        name: random.normal(size=(hidden, n * WIDTH)) / 4 for name, n in (("wq", HEADS), ("wk", SHARED), ("wv", SHARED))
    }
    weights["head"] = random.normal(size=(hidden, WORDS)) / 4
    constants: dict[str, Any] = {name: array.astype(np.float32) for name, array in weights.items()}
    constants |= {f"by{n}": np.array([0, 0, n, WIDTH]) for n in (HEADS, SHARED)} | {"flat": np.array([0, 0, hidden])}
    constants |= {"one": np.array([1]), "rows": np.array([1, 3]), "zero": np.float32(0), "low": np.float32(-1e4)}
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["word"]),
        helper.make_node("Gather", ["places", "position_ids"], ["place"]),
        helper.make_node("Add", ["word", "place"], ["x"]),
    ]
    for part, heads in (("q", HEADS), ("k", SHARED), ("v", SHARED)):
        nodes.append(helper.make_node("MatMul", ["x", f"w{part}"], [f"{part}.flat"]))
        nodes.append(helper.make_node("Reshape", [f"{part}.flat", f"by{heads}"], [f"{part}.split"]))
        nodes.append(helper.make_node("Transpose", [f"{part}.split"], [part], perm=[0, 2, 1, 3]))
    inside, scatter = form.startswith("inside"), form == "scatter"
    mask = "mask" if "mask" in form else ""
    if mask:  # each token sees itself and what has a lower position
        nodes.append(helper.make_node("CumSum", ["attention_mask", "one"], ["counted"]))
        nodes.append(helper.make_node("Sub", ["counted", "one"], ["columns"]))
        nodes.append(helper.make_node("Unsqueeze", ["columns", "rows_of_keys"], ["keys"]))
        nodes.append(helper.make_node("Unsqueeze", ["position_ids", "rows"], ["queries"]))
        nodes.append(helper.make_node("LessOrEqual", ["keys", "queries"], ["seen"]))
        constants["rows_of_keys"] = np.array([1, 2])
        last = ["Identity", "seen"] if form == "bool mask" else ["Where", "seen", "zero", "low"]
        nodes.append(helper.make_node(last[0], last[1:], [mask]))
    pasts, presents = (["past_key_values.0.key", "past_key_values.0.value"], ["present.0.key", "present.0.value"])
    if inside:
        nodes.append(
            helper.make_node("Attention", ["q", "k", "v", mask, *pasts], ["y", *presents], is_causal=causal, name="attend")
        )
    elif scatter:
        for new, past, present in zip("kv", pasts, presents, strict=True):
            nodes.append(helper.make_node("TensorScatter", [past, new, "written"], [present], axis=2))
        nodes.append(helper.make_node("Attention", ["q", *presents, "", "", "", "lengths"], ["y"], is_causal=1, name="attend"))
    else:
        for new, past, present in zip("kv", pasts, presents, strict=True):
            nodes.append(helper.make_node("Concat", [past, new], [present], axis=2))
        nodes.append(helper.make_node("Attention", ["q", *presents, mask], ["y"], is_causal=causal, name="attend"))
    nodes.append(helper.make_node("Transpose", ["y"], ["turned"], perm=[0, 2, 1, 3]))
    nodes.append(helper.make_node("Reshape", ["turned", "flat"], ["merged"]))
    nodes.append(helper.make_node("MatMul", ["merged", "head"], ["logits"]))

    def value(name: str, kind: int, *shape: Any) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    inputs = [value("input_ids", 7, "batch", "seq"), value("position_ids", 7, "batch", "seq")]
    inputs += [value("attention_mask", 7, "batch", "total")] if mask else []
    inputs += [value(name, 7, "batch") for name in ("written", "lengths") if scatter]
    inputs += [value(name, 1, "batch", SHARED, "past", WIDTH) for name in pasts]
    outputs = [value("logits", 1, "batch", "seq", WORDS)]
    outputs += [value(name, 1, "batch", SHARED, "past" if scatter else "total", WIDTH) for name in presents]
    stored = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24 if scatter else 23)], ir_version=11)


def step(path: Path, length: int, form: str) -> Module:
    past = CONTEXT if form == "scatter" else CONTEXT - length
    dims = {"batch": BATCH, "seq": length, "past": past, **({"total": CONTEXT} if "mask" in form else {})}
    context = PassContext(sink=DiagnosticSink(), dialects=DIALECTS)
    module = load_model(str(path), dims, context.sink).module
    for one in (CanonicalizePass(), StatesPass(), CanonicalizePass()):
        module = one.run(module, context)
    module = expand(module)
    assert verify(module, dialects=DIALECTS) == []
    return module


@pytest.mark.parametrize("form", FORMS)
def test_chunks_in_place_give_the_logits_of_all_tokens(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three sequences at unlike positions, whose caches are full of what nothing may see."""
    monkeypatch.chdir(tmp_path)  # where ``session`` looks for weights
    onnx.save(decoder(form, causal=int(form == "inside")), tmp_path / "m.onnx")
    random = np.random.default_rng(1)
    ids = random.integers(0, WORDS, (BATCH, CONTEXT))
    unsplit = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    feeds = {"input_ids": ids, "position_ids": np.tile(np.arange(CONTEXT), (BATCH, 1))}
    feeds |= {"attention_mask": np.ones((BATCH, CONTEXT), np.int64)} if "mask" in form else {}
    room = CONTEXT if form == "scatter" else 0
    feeds |= {f"past_key_values.0.{part}": np.zeros((BATCH, SHARED, room, WIDTH), np.float32) for part in ("key", "value")}
    feeds |= {"written": np.zeros(BATCH, np.int64), "lengths": np.full(BATCH, CONTEXT)} if form == "scatter" else {}
    expected = unsplit.run(["logits"], feeds)[0]
    made = {length: step(tmp_path / "m.onnx", length, form) for length in (3, 1)}
    running = {length: session(module) for length, module in made.items()}
    caches = {name: random.normal(0, 9, shape_of(made[1], name)).astype(np.float32) for name in made[1].states}
    position = np.zeros(BATCH, np.int64)
    for length, taken in ((3, (3, 2, 1)), (1, (1, 1, 1)), (3, (2, 0, 3)), (1, (0, 1, 1)), (3, (1, 3, 3))):
        fed = random.integers(0, WORDS, (BATCH, length))
        for row, count in enumerate(taken):
            fed[row, :count] = ids[row, position[row] : position[row] + count]
        states = made[length].states
        results = ["logits", *(state.result for state in states.values())]
        given = {"input_ids": fed, "position": position, **{name[1:]: caches[name] for name in states}}
        logits, *after = running[length].run(results, given)
        caches = dict(zip(states, after, strict=True))
        for row, count in enumerate(taken):
            wanted = expected[row, position[row] : position[row] + count]
            np.testing.assert_allclose(logits[row, :count], wanted, rtol=0, atol=2e-4)
        position += np.array(taken)


def shape_of(module: Module, name: str) -> tuple[int, ...]:
    type_ = module.resources[name].type
    assert isinstance(type_, TensorType)
    return tuple(dim for dim in type_.shape or () if isinstance(dim, int))


@pytest.mark.parametrize("form", ["inside", "inside, mask"])
def test_caches_inside_an_attention_are_known_while_sizes_are_open(form: str, tmp_path: Path) -> None:
    """By the types that the file states: onnx infers longer caches of an Attention from sizes that are numbers alone."""
    onnx.save(decoder(form, causal=1), tmp_path / "m.onnx")
    sink = DiagnosticSink()
    found = caches(load_model(str(tmp_path / "m.onnx"), {}, sink).module.entry)
    assert [(str(pair), pair.grows) for pair in found] == [
        (f"past_key_values.0.{part}=present.0.{part}", 2) for part in ("key", "value")
    ]
    assert not sink.diagnostics


def test_a_causal_attention_over_a_cache_counts_from_its_first_slot(tmp_path: Path) -> None:
    """So it hides from a token what came before, which no step in place would."""
    onnx.save(decoder("bool mask", causal=1), tmp_path / "m.onnx")
    with pytest.raises(InvalidInput, match=r"attend: error\[E4106\]: the cache past_key_values.0.key cannot be kept in place"):
        step(tmp_path / "m.onnx", 1, "bool mask")
