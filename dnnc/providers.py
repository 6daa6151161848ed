"""ONNX Runtime's execution providers: which package brings each, and whether a provider is told which device to use.

A device type of a topology names its provider as ONNX Runtime spells it. A provider that is not in this table may be named too:
only the advice for a machine that lacks it is then less exact.
"""

from __future__ import annotations

from collections.abc import Mapping

CPU = "CPUExecutionProvider"
"""The provider of device types that name none, and of what no other provider takes."""

PACKAGES: Mapping[str, str] = {
    CPU: "onnxruntime",
    "CUDAExecutionProvider": "onnxruntime-gpu",
    "TensorrtExecutionProvider": "onnxruntime-gpu",
    "OpenVINOExecutionProvider": "onnxruntime-openvino",
    "DmlExecutionProvider": "onnxruntime-directml",
    "QNNExecutionProvider": "onnxruntime-qnn",
    "ROCMExecutionProvider": "onnxruntime-rocm",
    "MIGraphXExecutionProvider": "onnxruntime-migraphx",
    "CANNExecutionProvider": "onnxruntime-cann",
    "CoreMLExecutionProvider": "onnxruntime",
}
"""The package that brings each provider, by the provider's name. All of them are imported as ``onnxruntime``, so an environment
has one of them."""

NUMBERED = frozenset(
    {
        "CUDAExecutionProvider",
        "TensorrtExecutionProvider",
        "DmlExecutionProvider",
        "ROCMExecutionProvider",
        "MIGraphXExecutionProvider",
        "CANNExecutionProvider",
    }
)
"""Providers that use device 0 unless their option ``device_id`` names another."""


def advice(provider: str) -> str:
    """What to install where ``provider`` is missing."""
    package = PACKAGES.get(provider)
    if package is None:
        return f"install the onnxruntime package that brings {provider} in the place of the one that is there"
    return f"pip uninstall onnxruntime, then pip install {package}, which brings {provider} (with the drivers it asks for)"


__all__ = ["CPU", "NUMBERED", "PACKAGES", "advice"]
