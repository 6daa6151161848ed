"""A model with a dropout behind each layer."""

from __future__ import annotations


def dropping(layers: int, width: int = 32) -> str:
    """IR of ``y``, 8 samples of ``x`` through layers of ``width`` that each drop a quarter of their elements."""
    lines = [
        "module @dropping {opset.onnx = 20} {",
        "  resource @ratio : tensor<f32> = splat(0.25)",
        *(f"  resource @h{i}.w : tensor<{width}x{width}xf32> = random(normal, seed = {i}, scale = 0.2)" for i in range(layers)),
        f"  func @main(%x : tensor<8x{width}xf32>) -> (%y : tensor<8x{width}xf32>) {{",
    ]
    x = "%x"
    for i in range(layers):
        y = "%y" if i + 1 == layers else f"%h{i}.y"
        lines += [
            f"    %h{i}.m = onnx.MatMul({x}, @h{i}.w) : tensor<8x{width}xf32>",
            f"    %h{i}.r = onnx.Tanh(%h{i}.m) : tensor<8x{width}xf32>",
            f'    {y} = onnx.Dropout(%h{i}.r, @ratio) : tensor<8x{width}xf32> loc("main", "drop{i}")',
        ]
        x = y
    return "\n".join([*lines, "  }", "}", ""])


__all__ = ["dropping"]
