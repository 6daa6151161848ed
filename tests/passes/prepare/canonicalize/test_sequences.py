"""Sequences of which known parts are read: the same bits of any cut, and a model of PyTorch that can be trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.compile.context import pass_context
from dnnc.onnx import DIALECTS, import_model
from ir import Module, parse_module, verify
from ir.core.diagnostics import DiagnosticSink
from passes.prepare.canonicalize import CanonicalizePass
from tests.passes.running import assert_same_bits, run


def text(shape: list[int | str]) -> str:
    return "".join(f"{dim} x " for dim in shape) + "f32"


def inline(numbers: list[int]) -> str:
    return f"inline([{', '.join(map(str, numbers))}])"


@st.composite
def cuts(draw: st.DrawFn) -> Module:
    """A tensor cut by sizes, by a scalar or in rows, of which some parts are read, counted from either end."""
    lengths = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    axis = draw(st.integers(0, len(shape) - 1))
    shape[axis] = sum(lengths)
    form = draw(st.sampled_from(["sizes", "scalar", "rows"]))
    kind = draw(st.sampled_from(["i32", "i64"]))
    if form == "scalar":
        size = draw(st.integers(1, shape[axis] + 1))
        lengths = [min(size, shape[axis] - start) for start in range(0, shape[axis], size)]
        operand, resource = ", @sizes", f"resource @sizes : tensor<{kind}> = {inline([size])}"
    elif form == "sizes":
        operand, resource = ", @sizes", f"resource @sizes : tensor<{len(lengths)}x{kind}> = {inline(lengths)}"
    else:
        lengths, operand, resource = [1] * shape[axis], "", ""
    keeps = [None, 1] if form == "scalar" else [None, 1, 0]
    attrs = {"axis": draw(st.sampled_from([axis, axis - len(shape)])), "keepdims": draw(st.sampled_from(keeps))}
    lost = form == "rows" and attrs["keepdims"] == 0
    indices = draw(st.lists(st.integers(-len(lengths), len(lengths) - 1), min_size=1, max_size=4))
    shapes: list[list[int | str]] = []
    for index in indices:
        part = [*shape[:axis], *([] if lost else [lengths[index]]), *shape[axis + 1 :]]
        shapes.append([dim if draw(st.booleans()) else "?" for dim in part])
    results = ", ".join(f"%y{i} : tensor<{text(part)}>" for i, part in enumerate(shapes))
    given = ", ".join(f"{key} = {value}" for key, value in attrs.items() if value is not None)
    element = [*shape[:axis], *([] if lost else ["?"]), *shape[axis + 1 :]]
    lines = [f"%q = onnx.SplitToSequence(%x{operand}) {{{given}}} : seq<tensor<{text(element)}>>"]
    for i, part in enumerate(shapes):
        lines.append(f"%y{i} = onnx.SequenceAt(%q, @index{i}) : tensor<{text(part)}>")
    numbers = "\n".join(f"resource @index{i} : tensor<{kind}> = {inline([index])}" for i, index in enumerate(indices))
    body = "\n".join(lines)
    return parse_module(f"""module @m {{opset.onnx = {draw(st.sampled_from([13, 18, 20]))}}} {{
{resource}
{numbers}
func @main(%x : tensor<{text([*shape])}>) -> ({results}) {{
{body}
}} }}""")


@given(cuts())
@settings(deadline=None, max_examples=30)
def test_any_known_parts_are_those_of_one_split(module: Module) -> None:
    assert verify(module, dialects=DIALECTS) == []
    after = CanonicalizePass().run(module, pass_context(DiagnosticSink()))
    assert verify(after, dialects=DIALECTS) == []
    assert not {op.name for op in after.entry.ops} & {"onnx.SplitToSequence", "onnx.SequenceAt"}
    assert CanonicalizePass().run(after, pass_context(DiagnosticSink())) == after
    type_ = module.entry.args[0].type
    shape = [dim for dim in getattr(type_, "shape", ()) if isinstance(dim, int)]
    inputs = {"x": np.random.default_rng(0).normal(size=shape).astype(np.float32)}
    assert_same_bits(run(module, inputs), run(after, inputs))


@pytest.mark.slow  # torch.export takes seconds
def test_gradients_of_cross_attention_are_those_of_the_module(tmp_path: Path) -> None:
    """Queries of one tensor, keys and values of another: PyTorch's exporter cuts the weight of all three as a sequence."""
    torch = pytest.importorskip("torch", reason="the extra 'train' is not installed")
    pytest.importorskip("onnxscript", reason="the extra 'train' is not installed")
    import dnnc
    from tests.passes.differentiate.oracle import by_ops, differentiated, values_of

    class Cross(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
            self.linear = torch.nn.Linear(16, 4)

        def forward(self, queries, memory):  # type: ignore[no-untyped-def]
            return self.linear(self.attention(queries, memory, memory)[0])

    model = Cross().double()
    shapes = {"queries": (2, 5, 16), "memory": (2, 7, 16)}
    random = [torch.zeros(shape, dtype=torch.float64) for shape in shapes.values()]
    path = dnnc.from_torch(model, tuple(random), tmp_path / "cross.onnx")
    module = import_model(path, dims={}, sink=DiagnosticSink()).module
    assert "onnx.SplitToSequence" in {op.name for op in module.entry.ops}, "nothing to rewrite"
    after = differentiated(module, 'training{loss="mse:",optimizer=sgd},canonicalize,differentiate')
    values = values_of(after)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(values[f"@{name}"])
    loss = torch.nn.functional.mse_loss(model(*(values[f"%{name}"] for name in shapes)), values["%target"])
    loss.backward()
    found_loss, found = by_ops(after, values)
    assert np.isclose(found_loss, float(loss.detach()), rtol=1e-6)
    gradients = {f"@{name}": weight.grad for name, weight in model.named_parameters()}
    assert found.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-7)
