"""Tests and benchmarks. Whoever imports one of them, by whatever way, has onnxruntime's telemetry off."""

from dnnc.onnx.ort import silence

silence()
