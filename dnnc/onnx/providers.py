"""ONNX Runtime's execution providers: the one that a device of a plan needs, and the package that contains it.

A device type of a topology names its provider as ONNX Runtime spells it. ``PACKAGES`` may lack it: the advice for a machine
without that provider then names no package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ir.core.topology import Topology

CPU = "CPUExecutionProvider"
"""The provider of device types that name none, and of every op that another provider does not take."""

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

CUDA = "CUDAExecutionProvider"
ON_CUDA = frozenset({CUDA, "TensorrtExecutionProvider"})
"""Providers that need the libraries of CUDA."""
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


@dataclass(frozen=True, slots=True)
class Provider:
    """An execution provider with its options, as a device needs it."""

    name: str = CPU
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, topology: Topology, device: str) -> Provider | None:
        """The provider of the device of this name; None where its type names none."""
        placed = topology.device(device)
        type_ = topology.type(placed.type)
        if not type_.provider:
            return None
        options = dict(type_.provider_options)
        if placed.device_id is not None or type_.provider in NUMBERED:
            options["device_id"] = str(topology.device_id(placed))
        return cls(type_.provider, tuple(sorted(options.items())))

    @property
    def in_full_precision(self) -> Provider:
        """The provider with products of f32 in f32: CUDA's takes TF32, of 10 bits of mantissa, unless its options say."""
        if self.name != CUDA or "use_tf32" in dict(self.options):
            return self
        return Provider(self.name, tuple(sorted({**dict(self.options), "use_tf32": "0"}.items())))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Provider:
        return cls(data["provider"], tuple(data["options"].items()))

    def to_json(self) -> dict[str, Any]:
        return {"provider": self.name, "options": dict(self.options)}


ON_CPU = Provider()


def what_to_install(provider: str) -> str:
    """Advice for an environment that lacks ``provider``."""
    package = PACKAGES.get(provider)
    if package is None:
        return f"install the package of onnxruntime that brings {provider}, in the place of the one that is there"
    return f"pip uninstall onnxruntime, then pip install {package}, which brings {provider}"
