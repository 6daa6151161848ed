"""The text of a program as functions of PyTorch, and that these functions, phase by phase, are a step of the unsplit model."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from dnnc.engines.torch.write.stage_file import SPLIT_BACKWARD, UPDATES, program_source
from ir import parse_module
from ir.core.diagnostics import InvalidInput
from ir.core.module import Module, Program
from tests.golden import ROOT

STAGES = (
    """
def forward(weights, inputs, saved, comm):
    x = inputs['x']
    w = weights['w']
    h = torch.matmul(x, w)
    a = torch.relu(h)
    return {'a': a}, {}, {'x': x, 'a': a}


def backward_weight(weights, inputs, saved, comm):
    x = saved.pop('x')
    a = saved.pop('a')
    a_grad = inputs['a.grad']
    mask = torch.sign(a)
    del a
    h_grad = a_grad * mask
    del mask, a_grad
    xt = x.permute((1, 0))
    del x
    w_grad_1 = torch.matmul(xt, h_grad)
    return {}, {'w.grad.1': w_grad_1}, {}


def update(weights, gradients, step, comm):
    g = yield 2
    g_1 = gradients.pop('w.grad.1').div_(4)
    g_2 = g_1 + g
    del g, g_1
    w_new = sgd(weights['w'], g_2, learning_rate=0.1, weight_decay=0.0)
    del g_2
    comm.send(w_new, 3)
    weights['w'].copy_(w_new)
""",
    """
def forward(weights, inputs, saved, comm):
    target = inputs['target']
    a = inputs['a']
    w = weights['w']
    y = torch.matmul(a, w)
    d = y - target
    del y, target
    s = d * d
    loss = torch.mean(s, dim=(0, 1))
    return {'loss': loss}, {}, {'a': a, 'd': d}


def backward_input(weights, inputs, saved, comm):
    d = saved.pop('d')
    w = weights['w']
    c = torch.tensor([0.25], dtype=torch.float32, device=device).reshape(())
    y_grad = d * c
    del c, d
    wt = w.permute((1, 0))
    a_grad = torch.matmul(y_grad, wt)
    return {'a.grad': a_grad}, {}, {**saved, 'y.grad': y_grad}


def backward_weight(weights, inputs, saved, comm):
    a = saved.pop('a')
    y_grad = saved.pop('y.grad')
    at = a.permute((1, 0))
    del a
    w_grad = torch.matmul(at, y_grad)
    return {}, {'w.grad': w_grad}, {}


def update(weights, gradients, step, comm):
    g = gradients.pop('w.grad').div_(4)
    comm.send(g, 2)
    del g
    w_new = yield 3
    weights['w'].copy_(w_new)
""",
)
"""Of the golden case ``lower/training``, whose weight is of both stages."""


def two_stages() -> Module:
    path = ROOT / "passes/lower/training.out.ir"
    return parse_module(path.read_text(encoding="utf-8"), path.name)


def sources(module: Module) -> list[str]:
    return [program_source(module, program, f"Of {program.name}.") for program in module.of_type(Program)]


def edited(text: str, resources: str = "  resource @w : tensor<2xf32> = declared\n") -> str:
    """The source of the only program of a module around these lines."""
    head = f"module @m {{\n{resources}  func @main(%x : tensor<2xf32>) -> () {{\n  }}\n"
    device = "  topology @t {\n    device d {type = gpu, host = h}\n  }\n"
    stage = "  stage @s index 0 on [d] (%x : tensor<2xf32>) -> () {\n  }\n"
    program = f"  program @p of @s on [d] (%x : tensor<2xf32>) -> () {{\n{text}\n  }}\n}}\n"
    return sources(parse_module(head + device + stage + program, "edited.ir"))[0]


def test_two_stages_read_like_those_of_a_person() -> None:
    for number, (source, functions) in enumerate(zip(sources(two_stages()), STAGES, strict=True)):
        head, _, body = source.partition('device = torch.device("cpu")  # replaced by the trainer\n')
        assert body == f"\n{functions}"
        assert head.startswith(f'"""Of @program{number}."""\n\nimport torch\n')
        assert ("def sgd(" in head) == (number == 0)  # only what it calls


class Wires:
    """``comm`` of stages in one process: what was sent on each channel."""

    def __init__(self) -> None:
        self.sent: dict[int, Any] = {}

    def send(self, tensor: Any, channel: int) -> None:
        self.sent[channel] = tensor.clone()


def test_the_functions_of_two_stages_are_a_step_of_the_unsplit_model() -> None:
    torch = pytest.importorskip("torch", reason="the extra 'train' is not installed")
    stages: list[dict[str, Any]] = [{}, {}]
    for source, scope in zip(sources(two_stages()), stages, strict=True):
        exec(source, scope)
    first, second = stages
    torch.manual_seed(0)
    start = torch.randn(4, 4)
    microbatches = [(torch.randn(2, 4), torch.randn(2, 4)) for _ in range(4)]
    weights, comm = [{"w": start.clone()}, {"w": start.clone()}], Wires()
    sums: list[dict[str, Any]] = [defaultdict(lambda: torch.zeros(4, 4)) for _ in stages]
    for x, target in microbatches:
        sent, _, kept = first["forward"](weights[0], {"x": x}, {}, comm)
        _, _, saved = second["forward"](weights[1], {"target": target, **sent}, {}, comm)
        back, _, saved = second["backward_input"](weights[1], {}, saved, comm)
        for stage, terms in (
            (1, second["backward_weight"](weights[1], {}, saved, comm)),
            (0, first["backward_weight"](weights[0], back, kept, comm)),
        ):
            for name, term in terms[1].items():
                sums[stage][name] += term
            assert terms[2] == {}
        assert saved == kept == {}  # they took all of it
    updates = [scope["update"](held, terms, 1, comm) for scope, held, terms in zip(stages, weights, sums, strict=True)]
    assert [next(update) for update in updates] == [2, 3]  # the channels from which they want a tensor
    for channel, update in zip((2, 3), updates, strict=True):
        with pytest.raises(StopIteration):
            update.send(comm.sent[channel])
    oracle = start.clone().requires_grad_()
    loss = sum(((torch.relu(x @ oracle) @ oracle - target) ** 2).mean() for x, target in microbatches) / 4
    loss.backward()
    assert torch.allclose(weights[0]["w"], start - 0.1 * oracle.grad, atol=1e-6)
    assert torch.equal(weights[0]["w"], weights[1]["w"])


def test_a_member_takes_its_part_by_its_place() -> None:
    path = ROOT / "passes/lower/training_mesh.out.ir"
    (source,) = sources(parse_module(path.read_text(encoding="utf-8"), path.name))
    assert "    x_1 = x.narrow(0, int(x_1_start), 1)\n" in source
    assert "    loss = comm.all_reduce(loss_0, channel=0, reduction='sum')\n" in source
    assert "    w_1 = weights['w'].narrow(0, int(w_1_start), 2)\n" in source
    assert "    w_3 = comm.all_gather(w_2, channel=2, dim=0)\n" in source
    assert "    x_1_start = torch.tensor([0, 1], dtype=torch.int64, device=device).reshape((2, 1))\n" in source
    assert "    x_1_start = x_1_start[comm.place]\n" in source


def test_a_part_of_a_mask_does_not_keep_the_whole() -> None:
    """It is kept for the backward pass; a view would hold all elements."""
    lines = [
        "    %zero = onnx.Constant() {value_ints = [0]} : tensor<1xi64>",
        "    %one = onnx.Constant() {value_ints = [1]} : tensor<1xi64>",
        "    %m = grad.mask(%x) {number = 3, ratio = 0.25} : tensor<2xf32>",
        "    %part = onnx.Slice(%m, %zero, %one, %zero) : tensor<1xf32>",
        "    %other = onnx.Slice(%x, %zero, %one, %zero) : tensor<1xf32>",
        "    %y = onnx.Mul(%part, %other) : tensor<1xf32>",
        "    %g = onnx.Mul(%part, %y) : tensor<1xf32> phase<I>",
    ]
    source = edited("\n".join(lines))
    assert "    m = dropout_mask(x, 3, 0.25, (2,), torch.float32)\n" in source
    assert "    part = m[0:1].clone()\n" in source
    assert "    other = x[0:1]\n" in source


def test_a_sum_that_two_updates_read_stays_as_it_is() -> None:
    sums = "    %g = grad.accumulate(%y) {microbatches = 4} : tensor<2xf32> phase<U>"
    source = edited(f"    %y = onnx.Relu(%x) : tensor<2xf32> phase<W>\n{sums}\n{sums.replace('%g', '%h')}")
    assert "    g = gradients['y'] / 4\n" in source
    assert "    h = gradients['y'] / 4\n" in source
    assert ".pop('y')" not in source


def test_the_mean_over_one_microbatch_is_the_gradient() -> None:
    mean = "    %g = grad.accumulate(%y) {microbatches = 1} : tensor<2xf32> phase<U>"
    assert "    g = gradients.pop('y')\n" in edited(f"    %y = onnx.Relu(%x) : tensor<2xf32> phase<W>\n{mean}")


def test_a_phase_that_reads_a_gradient_again_does_not_give_it_again() -> None:
    """The gradient of a bias of the result's own shape is that of the result, which the gradient of the weight reads too."""
    lines = [
        "    %dx = onnx.Relu(%x) : tensor<2xf32> phase<I>",
        "    %dw = onnx.Neg(%dx) : tensor<2xf32> phase<W>",
        "    %g = grad.accumulate(%dx) {microbatches = 4} : tensor<2xf32> phase<U>",
        "    %h = grad.accumulate(%dw) {microbatches = 4} : tensor<2xf32> phase<U>",
    ]
    source = edited("\n".join(lines))
    assert "    return {}, {'dx': dx}, {'dx': dx}\n" in source
    assert "    return {}, {'dw': dw}, {}\n" in source


def test_a_phase_that_reads_a_result_of_the_model_again_does_not_return_it_again() -> None:
    """The gradient of an exponential reads it: a loss that is one would count twice."""
    head = "module @m {\n  resource @w : tensor<2xf32> = declared\n  func @main(%x : tensor<2xf32>) -> () {\n  }\n"
    device = "  topology @t {\n    device d {type = gpu, host = h}\n  }\n"
    results = "(%x : tensor<2xf32>) -> (%loss : tensor<2xf32>) {\n"
    lines = "    %loss = onnx.Exp(%x) : tensor<2xf32>\n    %dx = onnx.Neg(%loss) : tensor<2xf32> phase<I>\n"
    stage = f"  stage @s index 0 on [d] {results}{lines}  }}\n"
    text = f"{head}{device}{stage}  program @p of @s on [d] {results}{lines}  }}\n}}\n"
    (source,) = sources(parse_module(text, "result.ir"))
    assert "    return {'loss': loss}, {}, {'loss': loss}\n" in source
    assert "    return {}, {}, {}\n" in source


def test_values_do_not_hide_what_a_function_is_given() -> None:
    lines = ["    %saved = onnx.Relu(%x) : tensor<2xf32>", "    %comm = onnx.Neg(%saved) : tensor<2xf32>"]
    source = edited("\n".join([*lines, "    comm.send(%comm) {channel = 0, peer = 1}"]))
    assert "    saved_2 = torch.relu(x)\n" in source
    assert "    v_comm = -saved_2\n" in source
    assert "    return {'comm': v_comm}, {}, {}\n" in source


def test_a_small_weight_is_read_and_a_small_constant_written() -> None:
    """A number that is trained is another in the next step, one that is a constant is not."""
    lines = [f"    %{name} = onnx.Clip(%x, _, @{name}) : tensor<2xf32>" for name in ("limit", "bound")]
    resources = (
        "  resource @limit : tensor<f32> = splat(6.0)\n  resource @bound : tensor<f32> = splat(6.0) optimizer<name = sgd>\n"
    )
    source = edited("\n".join(lines), resources)
    assert "torch.clamp(x, None, 6.0)\n" in source
    assert "torch.clamp(x, None, bound)\n" in source


def test_a_stage_has_only_the_functions_of_its_phases() -> None:
    source = edited("    %y = onnx.Relu(%x) : tensor<2xf32>")
    assert [name for name in (*SPLIT_BACKWARD, UPDATES) if f"def {name}(" in source] == ["forward"]


def test_what_torch_lacks_is_told_at_its_node() -> None:
    with pytest.raises(
        InvalidInput, match=r"m: /node: error\[E4701\]: onnx.StringNormalizer: dnnc cannot write this op as PyTorch"
    ) as caught:
        edited('    %y = onnx.StringNormalizer(%x) : tensor<2xf32> loc("m", "/node")')
    assert caught.value.exit_code == 3


SUMS = """module @m {
  resource @w : tensor<2xf32> = declared
  resource @v : tensor<2xf32> = declared
  func @main(%x : tensor<2xf32>) -> () {
  }
  topology @t {
    device a {type = gpu, host = h}
    device b {type = gpu, host = h}
  }
  mesh @m [y = 2] on [a, b]
  schedule @order {
    kind = "1f1b"
    microbatches = 4
    row a [ROW]
    row b [ROW]
  }
  stage @s index 0 on [a, b] (%x : tensor<2xf32>) -> () {
  }
  program @p of @s on [a, b] (%x : tensor<2xf32>) -> () {
    %y = onnx.Mul(%x, @v) : tensor<2xf32>
    %dy = onnx.Mul(%y, @w) : tensor<2xf32> phase<I>
    %dw = onnx.Neg(%dy) : tensor<2xf32> phase<W>
    %dx = onnx.Relu(%dy) : tensor<2xf32> phase<I>
    %dv = onnx.Neg(%dx) : tensor<2xf32> phase<W>
    %w1 = grad.accumulate(%dw) {microbatches = 4} : tensor<2xf32> phase<U>
    %b1 = grad.accumulate(%dy) {microbatches = 4} : tensor<2xf32> phase<U>
    %w2 = comm.all_reduce(%w1) {axis = "y", bucket = 0, channel = 0, mesh = @m, reduction = "sum"} : tensor<2xf32> phase<U>
    %b2 = comm.all_reduce(%b1) {axis = "y", bucket = 0, channel = 1, mesh = @m, reduction = "sum"} : tensor<2xf32> phase<U>
    %v1 = grad.accumulate(%dv) {microbatches = 4} : tensor<2xf32> phase<U>
    %v2 = comm.all_reduce(%v1) {axis = "y", channel = 2, mesh = @m, reduction = "sum"} : tensor<2xf32> phase<U>
    %n = onnx.Add(%w2, %b2) : tensor<2xf32> phase<U>
    grad.assign(@w, %n) phase<U>
    grad.assign(@v, %v2) phase<U>
  }
}
"""


def test_sums_begin_where_the_backward_pass_has_made_the_last_gradient_of_a_bucket() -> None:
    (source,) = sources(parse_module(SUMS.replace("ROW", "F(0, 0), B(0, 0), U(0, _)"), "sums.ir"))
    _, _, backward = source.partition("def backward(")
    assert (
        backward
        == """weights, inputs, saved, comm):
    y = saved.pop('y')
    w = weights['w']
    dy = y * w
    del y
    dw = -dy
    comm.add([dw, dy], channel=0, reduction='sum', microbatches=4)
    del dw
    dx = torch.relu(dy)
    del dy
    dv = -dx
    del dx
    comm.add([dv], channel=2, reduction='sum', microbatches=4)
    return {}, {}, {}


def update(weights, gradients, step, comm):
    [w2, b2] = comm.summed(gradients, ['dw', 'dy'], channel=0, reduction='sum')
    [v2] = comm.summed(gradients, ['dv'], channel=2, reduction='sum')
    n = w2 + b2
    del w2, b2
    weights['w'].copy_(n)
    del n
    weights['v'].copy_(v2)
"""
    )


def test_phases_apart_begin_the_sums_of_what_one_of_them_makes_whole() -> None:
    """The bucket of a gradient of I and one of W waits for the update."""
    (source,) = sources(parse_module(SUMS.replace("ROW", "F(0, 0), I(0, 0), W(0, 0), U(0, _)"), "sums.ir"))
    assert "def backward(" not in source
    assert "    return {}, {'dy': dy}, {'dy': dy, 'dx': dx}\n" in source
    assert "    comm.add([dv], channel=2, reduction='sum', microbatches=4)\n    return {}, {'dw': dw}, {}\n" in source
    update = source.partition("def update")[2]
    assert "    [v2] = comm.summed(gradients, ['dv'], channel=2, reduction='sum')\n    w1 = " in update
    assert "    [w2, b2] = comm.all_reduce_together([w1, b1], channel=0, reduction='sum')\n" in update
