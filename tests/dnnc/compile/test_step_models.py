"""Small decoders that compute masks, windows and biases from the lengths of tensors, as exporters of PyTorch write them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.onnx.elements import Array
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from passes.prepare.canonicalize import CanonicalizePass
from tests.dnnc.compile.test_decoding import opened
from tests.dnnc.onnx.microsoft_models import decoder

WORDS, WIDTH, CONTEXT, BATCH = 11, 4, 8, 2
MODEL = """
<ir_version: 10, opset_import: ["" : {opset}]>
decoder ({ids}[batch, step] input_ids, float[{past}] past_key)
    => (float[{logits}] logits, float[{present}] present_key)
<
    int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}, int64 three = {{3}}, int64 four = {{4}},
    int64[1] first_axis = {{0}}, int64[1] head = {{1}}, int64[1] last = {{3}}, int64[1] end = {{9999}}
>
{{
    sizes = Shape (past_key)
    begin = Gather (sizes, {place})
    word = Gather (table, input_ids)
    {token}
    query = Unsqueeze (token, head)
    {cache}
    grown = Shape (present_key)
    length = Gather (grown, {place})
    keys = Range (zero, length, one)
    queries = Range (begin, length, one)
    rows = Unsqueeze (queries, head)
    causal = LessOrEqual (keys, rows)
    {window}
    {bias}
    {attention}
    hidden = Squeeze (mixed, head)
    out = Transpose <perm = [1, 0]> (table)
    all = MatMul (hidden, out)
    {ending}
}}
"""
CUT = """back = Neg (length)
    start = Unsqueeze (back, first_axis)
    bias = Slice (biases, start, end, last)"""
LOOKED_UP = """final = Sub (length, one)
    away = Sub (final, keys)
    bias = Gather <axis = 3> (biases, away)"""
WINDOW = """first = Sub (rows, four)
    near = Greater (keys, first)
    mask = And (causal, near)"""
DISTANT = """distance = Sub (rows, keys)
    near = Less (distance, four)
    mask = And (causal, near)"""
ROW = """minus = Neg (one)
    logits = Gather <axis = 1> (all, minus)"""
LAST = """minus = Neg (head)
    logits = Slice (all, minus, end, head)"""
ATTENTION = """turned = Transpose <perm = [0, 1, 3, 2]> (present_key)
    product = MatMul (query, turned)
    scored = Add (product, bias)
    masked = Where (mask, scored, lowest)
    weights = Softmax <axis = -1> (masked)
    mixed = MatMul (weights, present_key)"""
ONE_OPERATOR = """added = Where (mask, bias, lowest)
    mixed = Attention <scale = 1.0> (query, present_key, present_key, added)"""
UNBIASED = ATTENTION.replace("Add (product, bias)", "Identity (product)")
OF_BOTH = UNBIASED.replace("(present_key)", "(own_keys)").replace("(weights, present_key)", "(weights, own_values)")
NUMBERS = """tokens = Shape (input_ids)
    count = Gather (tokens, one)
    after = Add (begin, count)
    numbers = Range (begin, after, one)"""
LEARNED = f"""{NUMBERS}
    place = Gather (places, numbers)
    token = Add (word, place)"""
TURNED = f"""{NUMBERS}
    row = Unsqueeze (numbers, first_axis)
    place = Gather (places, row)
    angle = Cos (place)
    apart = Unsqueeze (angle, head)
    columns = Transpose <perm = [0, 1, 3, 2]> (apart)
    left, right = Split <axis = 2, num_outputs = 2> (columns)
    joined = Concat <axis = 2> (right, left)
    factors = Transpose <perm = [0, 1, 3, 2]> (joined)
    wide = Unsqueeze (word, head)
    moved = Mul (wide, factors)
    token = Squeeze (moved, head)"""
BOTH = """minus = Neg (query)
    keyed = Unsqueeze (query, head)
    valued = Unsqueeze (minus, head)
    new = Concat <axis = 1> (keyed, valued)
    present_key = Concat <axis = 3> (past_key, new)
    own_keys = Gather <axis = 1> (present_key, zero)
    own_values = Gather <axis = 1> (present_key, one)"""
COPIED = """given = Identity (past_key)
    alone = Concat <axis = 2> (given)
    joined = Concat <axis = 2> (alone, query)
    present_key = Cast <to = 1> (joined)"""
FROM_TWO = f"""{NUMBERS}
    shifted = Add (numbers, two)
    place = Gather (places, shifted)
    token = Add (word, place)"""
SLICED = f"""{NUMBERS}
    begins = Unsqueeze (begin, first_axis)
    ends = Unsqueeze (after, first_axis)
    place = Slice (places, begins, ends, first_axis)
    token = Add (word, place)"""
ONE = """place = Gather (places, begin)
    token = Add (word, place)"""
PLAIN = {
    **{"ids": "int64", "logits": "batch, step, 11", "window": "mask = Identity (causal)", "ending": "logits = Identity (all)"},
    **{"past": "batch, 1, past, 4", "present": "batch, 1, total, 4", "place": "two"},
    "cache": "present_key = Concat <axis = 2> (past_key, query)",
    **{"opset": "18", "attention": ATTENTION, "token": "token = Identity (word)", "bias": CUT},
}


def write(path: Path, **parts: str) -> None:
    """One head of attention, over its own keys, whose bias is looked up by the distance, in no simple order. The table of
    biases lies in the file as weights do."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(MODEL.format(**{**PLAIN, **parts}))
    weights = {"table": rng.standard_normal((WORDS, WIDTH)), "biases": 2 * rng.standard_normal((1, 1, 1, 300)), "lowest": -1e9}
    weights["places"] = rng.standard_normal((600, WIDTH))
    model.graph.initializer.extend(
        numpy_helper.from_array(np.array(array, np.float32), name) for name, array in weights.items()
    )
    onnx.save(model, path)


@pytest.mark.parametrize(
    "parts",
    [
        {"token": LEARNED},
        {"token": LEARNED, "bias": LOOKED_UP},
        pytest.param({"opset": "23", "attention": ONE_OPERATOR}, marks=pytest.mark.slow),
        pytest.param({"logits": "batch, 11", "ending": ROW}, marks=pytest.mark.slow),
        pytest.param({"logits": "batch, 1, 11", "ending": LAST}, marks=pytest.mark.slow),
    ],
    ids=["learned", "looked up", "operator", "row", "last"],
)
def test_steps_compute_the_file(parts: dict[str, str], tmp_path: Path) -> None:
    """Token by token, of two sequences at once: in chunks these biases would be by the distance to the last token of a chunk,
    and two of the files give its logits alone."""
    write(tmp_path / "m.onnx", **parts)
    options = CompileOptions(
        str(tmp_path / "m.onnx"), "preset:cpu-1", tmp_path / "b", report=False, context=CONTEXT, batch=BATCH
    )
    sink = DiagnosticSink()
    compile_model(options, sink=sink)
    assert [one.code for one in sink.diagnostics] == ["W1046"]
    told = sink.diagnostics[0].message
    assert "logits" in parts or "its biases do not follow from the distance" in told
    assert not (tmp_path / "b" / "stages" / "stage0.prompt.onnx").exists()
    assert_computed(tmp_path, [1] * CONTEXT)


@pytest.mark.parametrize(
    "parts",
    [
        {"token": LEARNED, "window": WINDOW, "attention": UNBIASED},
        pytest.param({"token": TURNED, "attention": UNBIASED}, marks=pytest.mark.slow),
        pytest.param({"attention": UNBIASED}, marks=pytest.mark.slow),
        pytest.param(
            {"attention": UNBIASED.replace("Where (mask, scored, lowest)", "Identity (scored)")}, marks=pytest.mark.slow
        ),
        {
            **{"past": "batch, 2, 1, past, 4", "present": "batch, 2, 1, total, 4", "place": "three"},
            **{"cache": BOTH, "attention": OF_BOTH},
        },
        {"cache": COPIED, "attention": UNBIASED},
    ],
    ids=[
        "positions beside a window",
        "positions for each sequence",
        "a causal mask alone",
        "no mask and no positions",
        "both",
        "a cache that ops hand on",
    ],
)
def test_steps_and_chunks_compute_the_file(parts: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path / "m.onnx", ids="int32", **parts)
    options = CompileOptions(
        str(tmp_path / "m.onnx"), "preset:cpu-1", tmp_path / "b", report=False, context=CONTEXT, batch=BATCH, chunk=3
    )
    sink = DiagnosticSink()
    compile_model(options, sink=sink)
    assert not sink.diagnostics
    assert_computed(tmp_path, [3, 3, 1, 1])


def test_a_cache_that_an_attention_writes_may_be_copied_behind_it(tmp_path: Path) -> None:
    model = decoder(layers=1)
    (attention,) = (node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    for place in (1, 2):
        result = attention.output[place]
        attention.output[place] = f"{result}.made"
        model.graph.node.append(onnx.helper.make_node("Identity", [f"{result}.made"], [result]))
    onnx.save(model, tmp_path / "m.onnx")
    options = CompileOptions(
        str(tmp_path / "m.onnx"), "preset:cpu-1", tmp_path / "b", report=False, context=16, batch=2, plan_only=True
    )
    sink = DiagnosticSink()
    module = compile_model(options, sink=sink).module
    assert not sink.diagnostics
    assert [state.axis for state in module.states.values()] == [2, 2]


def test_a_file_of_one_token_a_step_has_no_prompt_program(tmp_path: Path) -> None:
    write(tmp_path / "m.onnx", token=LEARNED, window=WINDOW, attention=UNBIASED)
    model = onnx.load(tmp_path / "m.onnx")
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[1].dim_value = 1
    onnx.save(model, tmp_path / "one.onnx")
    for chunk in (None, 3):
        options = CompileOptions(
            str(tmp_path / "one.onnx"), "preset:cpu-1", tmp_path / "b", report=False, context=CONTEXT, batch=BATCH, chunk=chunk
        )
        sink = DiagnosticSink()
        compile_model(options, sink=sink)
        assert [one.code for one in sink.diagnostics] == ["W1046"]
        assert "the file fixes the tokens of a step to 1" in sink.diagnostics[0].message
    assert_computed(tmp_path, [1] * CONTEXT)


def test_a_window_of_a_chunk_that_is_too_large_to_be_judged_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of one token is judged; that of 512 would be by the distance to the end of a full cache."""
    monkeypatch.setattr("dnnc.compile.decoding.steps.FOLDING", CanonicalizePass(fold_bytes=1 << 20))
    write(tmp_path / "m.onnx", token=LEARNED, window=DISTANT, attention=UNBIASED)
    options = CompileOptions(
        str(tmp_path / "m.onnx"), "preset:cpu-1", tmp_path / "b", report=False, context=600, chunk=512, plan_only=True
    )
    sink = DiagnosticSink()
    compile_model(options, sink=sink)
    assert [one.code for one in sink.diagnostics] == ["W1046"]
    assert "its mask reads %mask (And), which is too large" in sink.diagnostics[0].message


def assert_computed(folder: Path, lengths: Sequence[int]) -> None:
    """A program of each of these lengths in turn computes, of its last token, what the file does."""
    whole, position = opened(folder / "m.onnx"), 0
    shape = [CONTEXT if size == "past" else BATCH if size == "batch" else size for size in whole.get_inputs()[1].shape]
    ids = np.random.default_rng(1).integers(0, WORDS, (BATCH, CONTEXT))
    kept = np.full(shape, 7, np.float32)  # what lies there is never seen
    for length in lengths:
        program = opened(folder / "b" / "stages" / ("stage0.onnx" if length == 1 else "stage0.prompt.onnx"))
        new = ids[:, position : position + length]
        feeds = {"input_ids": new, "position": np.full(BATCH, position), "past_key": kept}
        logits, kept = map(np.asarray, program.run(["logits", "present_key"], feeds))
        position += length
        np.testing.assert_allclose(logits[:, -1], expected(whole, ids[:, :position]), rtol=1e-4, atol=1e-5)


def test_a_static_cache_is_refused(tmp_path: Path) -> None:
    """It is no recurrent state, though its size stays."""
    cache = """slots = Unsqueeze (input_ids, places_axes)
    wide = Shape (query)
    numbers = Expand (slots, wide)
    present_key = ScatterElements <axis = 2> (past_key, numbers, query)"""
    write(tmp_path / "m.onnx", cache=cache, present="batch, 1, past, 4", attention=UNBIASED)
    model = onnx.load(tmp_path / "m.onnx")
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 3]), "places_axes"))
    onnx.save(model, tmp_path / "m.onnx")
    options = CompileOptions(str(tmp_path / "m.onnx"), "preset:cpu-1", tmp_path / "b", report=False, context=CONTEXT)
    with pytest.raises(InvalidInput, match=r"E4106\]: the cache past_key .* \(ScatterElements\) writes it"):
        compile_model(options, sink=DiagnosticSink())


def test_a_context_longer_than_a_table_of_positions_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "m.onnx", token=LEARNED, attention=UNBIASED)
    options = CompileOptions(str(tmp_path / "m.onnx"), "preset:cpu-1", tmp_path / "b", report=False, context=601)
    with pytest.raises(InvalidInput, match="the model knows 600 positions, by @places, fewer than the 601"):
        compile_model(options, sink=DiagnosticSink())


def test_what_an_encoder_gives_may_pass_through(tmp_path: Path) -> None:
    """As a file has it that holds a decoder's first step, too: the output is the input, and no state of a step."""
    write(tmp_path / "m.onnx", attention=UNBIASED, ending="first = Identity (all)")
    model = onnx.load(tmp_path / "m.onnx")
    given, result = "past_key_values.0.encoder.key", "present.0.encoder.key"
    shape = ["batch", 1, 3, WIDTH]
    model.graph.input.append(onnx.helper.make_tensor_value_info(given, onnx.TensorProto.FLOAT, shape))
    model.graph.output.append(onnx.helper.make_tensor_value_info(result, onnx.TensorProto.FLOAT, shape))
    model.graph.initializer.append(numpy_helper.from_array(np.array([2, 3]), "inner"))
    model.graph.node.extend(
        [
            onnx.helper.make_node("Identity", [given], [result]),
            onnx.helper.make_node("ReduceSum", [given, "inner"], ["sums"], keepdims=0),
            onnx.helper.make_node("Unsqueeze", ["sums", "head"], ["scale"]),
            onnx.helper.make_node("Mul", ["first", "scale"], ["logits"]),
        ]
    )
    onnx.save(model, tmp_path / "m.onnx")
    compile_model(CompileOptions(str(tmp_path / "m.onnx"), "preset:cpu-1", tmp_path / "b", report=False, context=CONTEXT))
    step, whole, rng = opened(tmp_path / "b" / "stages" / "stage0.onnx"), opened(tmp_path / "m.onnx"), np.random.default_rng(0)
    assert [output.name for output in step.get_outputs()] == ["logits", "present_key"]
    feeds = {"input_ids": np.array([[3]]), given: rng.standard_normal((1, 1, 3, WIDTH)).astype(np.float32)}
    kept = np.zeros((1, 1, CONTEXT, WIDTH), np.float32)
    (wanted,) = whole.run(["logits"], {**feeds, "past_key": kept[:, :, :0]})
    (logits,) = step.run(["logits"], {**feeds, "past_key": kept, "position": np.array([0])})
    np.testing.assert_allclose(np.asarray(logits), np.asarray(wanted), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "token",
    [*(pytest.param(token, marks=pytest.mark.slow) for token in (FROM_TWO, SLICED)), ONE],
    ids=["from two", "sliced", "one"],
)
def test_positions_read_otherwise_than_as_their_numbers_are_refused(token: str, tmp_path: Path) -> None:
    write(tmp_path / "m.onnx", token=token, window=WINDOW, attention=UNBIASED)
    options = CompileOptions(str(tmp_path / "m.onnx"), "preset:cpu-1", tmp_path / "b", report=False, context=CONTEXT)
    with pytest.raises(InvalidInput, match="from the length of its past"):
        compile_model(options, sink=DiagnosticSink())


def test_a_row_of_positions_for_each_head_is_not_one_for_each_of_as_many_sequences(tmp_path: Path) -> None:
    """The second of two sequences had read its position by the second head."""
    token = f"""{NUMBERS}
    row = Unsqueeze (numbers, first_axis)
    place = Gather (places, row)
    each = Mul (place, slopes)
    heads = Unsqueeze (each, first_axis)
    wide = Unsqueeze (word, head)
    moved = Mul (wide, heads)
    token = ReduceSum <keepdims = 0> (moved, head)"""
    write(tmp_path / "m.onnx", token=token, attention=UNBIASED)
    model = onnx.load(tmp_path / "m.onnx")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((BATCH, 1, WIDTH), np.float32), "slopes"))
    onnx.save(model, tmp_path / "m.onnx")
    options = CompileOptions(str(tmp_path / "m.onnx"), "preset:cpu-1", tmp_path / "b", context=CONTEXT, batch=BATCH)
    with pytest.raises(InvalidInput, match="E4106"):
        compile_model(options, sink=DiagnosticSink())


@pytest.mark.parametrize(
    ("most", "token", "reads"),
    [
        pytest.param(299, LEARNED, r"reads %bias \(Slice\), which is too large to be judged", marks=pytest.mark.slow),
        (300, SLICED, "the model computes %place from the length"),
    ],
    ids=["biases", "positions"],
)
def test_a_part_of_a_table_that_is_too_large_to_be_judged_is_refused(
    most: int, token: str, reads: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dnnc.compile.decoding.loading.MOST", most)
    write(tmp_path / "m.onnx", token=token)
    options = CompileOptions(str(tmp_path / "m.onnx"), "preset:cpu-1", tmp_path / "b", report=False, context=CONTEXT)
    with pytest.raises(InvalidInput, match=reads):
        compile_model(options, sink=DiagnosticSink())


def expected(whole: onnxruntime.InferenceSession, ids: Array) -> Array:
    """The logits behind these tokens, by the file without a past."""
    kind = {"tensor(int32)": np.int32, "tensor(int64)": np.int64}[whole.get_inputs()[0].type]
    shape = [0 if size == "past" else BATCH if size == "batch" else size for size in whole.get_inputs()[1].shape]
    feeds = {"input_ids": ids.astype(kind), "past_key": np.zeros(shape, np.float32)}
    logits = np.asarray(whole.run(["logits"], feeds)[0])
    return logits[:, -1] if logits.ndim == 3 else logits
