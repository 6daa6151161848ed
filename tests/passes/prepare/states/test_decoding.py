"""A step with caches in place computes what the whole model computes: prompts in chunks, sequences at different positions."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import onnxruntime
import pytest
from numpy.typing import NDArray

from dnnc import zoo
from dnnc.compile.context import pass_context
from dnnc.engines.onnxruntime.write.export import export_func, reading_tensors
from dnnc.onnx import DIALECTS
from ir.core.diagnostics import DiagnosticSink
from ir.core.module import Module
from ir.core.types import TensorType
from ir.verifier import verify
from passes.graph.folding import expand
from passes.prepare.canonicalize import CanonicalizePass
from passes.prepare.states import StatesPass

SIZES = "layers=2,hidden=64,heads=4,vocab=50"
CONTEXT, BATCH = 12, 3
MODELS = {
    "llama-7b": f"{SIZES},kv_heads=2,ffn=96",
    "gpt2": f"{SIZES}",
    "mixtral-8x7b": f"{SIZES},kv_heads=2,ffn=32,experts=4",
}


def session(module: Module) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    data = onnx_ir.to_proto(export_func(module, module.entry, tensors=reading_tensors(Path()))).SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


@lru_cache
def step(name: str, cache: str, length: int) -> tuple[Module, onnxruntime.InferenceSession]:
    spec = f"zoo:{name},cache={cache},context={CONTEXT},seq={length},batch={BATCH},{MODELS[name]}"
    context = pass_context(DiagnosticSink())
    module = expand(zoo.build(spec))
    for one in (CanonicalizePass(), StatesPass(), CanonicalizePass()):
        module = one.run(module, context)
    module = expand(module)
    assert verify(module, dialects=DIALECTS) == []
    return module, session(module)


@lru_cache
def whole(name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Token ids, and the logits of the model without caches."""
    ids = np.random.default_rng(0).integers(0, 50, (BATCH, CONTEXT))
    module = expand(zoo.build(f"zoo:{name},seq={CONTEXT},batch={BATCH},{MODELS[name]}"))
    made = session(module)
    feeds: dict[str, Any] = {"input_ids": ids}
    return ids, made.run(["logits"], feeds)[0]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "mixtral-8x7b" else ()) for name in MODELS]
)
@pytest.mark.parametrize("cache", ["concat", "inplace"])
def test_steps_and_chunks_give_the_logits_of_the_whole_model(name: str, cache: str) -> None:
    """Three sequences: each step gives each of them as many of its next tokens as ``taken`` says, padded by others; caches are
    full of large numbers at first, which nothing may see, and are written in place."""
    ids, expected = whole(name)
    generator = np.random.default_rng(1)
    module, _ = step(name, cache, 1)
    states = module.states
    shapes = {key: module.resources[key].type for key in states}
    buffers = {}
    for key, type_ in shapes.items():
        assert isinstance(type_, TensorType)
        array = generator.normal(0, 100, [dim for dim in type_.shape or () if isinstance(dim, int)]).astype(np.float32)
        buffers[key] = onnxruntime.OrtValue.ortvalue_from_numpy(array)
    position = np.zeros(BATCH, np.int64)
    for length, taken in [(4, (4, 2, 1)), (1, (1, 1, 1)), (4, (1, 4, 3)), (1, (1, 0, 1)), (4, (0, 4, 2)), (1, (1, 1, 1))]:
        _, made = step(name, cache, length)
        fed = generator.integers(0, 50, (BATCH, length))
        for row, count in enumerate(taken):
            fed[row, :count] = ids[row, position[row] : position[row] + count]
        binding = made.io_binding()
        binding.bind_cpu_input("input_ids", fed)
        binding.bind_cpu_input("position", position)
        for key, state in states.items():
            binding.bind_ortvalue_input(key[1:], buffers[key])
            binding.bind_ortvalue_output(state.result, buffers[key])
        binding.bind_output("logits")
        made.run_with_iobinding(binding)
        logits = binding.get_outputs()[-1].numpy()
        for row, count in enumerate(taken):
            for i in range(count):
                np.testing.assert_allclose(logits[row, i], expected[row, position[row] + i], rtol=2e-4, atol=2e-5)
        position += np.array(taken)
    assert position.max() == CONTEXT
