"""Tests and benchmarks. Whoever imports one of them, by whatever way, has onnxruntime's telemetry off."""

from dnnc.ort import silence

silence()
