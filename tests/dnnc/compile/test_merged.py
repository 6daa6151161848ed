"""Files that hold a decoder twice, behind an ``If`` on ``use_cache_branch``, as optimum merges them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

import dnnc
from dnnc.build.build import Build
from dnnc.check.tokens import check_tokens
from dnnc.engines.onnxruntime.starter.starting import RunOptions
from dnnc.onnx.elements import Array
from tests.dnnc.compile.test_configs import CONTEXT, INPUTS, WIDTH, decoder
from tests.dnnc.compile.test_decoding import opened

CACHES = {"k0_in": "grown_k0", "memory.0.v": "v0"}


def merged(path: Path) -> None:
    """Both branches read the weights around them. That with caches calls a result otherwise inside, and has one that is
    constant; the other takes no caches, and begins them."""
    decoder(path)
    model = onnx.load(path)
    graph = model.graph
    with_caches, without = list(graph.node), [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    for node in with_caches:
        node.input[:] = ["inner" if name == "v0" else name for name in node.input]
        node.output[:] = ["inner" if name == "v0" else name for name in node.output]
    for node in without:
        if node.op_type == "Concat":
            del node.attribute[:], node.input[0]
            node.op_type = "Identity"
    with_caches.append(helper.make_node("Constant", [], ["present.0.encoder.key"], value_floats=[0.0]))
    without.append(helper.make_node("Identity", ["table"], ["present.0.encoder.key"]))
    results = ["logits", *CACHES.values(), "present.0.encoder.key"]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names] for names in (results, results)]
    ends[0][2].name = "inner"
    branches = [
        helper.make_graph(nodes, name, [], outputs)
        for nodes, name, outputs in ((with_caches, "with", ends[0]), (without, "without", ends[1]))
    ]
    del graph.node[:]
    graph.node.append(helper.make_node("If", ["use_cache_branch"], results, then_branch=branches[0], else_branch=branches[1]))
    graph.input.append(helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]))
    graph.output.append(helper.make_tensor_value_info("present.0.encoder.key", TensorProto.FLOAT, None))
    onnx.save(model, path)


def greedy(path: Path, token: int) -> list[int]:
    """The tokens that the file gives after ``token``, as optimum runs it: without caches at first."""
    session, tokens = opened(path), [token]
    caches: dict[str, Array] = {name: np.zeros((1, 1, 0, WIDTH), np.float32) for name in CACHES}
    for position in range(CONTEXT - 1):
        step = {"input_ids": [[tokens[-1]]], "attention_mask": [[1] * (position + 1)], "position_ids": [[position]]}
        feeds = {INPUTS[name]: np.array(value) for name, value in step.items()}
        chosen = {"use_cache_branch": np.array([position > 0])}
        logits, *grown = map(np.asarray, session.run(["logits", *CACHES.values()], {**feeds, **chosen, **caches}))
        caches = dict(zip(CACHES, grown, strict=True))
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[1:]


def test_the_branch_with_caches_answers_as_the_file(tmp_path: Path) -> None:
    merged(tmp_path / "m.onnx")
    roles = [f"{INPUTS['input_ids']}=ids", f"{INPUTS['attention_mask']}=mask", f"{INPUTS['position_ids']}=positions"]
    states = [f"{source}={result}" for source, result in CACHES.items()]
    sizes = {"context": CONTEXT, "stages": 2, "replicas": 1, "mesh": "none", "report": False}
    plan = dnnc.plan(tmp_path / "m.onnx", machines="preset:cpu-2", roles=roles, states=states, **sizes)
    build = plan.write(tmp_path / "b")
    with build.start() as session:
        assert [list(session.generate([token])) for token in (3, 6)] == [greedy(tmp_path / "m.onnx", token) for token in (3, 6)]
    report = check_tokens(Build.open(tmp_path / "b"), RunOptions())
    assert report.passed
    assert report.original
