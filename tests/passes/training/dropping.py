"""Models that draw: one with a dropout behind each layer, one with noise."""

from __future__ import annotations


def noisy(width: int = 32) -> str:
    """IR of a model that multiplies by noise of a normal and adds noise of a uniform distribution to what a layer makes."""
    type_ = f"tensor<8x{width}xf32>"
    lines = [
        "module @noisy {opset.onnx = 20} {",
        *(f"  resource @h{i}.w : tensor<{width}x{width}xf32> = random(normal, seed = {i}, scale = 0.2)" for i in range(2)),
        f"  func @main(%x : {type_}) -> (%y : {type_}) {{",
        f"    %a = onnx.MatMul(%x, @h0.w) : {type_}",
        f"    %n = onnx.RandomNormalLike(%a) {{mean = 1.0, scale = 0.25}} : {type_}",
        f"    %b = onnx.Mul(%a, %n) : {type_}",
        f"    %u = onnx.RandomUniform() {{low = -1.0, high = 1.0, shape = [8, {width}]}} : {type_}",
        f"    %c = onnx.Add(%b, %u) : {type_}",
        f"    %y = onnx.MatMul(%c, @h1.w) : {type_}",
    ]
    return "\n".join([*lines, "  }", "}", ""])


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
