"""Small models of the zoo, random inputs, and ONNX Runtime to run them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx_ir import serde

from dnnc.engines.onnxruntime.write.export import export_func, reading_tensors
from dnnc.onnx.weights import read_resource
from ir.core.module import Module
from ir.core.types import TensorType

Array = NDArray[Any]
SMALL = {
    "mlp": "mlp,batch=2,inputs=12,hidden=16",
    "gpt2": "gpt2,layers=2,hidden=64,seq=16,vocab=97",
    "bert-base": "bert-base,layers=2,hidden=64,seq=16,vocab=97",
    "resnet50": "resnet50,image=64,width=16",
    "gpt3-175b": "gpt3-175b,layers=2,hidden=64,seq=16,vocab=97",
    "llama-7b": "llama-7b,layers=2,hidden=64,seq=16,vocab=97",
    "llama-70b": "llama-70b,layers=2,hidden=64,heads=8,kv_heads=2,seq=16,vocab=97",
    "mixtral-8x7b": "mixtral-8x7b,layers=2,hidden=64,kv_heads=2,seq=16,vocab=97,experts=4",
    "by capacity": "mixtral-8x7b,layers=2,hidden=64,kv_heads=2,seq=16,vocab=97,experts=4,routing=capacity,capacity=75",
    "t5-base": "t5-base,layers=2,hidden=64,seq=16,target_seq=12,vocab=97",
    "t5-large": "t5-large,layers=2,hidden=64,seq=16,target_seq=12,vocab=97,version=1.1",
    "bert-small": "bert-small,layers=2,hidden=64,seq=16,vocab=97",
    "transformer-base": "transformer-base,layers=2,hidden=64,seq=16,target_seq=12,vocab=97",
    "whisper-base": "whisper-base,layers=2,hidden=64,frames=24,mels=8,seq=12,vocab=97",
    "vgg19": "vgg19,image=32,width=8,hidden=32,classes=10",
    "inception-v3": "inception-v3,image=75,width=8,classes=10",
    "vit-base": "vit-base,layers=2,hidden=64,image=48,classes=10",
}
"""Each model with few layers and small dimensions."""
CACHED = {
    "gpt2": "gpt2,layers=2,hidden=64,vocab=97",
    "llama-7b": "llama-7b,layers=2,hidden=64,heads=4,vocab=97",
    "llama-70b": "llama-70b,layers=2,hidden=128,heads=8,kv_heads=2,vocab=97",
    "mixtral-8x7b": "mixtral-8x7b,layers=2,hidden=64,heads=4,kv_heads=2,vocab=97,experts=4",
    "int4": "llama-70b,layers=2,hidden=96,heads=6,kv_heads=2,vocab=97,weights=int4",
    "mixtral int4": "mixtral-8x7b,layers=2,hidden=64,heads=4,kv_heads=2,vocab=97,experts=4,weights=int4",
    "gpt2 int4": "gpt2,layers=2,hidden=64,vocab=97,weights=int4",
}
"""Small decoders that may have caches."""
ENCODED = {
    "t5": "t5-base,layers=2,hidden=64,seq=11,vocab=97",
    "t5 1.1": "t5-base,layers=2,hidden=64,seq=11,vocab=97,version=1.1",
}
"""Small models whose decoder reads an encoder's result."""
CONVOLUTIONAL = ("resnet50", "vgg19", "inception-v3", "vit-base", "whisper-base")


def session(module: Module) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    model = serde.to_proto(export_func(module, module.entry, tensors=reading_tensors(Path())))
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def inputs(module: Module, seed: int) -> dict[str, Array]:
    generator = np.random.default_rng(seed)
    made: dict[str, Array] = {}
    for arg in module.entry.args:
        assert isinstance(arg.type, TensorType)
        shape = tuple(int(dim) for dim in arg.type.shape or ())
        kinds = {"f32": np.float32, "f16": np.float16, "f64": np.float64}
        if arg.type.dtype.is_integer:
            made[arg.name[1:]] = generator.integers(0, 97 if arg.name.endswith("input_ids") else 2, shape)
        else:
            made[arg.name[1:]] = generator.standard_normal(shape).astype(kinds[arg.type.dtype.value])
    return made


def run(module: Module, given: dict[str, Array]) -> list[Array]:
    return list(session(module).run(None, given))


def weights_of(module: Module) -> dict[str, Array]:
    """Every weight and constant, in double precision."""
    return {name[1:]: read_resource(r, Path()).astype(np.float64) for name, r in module.resources.items()}
