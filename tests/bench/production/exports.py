"""Exports of torchvision and transformers, with random weights.

``python exports.py NAME FOLDER`` writes NAME.onnx and NAME.npz. It runs in an
environment of its own (``REQUIREMENTS``) and so imports nothing of this project.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

REQUIREMENTS = ("torch==2.13.0", "transformers>=4.50", "onnxscript", "onnxruntime", "sympy", "numpy", "pillow")
WITHOUT_DEPENDENCIES = ("torchvision",)  # what it asks for would bring another build of torch

SEED = 0


def export(module: Any, arguments: dict[str, Any], out: Path, **options: Any) -> None:
    """Writes the ONNX model of ``module`` called with ``arguments`` by keyword, and these as arrays by input name."""
    import torch

    module.eval()
    program = torch.onnx.export(module, (), kwargs=arguments, dynamo=True, opset_version=18, **options)
    program.save(str(out), external_data=False)
    flat = [leaf for leaf in torch.utils._pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    names = [value.name for value in program.model.graph.inputs]
    assert len(names) == len(flat), (names, len(flat))
    np.savez(out.with_suffix(".npz"), **{name: value.numpy() for name, value in zip(names, flat, strict=True)})


def image(size: int, dtype: str = "float32") -> Any:
    import torch

    return torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(SEED)).to(getattr(torch, dtype))


def tokens(length: int, vocabulary: int) -> Any:
    import torch

    return torch.randint(0, vocabulary, (1, length), generator=torch.Generator().manual_seed(SEED))


def vision(name: str) -> Any:
    """A model's maker, by its name in ``torchvision.models``."""
    import torchvision

    return getattr(torchvision.models, name)


_LIBRARY: Any = None  # what it defines lives as long as it does


def has_ops() -> bool:
    return True


def declare_torchvision() -> None:
    """Declares the operators of torchvision's compiled part, with kernels good enough to trace: it wants a CUDA torch."""
    global _LIBRARY
    import torch

    _LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
    _LIBRARY.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _LIBRARY.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _LIBRARY.define(
        "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
        "int sampling_ratio, bool aligned) -> Tensor"
    )
    import torchvision.ops  # whose modules are named below

    def nms(boxes: Any, scores: Any, threshold: float) -> Any:
        return scores.argsort(descending=True, stable=True)[:100]

    def roi_align(input: Any, rois: Any, scale: float, height: int, width: int, ratio: int, aligned: bool) -> Any:
        return input.new_zeros(rois.size(0), input.size(1), height, width)

    _LIBRARY.impl("nms", nms, "CPU")
    _LIBRARY.impl("roi_align", roi_align, "CPU")
    for module in (torchvision.extension, sys.modules["torchvision.ops.roi_align"]):
        module._has_ops = has_ops


def resnet18(out: Path) -> None:
    export(vision("resnet18")(), {"x": image(224)}, out)


def efficientnet(out: Path) -> None:
    export(vision("efficientnet_b0")(), {"x": image(224)}, out)


def convnext_f16(out: Path) -> None:
    """Weights and activations in f16, logits in f32."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = vision("convnext_tiny")().half()

        def forward(self, x: Any) -> Any:
            return self.body(x).float()

    export(Net(), {"x": image(224, "float16")}, out)


def mobilenet_qdq(out: Path) -> None:
    """Static quantisation by onnxruntime, as QuantizeLinear and DequantizeLinear around each op."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    plain = out.with_name("mobilenet-f32.onnx")
    export(vision("mobilenet_v3_small")(), {"x": image(224)}, plain)

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            rng = np.random.default_rng(SEED)
            self.samples = iter([{"x": rng.random((1, 3, 224, 224), np.float32)} for _ in range(4)])

        def get_next(self) -> Any:
            return next(self.samples, None)

    quantize_static(str(plain), str(out), Reader(), quant_format=QuantFormat.QDQ, per_channel=True)
    plain.with_suffix(".npz").rename(out.with_suffix(".npz"))


def detection(name: str, out: Path, size: int, **changes: Any) -> None:
    """A detector, by the older exporter: the sizes of its boxes depend on values, which the newer one refuses."""
    import torch

    pixels = image(size)[0]
    model = getattr(vision("detection"), name)(weights=None, weights_backbone=None, **changes).eval()
    torch.onnx.export(model, ([pixels],), str(out), dynamo=False, opset_version=17, input_names=["image"])
    np.savez(out.with_suffix(".npz"), image=pixels.numpy())


def language(config: Any, model: Any, out: Path, *, inputs: dict[str, Any], **changes: Any) -> None:
    export(model(config(**changes)), {**inputs, "return_dict": False}, out)


def distilbert(out: Path) -> None:
    from transformers import DistilBertConfig, DistilBertModel

    language(DistilBertConfig, DistilBertModel, out, inputs={"input_ids": tokens(128, 30522)})


def bert_dynamic_int8(out: Path) -> None:
    """Dynamic quantisation by onnxruntime: DynamicQuantizeLinear and MatMulInteger."""
    from onnxruntime.quantization import quantize_dynamic
    from transformers import BertConfig, BertModel

    plain = out.with_name("bert-f32.onnx")
    language(BertConfig, BertModel, plain, inputs={"input_ids": tokens(128, 30522)}, num_hidden_layers=4)
    quantize_dynamic(str(plain), str(out))
    plain.with_suffix(".npz").rename(out.with_suffix(".npz"))


def gpt2_cached(out: Path) -> None:
    """One step of decoding: one token, and keys and values of 64 before it."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.cache_utils import DynamicCache

    class Step(torch.nn.Module):
        def __init__(self, model: Any, layers: int) -> None:
            super().__init__()
            self.model, self.layers = model, layers

        def forward(self, input_ids: Any, attention_mask: Any, past: Any) -> Any:
            cache = DynamicCache()
            for layer in range(self.layers):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            return self.model(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True).logits

    config = GPT2Config(n_layer=6, attn_implementation="eager")
    shape = (1, config.n_head, 64, config.n_embd // config.n_head)
    past = [torch.randn(shape) for _ in range(2 * config.n_layer)]
    arguments = {
        "input_ids": tokens(1, config.vocab_size),
        "attention_mask": torch.ones(1, 65, dtype=torch.int64),
        "past": past,
    }
    export(Step(GPT2LMHeadModel(config), config.n_layer), arguments, out)


def whisper_encoder(out: Path) -> None:
    import torch
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    model = WhisperEncoder(WhisperConfig(d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536))
    export(model, {"input_features": torch.randn(1, 80, 3000), "return_dict": False}, out)


def clip(out: Path) -> None:
    from transformers import CLIPVisionConfig, CLIPVisionModel

    language(CLIPVisionConfig, CLIPVisionModel, out, inputs={"pixel_values": image(224)}, num_hidden_layers=6)


def qwen2(out: Path) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "num_attention_heads": 8}
    inputs = {"input_ids": tokens(64, 8000), "use_cache": False}
    language(Qwen2Config, Qwen2ForCausalLM, out, inputs=inputs, vocab_size=8000, num_key_value_heads=2, **sizes)


EXPORTS: dict[str, Callable[[Path], None]] = {
    "resnet18": resnet18,
    "mobilenet-qdq": mobilenet_qdq,
    "efficientnet": efficientnet,
    "convnext-f16": convnext_f16,
    "ssdlite": lambda out: detection("ssdlite320_mobilenet_v3_large", out, 320, score_thresh=0.005),
    "maskrcnn": lambda out: detection("maskrcnn_resnet50_fpn", out, 320, box_score_thresh=0.01),
    "distilbert": distilbert,
    "bert-dynamic-int8": bert_dynamic_int8,
    "gpt2-cached": gpt2_cached,
    "whisper-encoder": whisper_encoder,
    "clip": clip,
    "qwen2": qwen2,
}

if __name__ == "__main__":
    import torch

    torch.manual_seed(SEED)
    declare_torchvision()
    EXPORTS[sys.argv[1]](Path(sys.argv[2]) / f"{sys.argv[1]}.onnx")
