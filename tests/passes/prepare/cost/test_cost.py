"""Cost: formulas against an independent count of the arithmetic, totals against published ones, and nothing silently free."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnnc.compile.context import pass_context
from dnnc.compile.load import load_model
from dnnc.onnx import DIALECTS
from ir import Attribute, AttrKind, Builder, DType, Module, TensorType, attr, parse_module, verify
from ir.core.diagnostics import DiagnosticSink, InvalidInput, Severity
from ir.core.facets import Cost
from ir.core.module import Declared
from ir.core.ops import Op, Value, all_ops
from ir.core.types import SeqType, Type
from passes import PassContext, PassManager, parse_pipeline
from passes.prepare.cost import FORMULAS, CostPass
from passes.prepare.cost.facts import OpFacts
from passes.prepare.cost.pointwise import elementwise

F32 = DType.F32


def tensor(*shape: int, dtype: DType = F32) -> TensorType:
    return TensorType(dtype, shape)


def cost_of(kind: str, operands: list[Type | None], *results: Type, weights: tuple[int, ...] = (), **attrs: object) -> Cost:
    """Cost of one op with operands of these types (None: absent), those at ``weights`` resources."""
    builder = Builder("@m", **{"opset.onnx": 20})
    with builder.func("main") as func:
        names = []
        for i, type_ in enumerate(operands):
            if type_ is None:
                names.append("")
            elif i in weights:
                names.append(builder.resource(f"w{i}", type_, Declared()))
            else:
                names.append(func.arg(f"x{i}", type_))
        for name in func.multi(kind, names, results, attrs={key: attr(value) for key, value in attrs.items()}):
            func.result(name)
    (op,) = CostPass().run(builder.build(), PassContext()).entry.ops
    cost = op.facet(Cost)
    assert cost is not None
    return cost


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [((0, 4, 8), (0, 8, 4), (0, 4, 4)), ((0, 8), (8, 4), (0, 4)), ((2, 4, 0), (2, 0, 4), (2, 4, 4))],
)
@pytest.mark.parametrize("weights", [(), (1,)])
def test_products_of_no_elements_cost_no_flops(
    left: tuple[int, ...], right: tuple[int, ...], result: tuple[int, ...], weights: tuple[int, ...]
) -> None:
    """A dimension may be 0, as a cache before its first token."""
    cost = cost_of("onnx.MatMul", [tensor(*left), tensor(*right)], tensor(*result), weights=weights)
    assert (cost.flops, cost.kind) == (0, cost_of("onnx.MatMul", [tensor(2, 2)] * 2, tensor(2, 2)).kind)


class Counter:
    """A number that counts the multiply-adds it takes part in."""

    total = 0

    def __mul__(self, other: Counter) -> Counter:
        Counter.total += 1
        return self

    def __add__(self, other: object) -> Counter:
        return self

    __radd__ = __add__


def counters(*shape: int) -> np.ndarray:
    array = np.empty(shape, dtype=object)
    for index in np.ndindex(*shape):
        array[index] = Counter()
    return array


def counted() -> int:
    total, Counter.total = Counter.total, 0
    return total


small = st.integers(1, 4)


@given(st.lists(small, max_size=2), small, small, small, st.booleans())
def test_matmul_counts_every_multiply_add(batch: list[int], m: int, k: int, n: int, broadcast: bool) -> None:
    right = [1] * len(batch) if broadcast else batch
    np.matmul(counters(*batch, m, k), counters(*right, k, n))
    cost = cost_of("onnx.MatMul", [tensor(*batch, m, k), tensor(*right, k, n)], tensor(*batch, m, n), weights=(1,))
    assert cost.flops == cost.input_grad == 2 * counted()
    assert cost.weight_grad == (cost.flops if k * n * int(np.prod(right)) > 1 else 0)


@given(small, st.integers(1, 3), small, small, st.integers(3, 6), st.integers(1, 3), st.integers(1, 2), st.integers(0, 2))
@settings(max_examples=50)
def test_convolution_counts_every_multiply_add(
    batch: int, groups: int, inner: int, outer: int, width: int, kernel: int, stride: int, pad: int
) -> None:
    """By sliding the window in plain loops; padding counts as any other element."""
    x = counters(batch, groups * inner, width + 2 * pad)
    w = counters(groups * outer, inner, kernel)
    out = (width + 2 * pad - kernel) // stride + 1
    for b, o, position in itertools.product(range(batch), range(groups * outer), range(out)):
        first = o // outer * inner
        for c, t in itertools.product(range(inner), range(kernel)):
            x[b, first + c, position * stride + t] * w[o, c, t]
    cost = cost_of(
        "onnx.Conv",
        [tensor(batch, groups * inner, width), tensor(groups * outer, inner, kernel)],
        tensor(batch, groups * outer, out),
        weights=(1,),
        group=groups,
        strides=[stride],
        pads=[pad, pad],
    )
    assert cost.flops == cost.input_grad == 2 * counted()
    assert cost.kind == ("conv-depthwise" if inner == 1 and groups > 1 else "conv")


def test_a_transposed_convolution_costs_what_the_convolution_costs_whose_gradient_it_is() -> None:
    forward = cost_of("onnx.Conv", [tensor(2, 6, 9, 9), tensor(8, 3, 3, 3)], tensor(2, 8, 7, 7), weights=(1,), group=2)
    backward = cost_of(
        "onnx.ConvTranspose", [tensor(2, 8, 7, 7), tensor(8, 3, 3, 3)], tensor(2, 6, 9, 9), weights=(1,), group=2
    )
    assert forward.flops == backward.flops


@pytest.mark.parametrize(
    ("equation", "shapes", "out"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)], (2, 4)),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)], (2, 3, 4, 6)),
        ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)], (2, 3, 5)),
        ("...ij,jk", [(2, 3, 4), (4, 5)], (2, 3, 5)),
        ("i,i->", [(7,), (7,)], ()),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)], (2, 5)),
    ],
)
def test_einsum_counts_every_multiply_add_from_the_left(
    equation: str, shapes: list[tuple[int, ...]], out: tuple[int, ...]
) -> None:
    left, _, output = equation.partition("->")
    terms = left.split(",")
    current, array = terms[0], counters(*shapes[0])
    for i, (term, shape) in enumerate(zip(terms[1:], shapes[1:], strict=True), start=2):
        last = i == len(terms)
        target = output if last and output else "".join(sorted(set(current + term) & set("".join(terms[i:]) + (output or ""))))
        pair = f"{current},{term}" + (f"->{target}" if output or not last else "")
        array = np.einsum(pair, array, counters(*shape), optimize=False)
        current = target
    cost = cost_of("onnx.Einsum", [tensor(*shape) for shape in shapes], tensor(*out), equation=equation)
    assert cost.flops == 2 * counted()


def test_an_lstm_is_its_products_and_little_else() -> None:
    steps, batch, inputs, hidden = 5, 2, 32, 64
    operands: list[Type | None] = [tensor(steps, batch, inputs), tensor(1, 4 * hidden, inputs), tensor(1, 4 * hidden, hidden)]
    cost = cost_of("onnx.LSTM", operands, tensor(steps, 1, batch, hidden), weights=(1, 2), hidden_size=hidden)
    products = 2 * steps * batch * 4 * hidden * (inputs + hidden)
    assert products < cost.flops < 1.1 * products
    assert cost.weight_grad == products
    assert 2 * products < cost.input_grad < 2.2 * products  # the gates again, then back


def test_a_fourier_transform_costs_by_its_length_not_by_its_batch() -> None:
    """512 transforms of 64 points; 64 signals of 15 frames of 128."""
    one = cost_of("onnx.DFT", [tensor(1, 64, 1)], tensor(1, 64, 2)).flops
    assert one == 5 * 64 * 6
    assert cost_of("onnx.DFT", [tensor(512, 64, 1)], tensor(512, 33, 2), axis=1, onesided=1).flops == 512 * one
    scalar = tensor(dtype=DType.I64)
    frames = cost_of("onnx.STFT", [tensor(64, 1024, 1), scalar, tensor(128), scalar], tensor(64, 15, 65, 2))
    assert frames.flops == 64 * 15 * 5 * 128 * 7


def test_attention_is_its_two_products_and_the_softmax() -> None:
    q, kv = tensor(2, 8, 16, 64), tensor(2, 2, 32, 64)
    fused = cost_of("onnx.Attention", [q, kv, kv], q)
    scores = 2 * 8 * 16 * 32
    assert fused.flops == 2 * scores * (64 + 64) + scores * 15
    flat = cost_of(
        "onnx.Attention",
        [tensor(2, 16, 512), tensor(2, 32, 128), tensor(2, 32, 128)],
        tensor(2, 16, 512),
        q_num_heads=8,
        kv_num_heads=2,
    )
    assert flat.flops == fused.flops


@pytest.mark.parametrize(
    ("kind", "operands", "result", "read", "write"),
    [
        ("onnx.Relu", [tensor(10)], tensor(10), 40, 40),
        ("onnx.Relu", [tensor(10, dtype=DType.BF16)], tensor(10, dtype=DType.BF16), 20, 20),
        ("onnx.Cast", [tensor(7, dtype=DType.I4)], tensor(7), 4, 28),
        ("onnx.Gather", [tensor(1000, 8), tensor(3, dtype=DType.I64)], tensor(3, 8), 24 + 96, 96),
        ("onnx.Slice", [tensor(1000, 8), tensor(1, dtype=DType.I64), tensor(1, dtype=DType.I64)], tensor(5, 8), 160 + 16, 160),
        ("onnx.Reshape", [tensor(4, 6), tensor(1, dtype=DType.I64)], tensor(24), 0, 0),
        ("onnx.Transpose", [tensor(4, 6)], tensor(6, 4), 96, 96),
        ("onnx.Concat", [tensor(2, 3), tensor(4, 3)], tensor(6, 3), 72, 72),
        ("onnx.vendor.Unknown", [tensor(4), None, tensor(2)], tensor(8), 24, 32),
    ],
)
def test_bytes(kind: str, operands: list[Type | None], result: Type, read: int, write: int) -> None:
    cost = cost_of(kind, operands, result)
    assert (cost.read, cost.write) == (read, write)


def test_an_operand_read_twice_is_read_once() -> None:
    builder = Builder("@m")
    with builder.func("main") as func:
        x = func.arg("x", tensor(4))
        func.result(func.op("onnx.Mul", (x, x), tensor(4)))
    (op,) = CostPass().run(builder.build(), PassContext()).entry.ops
    assert op.facet(Cost, Cost()).read == 16


def test_integers_have_no_gradient() -> None:
    i64 = tensor(4, dtype=DType.I64)
    cost = cost_of("onnx.Mul", [i64, i64], i64, weights=(1,))
    assert (cost.input_grad, cost.weight_grad, cost.saved) == (0, 0, 0)
    assert cost.flops == 4


def test_a_broadcast_bias_is_summed_backwards() -> None:
    cost = cost_of("onnx.Add", [tensor(8, 4), tensor(4)], tensor(8, 4), weights=(1,))
    assert (cost.input_grad, cost.weight_grad, cost.saved) == (0, 32, 0)


@pytest.mark.parametrize(("divisor", "weights", "saved"), [((), (1,), 0), ((4,), (1,), 128), ((4,), (), 128 + 16)])
def test_a_quotient_keeps_its_divisor_and_for_its_gradient_the_result(
    divisor: tuple[int, ...], weights: tuple[int, ...], saved: int
) -> None:
    """A resource lies in memory anyway; one of a single element is a constant."""
    assert cost_of("onnx.Div", [tensor(8, 4), tensor(*divisor)], tensor(8, 4), weights=weights).saved == saved


@pytest.mark.parametrize(
    ("name", "attributes", "tensors"),
    [("Elu", {}, 1), ("Selu", {}, 1), ("Celu", {"alpha": -2.0}, 1), ("Elu", {"alpha": -2.0}, 2), ("Selu", {"gamma": -1.0}, 2)],
)
def test_a_linear_unit_keeps_its_operand_only_where_the_result_does_not_tell_its_sign(
    name: str, attributes: dict[str, float], tensors: int
) -> None:
    assert cost_of(f"onnx.{name}", [tensor(8, 4)], tensor(8, 4), **attributes).saved == tensors * 128


def test_a_bias_of_one_element_trains_where_it_is_marked() -> None:
    op = Op("onnx.Add", ("%x", "@bias"), (Value("%sum", tensor(8, 1)),))
    facts = OpFacts(op, (tensor(8, 1), tensor(1)), (tensor(8, 1),), (True, True))
    assert elementwise(1)(facts).weight_grad == 8
    assert elementwise(1)(replace(facts, learns=None)).weight_grad == 0  # a constant


def test_an_op_whose_shapes_fit_no_formula_is_counted_by_bytes_with_a_warning() -> None:
    sink = DiagnosticSink()
    builder = Builder("@m")
    with builder.func("main") as func:
        func.result(func.op("onnx.MatMul", (func.arg("x", tensor()), func.arg("y", tensor())), tensor()))
    (op,) = CostPass().run(builder.build(), PassContext(sink=sink)).entry.ops
    assert op.facet(Cost) == Cost(read=8, write=4)
    assert [d.severity for d in sink.diagnostics] == [Severity.WARNING]
    assert op.id in sink.diagnostics[0].where


@pytest.mark.parametrize("count", [-(1 << 63), -1, 0, 3, 1 << 62])
def test_a_scan_of_an_absurd_number_of_inputs_is_counted_once(count: int) -> None:
    text = f"""module @m {{opset.onnx = 20}} {{ func @main(%x : tensor<9x2xf32>) -> (%y : tensor<9x2xf32>) {{
      %y = onnx.Scan(%x) {{num_scan_inputs = {count}}} : tensor<9x2xf32> loc(?)
        region body(%r : tensor<2xf32>) {{
          %t = onnx.Neg(%r) : tensor<2xf32> loc(?)
          yield %t
        }}
    }} }}"""
    (op,) = CostPass().run(parse_module(text), PassContext()).entry.ops
    assert op.facet(Cost, Cost()).flops == 2


def test_numbers_that_no_plan_can_add_up_are_refused_with_the_dearest_op() -> None:
    builder = Builder("@m")
    with builder.func("main") as func:
        x = func.arg("x", tensor(1 << 22, 1 << 22))
        func.result(func.op("onnx.MatMul", (x, x), tensor(1 << 22, 1 << 22)))
    with pytest.raises(InvalidInput, match=r"flops of all ops is .* onnx.MatMul's"):
        CostPass().run(builder.build(), PassContext())


def test_every_unbound_dimension_is_named_with_its_flag() -> None:
    builder = Builder("@m")
    with builder.func("main") as func:
        x = func.arg("x", TensorType(F32, ("batch", "seq")))
        func.result(func.op("onnx.Flatten", (x,), TensorType(F32, ("batch", "2*seq"))))
    with pytest.raises(InvalidInput) as caught:
        CostPass().run(builder.build(), PassContext())
    assert [(d.where, d.hint) for d in caught.value.diagnostics] == [
        ("%x", "bind it: --dim batch=NUMBER"),
        ("%x", "bind it: --dim seq=NUMBER"),
    ]


def test_sizes_that_only_running_tells_are_warned_of_and_assumed() -> None:
    sink = DiagnosticSink()
    builder = Builder("@m")
    with builder.func("main") as func:
        x = func.arg("x", tensor(4))
        for _ in range(5):
            found = func.op("onnx.NonZero", (x,), TensorType(DType.I64, (1, None)))
            func.result(found)
        func.result(func.op("onnx.SequenceConstruct", (x,), SeqType(tensor(4))))
    ops = CostPass(unknown=100).run(builder.build(), PassContext(sink=sink)).entry.ops
    assert ops[0].facet(Cost, Cost()).write == 800
    assert len(sink.diagnostics) == 1
    assert "%v" in sink.diagnostics[0].where
    assert "6 of 6 sizes are unknown" in sink.diagnostics[0].message
    assert "counted as 100 each" in sink.diagnostics[0].message


def test_a_call_costs_what_it_calls() -> None:
    builder = Builder("@m")
    types = [tensor(8, 4)]
    with builder.func("main") as main:
        x = main.arg("x", types[0])
        for _ in range(2):
            (x,) = main.multi("dnnc.call", (x,), types, attrs={"callee": Attribute(AttrKind.SYMBOL, "@block")})
        main.result(x)
    with builder.func("block") as block:
        block.result(block.op("onnx.Neg", (block.arg("y", types[0]),), types[0]))
    module = builder.build()
    assert verify(module, dialects=DIALECTS) == []
    result = CostPass().run(module, PassContext())
    assert verify(result, dialects=DIALECTS) == []
    assert [op.facet(Cost) for op in result.entry.ops] == [Cost(32, 128, 128, input_grad=32, kind="control")] * 2


def test_a_scan_runs_its_body_once_per_slice() -> None:
    builder = Builder("@m", **{"opset.onnx": 20})
    with builder.func("main") as func:
        state, rows = func.arg("s", tensor(4)), func.arg("rows", tensor(6, 4))
        body = func.region()
        s, row = body.arg("t", tensor(4)), body.arg("row", tensor(4))
        total = body.op("onnx.Add", (s, row), tensor(4))
        region = body.build((total,))
        func.result(
            func.multi("onnx.Scan", (state, rows), (tensor(4),), attrs={"num_scan_inputs": 1}, regions=[("body", region)])[0]
        )
    (op,) = CostPass().run(builder.build(), PassContext()).entry.ops
    assert op.facet(Cost, Cost()).flops == 6 * 4


# --- totals --------------------------------------------------------------------------------------------------------


def by_default(module: Module) -> list[str]:
    """The ops of the entry that have no formula."""
    return [op.name for op in all_ops(module.entry.ops) if op.facet(Cost, Cost()).kind == "default"]


def totals(spec: str) -> tuple[Cost, Module]:
    module = load_model(spec, {}, DiagnosticSink()).module
    module = PassManager(parse_pipeline("canonicalize,cost")).run(module, pass_context(DiagnosticSink()))
    costs = [op.facet(Cost, Cost()) for op in module.entry.ops]
    total = Cost(**{key: sum(getattr(c, key) for c in costs) for key in ("flops", "weight", "input_grad", "weight_grad")})
    return total, module


def test_resnet50_has_its_published_cost() -> None:
    """4.1 GMACs and 25.6 million parameters (He et al.; torchvision states 4.09 GMACs)."""
    total, module = totals("zoo:resnet50")
    assert total.flops == pytest.approx(2 * 4.09e9, rel=0.01)
    assert total.weight / 4 == pytest.approx(25.6e6, rel=0.01)
    assert total.input_grad + total.weight_grad == pytest.approx(2 * total.flops, rel=0.02)
    assert by_default(module) == []


def test_bert_base_has_its_published_cost() -> None:
    """22.5 GFLOP for 128 tokens (Sun et al., MobileBERT, table 4)."""
    total, module = totals("zoo:bert-base")
    assert total.flops == pytest.approx(22.5e9, rel=0.01)
    assert by_default(module) == []


def test_gpt2_costs_two_flops_per_parameter_and_token_and_its_attention() -> None:
    """2 N tokens + 4 layers tokens^2 width (Kaplan et al., Scaling laws, table 1); N = 12 layers width^2 and the vocabulary."""
    tokens, layers, width, vocabulary = 128, 12, 768, 50257
    total, module = totals(f"zoo:gpt2,seq={tokens}")
    products = 2 * tokens * (12 * layers * width**2 + vocabulary * width) + 4 * layers * tokens**2 * width
    assert products < total.flops < 1.01 * products
    assert by_default(module) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "flops", "parameters"),
    [
        # Multiply-adds and parameters as the papers or torchvision's model table state them.
        ("vgg19", 2 * 19.63e9, 143.67e6),
        ("resnet50", 2 * 4.09e9, 25.56e6),
        ("densenet121", 2 * 2.83e9, 7.98e6),
        ("squeezenet", 2 * 0.35e9, 1.235e6),
        ("bvlc_alexnet", 2 * 0.655e9, 60.97e6),
    ],
)
def test_the_light_models_of_onnx_have_their_published_cost(name: str, flops: float, parameters: float) -> None:
    """Their weights are made by ConstantOfShape: nothing is counted unless these are folded."""
    path = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"
    total, module = totals(str(path))
    assert total.flops == pytest.approx(flops, rel=0.03)
    assert total.weight / 4 == pytest.approx(parameters, rel=0.03)
    assert by_default(module) == []


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "resnet", "vit"])
def test_every_op_of_the_shared_models_has_a_formula(name: str, shared_dir: Path) -> None:
    dims = {"bert": {"s72": 2, "s53": 16, "s43": 2}, "resnet": {"s99": 2}, "vit": {"s99": 2}}.get(name, {"s72": 2, "s70": 16})
    sink = DiagnosticSink()
    module = load_model(str(shared_dir / "models" / f"{name}.onnx"), dims, sink).module
    module = PassManager(parse_pipeline("cost")).run(module, PassContext(sink=sink))
    assert by_default(module) == []
    assert sink.diagnostics == []


# --- what has no formula ------------------------------------------------------------------------------------------

WITHOUT_FORMULA = {
    # Text, pictures and features: no arithmetic that a formula could count from shapes.
    *("ImageDecoder", "RegexFullMatch", "StringNormalizer", "TfIdfVectorizer", "MelWeightMatrix", "SequenceMap"),
}


def test_every_operator_of_onnx_has_a_formula_or_is_known_to_have_none() -> None:
    """A new ONNX release with a new operator fails here: give it a formula or list it."""
    schemas = {s.name for s in onnx.defs.get_all_schemas() if s.domain == ""}
    assert {name for name in schemas if f"onnx.{name}" not in FORMULAS} <= WITHOUT_FORMULA
    assert {name for name in WITHOUT_FORMULA if f"onnx.{name}" in FORMULAS} <= {"SequenceMap"}


def test_statistics_count_regions_and_name_what_has_no_formula() -> None:
    builder = Builder("@m")
    with builder.func("main") as func:
        x, go = func.arg("x", tensor(4)), func.arg("go", tensor(dtype=DType.BOOL))
        regions = []
        for key, kind in (("else_branch", "onnx.Neg"), ("then_branch", "onnx.vendor.Mystery")):
            region = func.region()
            regions.append((key, region.build((region.op(kind, (x,), tensor(4)),))))
        func.result(func.multi("onnx.If", (go,), (tensor(4),), regions=regions)[0])
    context = PassContext()
    CostPass().run(builder.build(), context)
    counted = {key: context.statistics["cost"][key] for key in ("ops", "by_formula", "by_default", "default_ops")}
    assert counted == {"ops": 3, "by_formula": 2, "by_default": 1, "default_ops": "onnx.vendor.Mystery x1"}


QUANTISED = """module @m {opset.onnx = 20} {
  resource @w : tensor<16x8xi8> = declared
  resource @s : tensor<f32> = declared
  resource @plain : tensor<16x8xf32> = declared
  func @main(%x : tensor<4x16xu8>, %y : tensor<4x16xf32>) -> (%q : tensor<4x8xu8>, %c : tensor<4x8xf32>) {
    %a = onnx.DequantizeLinear(%x, @s) : tensor<4x16xf32>
    %b = onnx.DequantizeLinear(@w, @s) : tensor<16x8xf32>
    %p = onnx.MatMul(%a, %b) : tensor<4x8xf32>
    %q = onnx.QuantizeLinear(%p, @s) {output_dtype = 2} : tensor<4x8xu8>
    %c = onnx.MatMul(%a, @plain) : tensor<4x8xf32>
  }
}
"""


def test_products_of_what_is_dequantised_run_in_8_bits() -> None:
    """And the conversions cost what they move of the narrow side, for their wide side is fused away."""
    ops = CostPass().run(parse_module(QUANTISED), PassContext()).entry.ops
    costs = [op.facet(Cost, Cost()) for op in ops]
    assert [cost.kind for cost in costs] == ["epilogue", "epilogue", "matmul-i8", "epilogue", "matmul"]
    assert [(cost.read, cost.write, cost.weight) for cost in costs if cost.kind == "epilogue"] == [
        (4 * 16 + 4, 0, 4),
        (16 * 8 + 4, 0, 16 * 8 + 4),
        (4, 4 * 8, 4),
    ]


@pytest.mark.parametrize(("layout", "kind"), [(0, "recurrent"), (1, "recurrent-vector")])
def test_a_recurrent_layer_of_one_sample_is_a_class_of_its_own(layout: int, kind: str) -> None:
    operands = [tensor(1, 6, 5), tensor(1, 12, 5), tensor(1, 12, 3)]  # steps and samples, or samples and steps
    assert cost_of("onnx.LSTM", operands, tensor(1, 1, 6, 3), weights=(1, 2), hidden_size=3, layout=layout).kind == kind


def scalar(kind: str, operands: list[Type | None], *results: Type, **more: object) -> int:
    return cost_of(kind, operands, *results, **more).scalar  # type: ignore[arg-type]


def test_scalar_steps_are_those_of_the_kernels_that_go_element_by_element() -> None:
    x = tensor(64, 128)
    assert scalar("onnx.Add", [x, x], x) == scalar("onnx.Relu", [x], x) == 0
    assert scalar("onnx.Tan", [x], x) > scalar("onnx.Sin", [x], x) > 0
    assert scalar("onnx.ScatterElements", [x, tensor(8, 128), tensor(8, 128)], x) == 18 * 8 * 128


@pytest.mark.parametrize(
    ("other", "spans"),
    [((), 1), ((1, 1, 8), 64 * 16), ((16, 8), 64), ((64, 16, 1), 64 * 16), ((64, 1, 8), 64 * 16), ((64, 1, 1), 64)],
)
def test_a_broadcast_is_set_up_for_each_span_of_elements_that_advance_alike(other: tuple[int, ...], spans: int) -> None:
    x = tensor(64, 16, 8)
    assert scalar("onnx.Add", [x, tensor(*other)], x) == 36 * (spans - 1)


def test_a_transposition_moves_rows_where_the_last_axis_stays() -> None:
    x = tensor(4, 2048, 16, 64)
    n = 4 * 2048 * 16 * 64
    heads = scalar("onnx.Transpose", [x], tensor(4, 16, 2048, 64), perm=[0, 2, 1, 3])
    near = scalar("onnx.Transpose", [x], tensor(4, 2048, 64, 16), perm=[0, 1, 3, 2])
    far = scalar("onnx.Transpose", [x], tensor(4, 16, 64, 2048), perm=[0, 2, 3, 1])
    assert heads == 10 * n / 64 < near < far
    assert scalar("onnx.Transpose", [x], x, perm=[0, 1, 2, 3]) == 0


def test_a_convolution_in_blocks_of_channels_unfolds_nothing() -> None:
    def conv(channels: int, made: int, group: int = 1, *kernel: int) -> int:
        spatial = [32] * len(kernel)
        operands: list[Type | None] = [tensor(1, channels, *spatial), tensor(made, channels // group, *kernel)]
        return scalar("onnx.Conv", operands, tensor(1, made, *spatial), weights=(1,), group=group)

    assert conv(64, 64, 1, 3, 3) == conv(3, 64, 1, 7, 7) == conv(64, 64, 64, 3, 3) == conv(64, 64, 4, 3, 3) == 0
    assert conv(64, 64, 1, 1) == 0, "nothing to unfold"
    assert conv(8, 8, 1, 3, 3) == round(0.8 * 32 * 32 * 8 * 9)
    assert conv(128, 128, 32, 3, 3) == round(0.8 * 32 * 32 * 128 * 9)
    assert conv(64, 64, 1, 5) == round(0.8 * 32 * 64 * 5)


POWERS = """
module @m {opset.onnx = 20} {
  resource @two : tensor<f32> = splat(2.0)
  resource @half : tensor<f32> = splat(0.5)
  func @main(%x : tensor<100xf32>) -> (%y : tensor<100xf32>, %z : tensor<100xf32>) {
    %y = onnx.Pow(%x, @two) : tensor<100xf32>
    %z = onnx.Pow(%x, @half) : tensor<100xf32>
  }
}
"""


def test_a_square_is_a_product_and_another_power_a_function_of_the_library() -> None:
    square, root = (op.facet(Cost, Cost()) for op in CostPass().run(parse_module(POWERS), PassContext()).entry.ops)
    assert square.flops == 100 < root.flops
    assert square.scalar < root.scalar


def test_few_columns_take_as_long_as_a_block_of_them() -> None:
    def product(rows: int, columns: int) -> int:
        return scalar("onnx.MatMul", [tensor(rows, 64), tensor(64, columns)], tensor(rows, columns), weights=(1,))

    assert product(32, 16) == product(1, 1) == 0
    assert product(32, 1) > product(32, 8) > 0
