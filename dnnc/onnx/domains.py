"""Domains of ONNX operators."""

from __future__ import annotations

MICROSOFT = "com.microsoft"
"""ONNX Runtime's own domain, whose only version gains operators, attributes and operands with its releases."""
STANDARD_DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "ai.onnx.training")
"""Domains whose operators are all known: one that is missing does not exist."""
