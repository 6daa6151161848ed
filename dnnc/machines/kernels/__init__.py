"""Measures kernels other than those of ONNX Runtime on CPUs: on ``gpus``, and PyTorch's in ``training``."""
