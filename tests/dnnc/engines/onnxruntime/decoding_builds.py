"""Builds of small decoders with caches in place, two stages of a layer each, and the same model in numpy on whole sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from dnnc.build.build import Build
from dnnc.build.decoding import Decoding, State, prompt_name
from dnnc.engines.onnxruntime.decoding.answers import Request
from dnnc.engines.onnxruntime.decoding.sampling import next_token
from tests.dnnc.engines.onnxruntime.builds import make_build

LAYERS, WIDTH, VOCABULARY = 2, 16, 29


@dataclass(frozen=True)
class Sizes:
    """Of a build: sequences of a group, positions of a cache, groups, tokens of a chunk."""

    batch: int = 2
    context: int = 16
    groups: int = 2
    chunk: int = 4


@cache
def weights(context: int) -> dict[str, Any]:
    random = np.random.default_rng(7)
    made = {f"w{name}{layer}": random.normal(0, 0.5, (WIDTH, WIDTH)) for layer in range(LAYERS) for name in "qkvo"}
    made |= {"words": random.normal(0, 1, (VOCABULARY, WIDTH)), "places": random.normal(0, 0.5, (context, WIDTH))}
    made["head"] = random.normal(0, 1, (WIDTH, VOCABULARY))
    return {name: value.astype(np.float32) for name, value in made.items()}


def logits_of(ids: Sequence[int], context: int) -> Any:
    """Logits of all tokens of a sequence [tokens, vocabulary], without a cache."""
    w, n = weights(context), len(ids)
    x = w["words"][list(ids)] + w["places"][:n]
    for layer in range(LAYERS):
        q, k, v = (x @ w[f"w{name}{layer}"] for name in "qkv")
        scores = np.where(np.tril(np.ones((n, n), bool)), q @ k.T / 4, -1e9)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        x = x + np.tanh((shares / shares.sum(-1, keepdims=True)) @ v @ w[f"wo{layer}"])
    return x @ w["head"]


def greedy(ids: Sequence[int], count: int, context: int) -> list[int]:
    """The most likely tokens behind a prompt."""
    kept = list(ids)
    for _ in range(count):
        kept.append(int(np.argmax(logits_of(kept, context)[-1])))
    return kept[len(ids) :]


def drawn(request: Request, count: int, context: int) -> list[int]:
    """The answer to a request."""
    kept = list(request.ids)
    asked = {name: getattr(request, name) for name in ("temperature", "top_k", "top_p", "seed")}
    for number in range(count):
        kept.append(next_token(logits_of(kept, context)[-1], **asked, count=number))
    return kept[len(request.ids) :]


def stage_model(stage: int, sizes: Sizes, length: int) -> onnx.ModelProto:
    """The program of a stage for steps of so many tokens of each sequence."""
    b, t, d = sizes.batch, sizes.context, WIDTH
    nodes: list[Any] = []
    constants: dict[str, Any] = {"rows": np.arange(length).reshape(1, length), "columns": np.arange(t).reshape(1, 1, 1, t)}
    constants |= {"ones": np.array([1]), "far": np.float32(-1e9), "zero": np.float32(0), "four": np.float32(4)}
    constants |= {"split": np.array([b, 1, length, d]), "join": np.array([b, length, d]), "at": np.array([b, 1, length, 1])}

    def op(kind: str, inputs: str, output: str, **attributes: Any) -> None:
        nodes.append(helper.make_node(kind, inputs.split(), [output], **attributes))

    op("Unsqueeze", "position ones", "start")
    op("Add", "start rows", "index")
    op("Reshape", "index at", "index4")
    op("LessOrEqual", "columns index4", "seen")
    op("Where", "seen zero far", "mask")
    used = {f"w{name}{stage}" for name in "qkvo"}
    if stage == 0:
        op("Gather", "words input_ids", "word")
        op("Gather", "places index", "place")
        op("Add", "word place", "x")
        used |= {"words", "places"}
    else:
        op("Identity", "h0", "x")
    for name in "qkv":
        op("MatMul", f"x w{name}{stage}", name)
        op("Reshape", f"{name} split", f"{name}4")
    for name in "kv":
        op("TensorScatter", f"past.{name}{stage} {name}4 position", f"present.{name}{stage}", axis=2)
    op("Transpose", f"present.k{stage}", "turned", perm=[0, 1, 3, 2])
    op("MatMul", "q4 turned", "raw")
    op("Div", "raw four", "scaled")
    op("Add", "scaled mask", "scores")
    op("Softmax", "scores", "shares")
    op("MatMul", f"shares present.v{stage}", "mixed4")
    op("Reshape", "mixed4 join", "mixed")
    op("MatMul", f"mixed wo{stage}", "out")
    op("Tanh", "out", "bent")
    op("Add", "x bent", f"h{stage}")
    if stage == LAYERS - 1:
        op("MatMul", f"h{stage} head", "logits")
        used.add("head")
    f32, i64 = TensorProto.FLOAT, TensorProto.INT64
    caches = [(f"{name}{stage}", (b, 1, t, d)) for name in "kv"]
    inputs = [("input_ids", i64, (b, length)) if stage == 0 else ("h0", f32, (b, length, d)), ("position", i64, (b,))]
    inputs += [(f"past.{name}", f32, shape) for name, shape in caches]
    last = stage == LAYERS - 1
    outputs = [("logits", f32, (b, length, VOCABULARY)) if last else (f"h{stage}", f32, (b, length, d))]
    outputs += [(f"present.{name}", f32, shape) for name, shape in caches]
    values = {name: value for name, value in weights(t).items() if name in used}
    read = {name for node in nodes for name in node.input}
    values |= {name: np.asarray(value) for name, value in constants.items() if name in read}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*port) for port in inputs],
        [helper.make_tensor_value_info(*port) for port in outputs],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 24)])


def decoder_build(folder: Path, sizes: Sizes | None = None) -> Build:
    """A build of two stages that generates tokens."""
    sizes = sizes or Sizes()
    build = make_build(folder, *(stage_model(stage, sizes, 1) for stage in range(LAYERS)))
    states = tuple(
        State(f"past.{name}{stage}", f"present.{name}{stage}", stage, "f32", (sizes.batch, 1, sizes.context, WIDTH), 2)
        for stage in range(LAYERS)
        for name in "kv"
    )
    decoding = Decoding(
        states, "input_ids", "position", "logits", sizes.batch, sizes.context, sizes.groups, sizes.chunk, VOCABULARY
    )
    contents = dict(build.files.contents)
    if sizes.chunk > 1:
        for stage in build.stages:
            assert stage.model is not None
            contents[prompt_name(stage.model)] = stage_model(stage.index, sizes, sizes.chunk).SerializeToString()
    return without_states(replace(build, decoding=decoding, files=replace(build.files, contents=contents)))


def without_states(build: Build) -> Build:
    """The build with its states among no inputs and outputs, as ``Build.of`` reads it."""
    assert build.decoding is not None
    inside = {name for state in build.decoding.states for name in (state.name, state.result)}
    stages = tuple(
        replace(
            stage,
            inputs=tuple(port for port in stage.inputs if port.name not in inside),
            outputs=tuple(port for port in stage.outputs if port.name not in inside),
        )
        for stage in build.stages
    )
    inputs, outputs = (tuple(p for p in ports if p.name not in inside) for ports in (build.inputs, build.outputs))
    return replace(build, stages=stages, inputs=inputs, outputs=outputs)
