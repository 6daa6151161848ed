"""Builds that keep states: both programs of a decoder over its stages compute what the whole model computes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import dnnc
from dnnc.build.build import Build
from dnnc.check.proof import prove, prove_build
from dnnc.check.proof.verdict import NO_PROMPT
from dnnc.check.tokens import check_tokens
from dnnc.check.witness import verify_build
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.engines.onnxruntime.starter.starting import RunOptions
from ir.core.diagnostics import DiagnosticSink, Infeasible, InvalidInput, UsageError
from tests.passes.prepare.states.test_decoding import BATCH, CONTEXT, MODELS, whole


def compiled(
    model: str, out: Path, topology: str | Path = "preset:cpu-2", **options: Any
) -> tuple[dict[str, Any], DiagnosticSink]:
    sink = DiagnosticSink()
    compile_model(CompileOptions(model, str(topology), out, report=False, **options), sink=sink)
    return json.loads((out / "plan.json").read_text()), sink


def opened(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def assert_computes(build: Path, decoding: dict[str, Any], ids: Any, expected: Any, tolerance: float = 2e-4) -> None:
    """Runs the stages of a build, in chunks of 4 and in steps, as the runtime does; ``expected``: the logits of all ``ids``."""
    kept = {state["name"]: np.zeros(state["shape"], np.float32) for state in decoding["states"]}
    becomes = {state["result"]: state["name"] for state in decoding["states"]}
    position = 0
    for length, suffix in [(4, ".prompt"), (1, ""), (4, ".prompt"), (1, ""), (1, "")]:
        values = {"input_ids": ids[:, position : position + length], "position": np.full(len(ids), position)}
        for stage in range(1 + max(s["stage"] for s in decoding["states"])):
            session = opened(build / "stages" / f"stage{stage}{suffix}.onnx")
            feeds = {given.name: {**kept, **values}[given.name] for given in session.get_inputs()}
            names = [output.name for output in session.get_outputs()]
            values |= dict(zip(names, session.run(names, feeds), strict=True))
        kept |= {name: values[result] for result, name in becomes.items()}
        np.testing.assert_allclose(
            values["logits"], expected[:, position : position + length], rtol=tolerance, atol=tolerance / 10
        )
        position += length


@pytest.mark.parametrize("cache", [pytest.param("concat", marks=pytest.mark.slow), "inplace"])
def test_the_stages_of_both_programs_compute_the_whole_model(cache: str, tmp_path: Path) -> None:
    ids, expected = whole("llama-7b")
    spec = f"zoo:llama-7b,cache={cache},{MODELS['llama-7b']}"
    plan, _ = compiled(spec, tmp_path / "b", context=CONTEXT, batch=BATCH, groups=2, chunk=4, stages=2)
    decoding = plan["decoding"]
    assert {key: decoding[key] for key in ("batch", "context", "groups", "chunk", "vocabulary")} == {
        "batch": BATCH, "context": CONTEXT, "groups": 2, "chunk": 4, "vocabulary": 50
    }  # fmt: skip
    assert len(plan["cuts"]) == 1, "the hidden state alone crosses"
    assert {state["stage"] for state in decoding["states"]} == {0, 1}
    state_bytes = sum(4 * int(np.prod(state["shape"])) for state in decoding["states"])
    assert sum(stage["memory"]["weights"] for stage in plan["stages"]) > 2 * state_bytes
    assert_computes(tmp_path / "b", decoding, ids, expected)
    report = prove(tmp_path / "b")
    assert report.error() is None
    assert [(stage.index, stage.prompt) for stage in report.stages] == [(0, False), (1, False), (0, True), (1, True)]
    build = Build.open(tmp_path / "b")
    wrong = {**build.files.contents, "stages/stage1.prompt.onnx": build.files.read("stages/stage1.onnx")}
    error = prove_build(replace(build, files=replace(build.files, contents=wrong))).error()
    assert error is not None
    assert "stage 1 on cpu1, its prompt program" in str(error)
    old = {name: data for name, data in build.files.contents.items() if name != "prompt.ir"}
    report = prove_build(replace(build, files=replace(build.files, contents=old)))
    assert report.error() is None
    assert NO_PROMPT in report.trusted


def recurrent(path: Path, *, shape: tuple[int, ...] = (4, 8)) -> None:
    """``y, hN = f(x, h0)``."""
    x, h, y, n = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in (("x", (4, 8)), ("h0", shape), ("y", (4, 8)), ("hN", (4, 8)))
    )
    nodes = [helper.make_node("ReduceSum", ["h0"], ["s"]), helper.make_node("Add", ["x", "s"], ["hN"])]
    nodes += [helper.make_node("Relu", ["hN"], ["y"])]
    model = helper.make_model(
        helper.make_graph(nodes, "m", [x, h], [y, n]), opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    )
    onnx.save(model, str(path))


def test_a_recurrent_state_is_named(tmp_path: Path) -> None:
    recurrent(tmp_path / "m.onnx")
    plan, _ = compiled(str(tmp_path / "m.onnx"), tmp_path / "b", states=("h0=hN",))
    decoding = plan["decoding"]
    assert decoding["states"] == [{"name": "h0", "result": "hN", "stage": 0, "dtype": "f32", "shape": [4, 8], "axis": None}]
    assert (decoding["ids"], decoding["chunk"]) == ("", 1)
    plan, _ = compiled(str(tmp_path / "m.onnx"), tmp_path / "c")
    assert "decoding" not in plan, "without the option it is an input and an output"


def test_wrong_pairs_and_options_are_refused(tmp_path: Path) -> None:
    recurrent(tmp_path / "m.onnx", shape=(2, 3))
    with pytest.raises(InvalidInput, match=r"h0 is tensor<2x3xf32> and hN is tensor<4x8xf32>"):
        compiled(str(tmp_path / "m.onnx"), tmp_path / "b", states=("h0=hN",))
    with pytest.raises(InvalidInput, match="no input of the model is a cache"):
        compiled(str(tmp_path / "m.onnx"), tmp_path / "b", context=8)
    with pytest.raises(UsageError, match="--batch"):
        compiled(str(tmp_path / "m.onnx"), tmp_path / "b", batch=8)
    with pytest.raises(UsageError, match="--inputs"):
        compiled(str(tmp_path / "m.onnx"), tmp_path / "b", states=("h0=hN",), inputs=tmp_path / "x.npz")
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
def test_a_decoder_of_pytorch_is_written_in_place(tmp_path: Path) -> None:
    """As its exporter writes it, sizes open: past + length in masks, one operator Attention."""
    torch = pytest.importorskip("torch")
    from tests.dnnc.engines.byte_model import ByteModel, export

    torch.manual_seed(0)
    model = ByteModel(layers=2, width=32, heads=4, context=16)
    export(model, tmp_path / "m.onnx", 23)
    plan, sink = compiled(str(tmp_path / "m.onnx"), tmp_path / "b", context=12, batch=2, chunk=4, stages=2)
    assert not sink.diagnostics
    assert plan["decoding"]["chunk"] == 4
    ids = np.random.default_rng(0).integers(0, 256, (2, 12))
    whole_model = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    feeds = {"input_ids": ids, "attention_mask": np.ones((2, 12), np.int64), "position_ids": np.tile(np.arange(12), (2, 1))}
    feeds |= {one.name: np.zeros((2, 4, 0, 8), np.float32) for one in whole_model.get_inputs() if one.name not in feeds}
    assert_computes(tmp_path / "b", plan["decoding"], ids, whole_model.run(["logits"], feeds)[0])


def test_a_number_of_the_length_of_the_past_is_refused(tmp_path: Path) -> None:
    """Scores are scaled by the length of the past: what is in place has none."""
    text = """<ir_version: 9, opset_import: ["": 18]>
    m (int64[batch, seq] input_ids, int64[batch, seq] position_ids, float[batch, 1, past, 2] "past_key_values.0.key")
      => (float[batch, 1, seq, total] logits, float[batch, 1, total, 2] "present.0.key")
    {
      ids = Cast <to = 1> (input_ids)
      places = Cast <to = 1> (position_ids)
      axes = Constant <value_ints = [1, 3]> ()
      rows = Unsqueeze (ids, axes)
      turned = Unsqueeze (places, axes)
      new = Concat <axis = 3> (rows, turned)
      "present.0.key" = Concat <axis = 2> ("past_key_values.0.key", new)
      shape = Shape <start = 2, end = 3> ("past_key_values.0.key")
      length = Cast <to = 1> (shape)
      columns = Transpose <perm = [0, 1, 3, 2]> ("present.0.key")
      scores = MatMul (new, columns)
      scaled = Div (scores, length)
      logits = Softmax <axis = -1> (scaled)
    }"""
    onnx.save(onnx.parser.parse_model(text), str(tmp_path / "m.onnx"))
    with pytest.raises(InvalidInput, match=r"the model computes @.* from the length of its past"):
        compiled(str(tmp_path / "m.onnx"), tmp_path / "b", context=8)
    onnx.save(onnx.parser.parse_model(text.replace("Div (scores, length)", "Identity (scores)")), str(tmp_path / "n.onnx"))
    assert compiled(str(tmp_path / "n.onnx"), tmp_path / "b", context=8, batch=2)[0]["decoding"]["batch"] == 2


SUMMING = """<ir_version: 9, opset_import: ["": 18]>
m (int64[batch, seq] input_ids, int64[batch, seq] position_ids, float[batch, 1, past, 4] "past_key_values.0.key",
   float[batch, 4] h0MASK)
  => (float[batch, seq, 16] logits, float[batch, 1, total, 4] "present.0.key", float[batch, 4] hN)
{
  new = Gather (words, input_ids)
  place = Gather (places, position_ids)
  x = Add (new, place)
  one = Constant <value_ints = [1]> ()
  keys = Unsqueeze (x, one)
  "present.0.key" = Concat <axis = 2> ("past_key_values.0.key", keys)
  columns = Transpose <perm = [0, 1, 3, 2]> ("present.0.key")
  scores = MatMul (keys, columns)
  SEEN
  weights = Softmax <axis = -1> (seen)
  mixed = MatMul (weights, "present.0.key")
  flat = Squeeze (mixed, one)
  passed = ReduceSum <keepdims = 0> (new, one)
  hN = Add (h0, passed)
  state = Unsqueeze (hN, one)
  both = Add (flat, state)
  logits = MatMul (both, head)
}"""
"""A decoder of one layer whose logits depend on the sum of all tokens so far, a recurrent state, too."""


def summing(path: Path, mask: str = "", head: str = "logits = MatMul (both, head)") -> None:
    """``mask``: an input of masks of keys; ``head``: what computes the logits."""
    seen = "seen = Identity (scores)"
    if mask:
        axes = "axes = Constant <value_ints = [1, 2]> () low = Constant <value_float = -10000.0> ()"
        seen = f"{axes} hidden = Cast <to = 9> ({mask}) wide = Unsqueeze (hidden, axes) seen = Where (wide, low, scores)"
    given = f", bool[batch, total] {mask}" if mask else ""
    model = onnx.parser.parse_model(
        SUMMING.replace("SEEN", seen).replace("MASK", given).replace("logits = MatMul (both, head)", head)
    )
    random = np.random.default_rng(0)
    for name, rows, columns in (("words", 16, 4), ("places", 32, 4), ("head", 4, 16)):
        array = random.standard_normal((rows, columns)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, str(path))


def test_activations_that_are_rounded_together(tmp_path: Path) -> None:
    """Their scale is that of the largest value of the batch, and of a chunk with what stands behind a prompt there."""
    head = "low, by, z = DynamicQuantizeLinear (both) rounded = DequantizeLinear (low, by, z) logits = MatMul (rounded, head)"
    summing(tmp_path / "m.onnx", head=head)
    for batch, codes in ((1, ["W1046"]), (2, ["W1065", "W1046"])):
        plan, sink = compiled(str(tmp_path / "m.onnx"), tmp_path / f"b{batch}", context=16, batch=batch, states=("h0=hN",))
        assert [diagnostic.code for diagnostic in sink.diagnostics] == codes
        assert "by their largest value" in sink.diagnostics[-1].message
        assert plan["decoding"]["chunk"] == 1


def test_a_recurrent_state_beside_a_cache_takes_one_token_at_a_time(tmp_path: Path) -> None:
    """Tokens beside a chunk, or fed again, would change such a state; a cache forgets them."""
    summing(tmp_path / "m.onnx")
    sizes = {"context": 16, "batch": 2, "groups": 2}
    plan, sink = compiled(str(tmp_path / "m.onnx"), tmp_path / "b", **sizes, states=("h0=hN",))
    assert [diagnostic.code for diagnostic in sink.diagnostics] == ["W1046"]
    assert plan["decoding"]["chunk"] == 1
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    prompts = [[1], [5, 2, 9, 4, 4, 11], list(range(12)), [7, 7, 7]]
    with dnnc.load(tmp_path / "b").start() as running:
        answers = [running.generate(prompt, max_tokens=6) for prompt in (*prompts, *prompts)]
        found = [list(answer) for answer in answers]
    for prompt, answer in zip((*prompts, *prompts), found, strict=True):
        past, state, tokens = np.zeros((1, 1, 0, 4), np.float32), np.zeros((1, 4), np.float32), [*prompt, *answer]
        for position, token in enumerate(tokens[:-1]):
            feeds = {"input_ids": [[token]], "position_ids": [[position]], "past_key_values.0.key": past, "h0": state}
            logits, past, state = session.run(None, feeds)
            if position >= len(prompt) - 1:
                assert logits[0, 0].argmax() == tokens[position + 1]


def test_a_state_without_one_dimension_of_the_batch_is_refused(tmp_path: Path) -> None:
    summing(tmp_path / "m.onnx")
    with pytest.raises(InvalidInput, match="the state h0 is 4x4, expected exactly one dimension of the batch, 4"):
        compiled(str(tmp_path / "m.onnx"), tmp_path / "b", context=16, batch=4, states=("h0=hN",))
    compiled(str(tmp_path / "m.onnx"), tmp_path / "b", context=16, states=("h0=hN",))
    with dnnc.load(tmp_path / "b").start() as running:  # a batch of 1: each begins anew
        answers = [list(running.generate([3, 1], max_tokens=4)) for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.slow
def test_inputs_of_unusual_names_have_the_roles_that_are_stated(tmp_path: Path) -> None:
    summing(tmp_path / "m.onnx")
    model = onnx.load(tmp_path / "m.onnx")
    names = {"position_ids": "where", "input_ids": "what"}
    for value in model.graph.input:
        value.name = names.get(value.name, value.name)
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    onnx.save(model, tmp_path / "m.onnx")
    stated = {"states": ("h0=hN",), "context": 16, "stages": 1}
    with pytest.raises(InvalidInput, match="what is neither token ids"):
        compiled(str(tmp_path / "m.onnx"), tmp_path / "b", **stated, roles=("where=ids",))
    compiled(str(tmp_path / "m.onnx"), tmp_path / "b", **stated, roles=("where=positions",))
    report = check_tokens(Build.open(tmp_path / "b"), RunOptions())
    assert report.passed
    assert report.original


def test_a_file_of_two_models_and_a_short_table_are_refused(tmp_path: Path) -> None:
    summing(tmp_path / "m.onnx")
    with pytest.raises(InvalidInput, match="the model knows 32 positions, by @places, fewer than the 33 of its caches"):
        compiled(str(tmp_path / "m.onnx"), tmp_path / "b", context=33, states=("h0=hN",))
    merged = onnx.load(tmp_path / "m.onnx")
    merged.graph.input.append(helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, (1,)))
    onnx.save(merged, tmp_path / "m.onnx")
    with pytest.raises(InvalidInput, match="the input use_cache_branch chooses between two models in this file"):
        compiled(str(tmp_path / "m.onnx"), tmp_path / "b", context=16)


def test_masks_that_hide_are_refused(tmp_path: Path) -> None:
    """A padding mask of PyTorch is true where nothing is seen: the opposite of an attention mask."""
    summing(tmp_path / "m.onnx", "key_padding_mask")
    with pytest.raises(InvalidInput, match="key_padding_mask is neither token ids, nor a cache, a mask of 1 for tokens"):
        compiled(str(tmp_path / "m.onnx"), tmp_path / "b", context=16, states=("h0=hN",))


def test_keys_and_values_are_not_mixed_up(tmp_path: Path) -> None:
    spec = f"zoo:llama-7b,cache=inplace,{MODELS['llama-7b']}"
    crossed = tuple(f"past_key_values.0.{one}=present.0.{other}" for one, other in (("key", "value"), ("value", "key")))
    with pytest.raises(InvalidInput, match=r"makes present.0.value of another input"):
        compiled(spec, tmp_path / "b", context=CONTEXT, batch=BATCH, states=crossed)


def test_a_build_of_states_is_counted_again_and_replayed(tmp_path: Path) -> None:
    """``verify-plan`` counts sets of states, and nothing for what each stage computes from positions."""
    spec, sizes = f"zoo:llama-7b,cache=concat,{MODELS['llama-7b']}", {"context": CONTEXT, "batch": BATCH, "groups": 2}
    plan, _ = compiled(spec, tmp_path / "b", **sizes, chunk=1, stages=2)
    assert not verify_build(tmp_path / "b").violations
    again, _ = compiled(spec, tmp_path / "c", **sizes, chunk=1, plan=tmp_path / "b" / "plan.json")
    assert again["value"] == plan["value"]
    assert again["decoding"] == plan["decoding"]


def machines(path: Path, devices: int, memory: int = 1 << 30) -> Path:
    """Slow devices of one core and so many bytes each, in one host."""
    lines = ["version = 1", "[types.core]", "kind = 'cpu'", f"memory = '{memory} B'", "memory_bandwidth = '100 MB/s'"]
    lines += ["rates = { f32 = '100 MFLOP/s' }", "[[devices]]", f"name = 'cpu{{0..{devices - 1}}}'", "type = 'core'"]
    lines += ["[[links]]", "ends = ['host', 'devices of host']", "bandwidth = '10 GB/s'", "latency = '1 us'"]
    path.write_text("\n".join(lines) + "\n")
    return path


LLAMA = f"zoo:llama-7b,cache=inplace,{MODELS['llama-7b']}"


@pytest.mark.parametrize(("shares", "told"), [("1,1", "1 MiB"), ("2,1", "at most 1.50 MiB")])
def test_caches_of_unlike_parts_are_told_as_the_most(shares: str, told: str, tmp_path: Path) -> None:
    """It said that each member of the mesh had as much as the one with most heads."""
    spec = "zoo:llama-7b,cache=inplace,layers=1,hidden=1024,heads=4,ffn=1024,vocab=128"
    fast = machines(tmp_path / "t.toml", 2).read_text().replace("1 us", "1 ns").replace("10 GB/s", "10 TB/s")
    (tmp_path / "t.toml").write_text(fast)
    sizes: dict[str, Any] = {"context": 64, "batch": 4, "groups": 1, "mesh": "2", "shares": shares, "plan_only": True}
    plan, _ = compiled(spec, tmp_path / "b", tmp_path / "t.toml", **sizes)
    assert f"; caches: {told} on each of cpu0,cpu1" in plan["certificate"]["tokens"]


@pytest.mark.slow
def test_replicas_share_groups_of_a_decoder(tmp_path: Path) -> None:
    """A device has the caches of the groups that it serves alone: half of them fit, and all do not."""
    sizes: dict[str, Any] = {"context": 64, "batch": BATCH, "groups": 4, "chunk": 4, "stages": 1, "mesh": "none"}
    plan, _ = compiled(LLAMA, tmp_path / "b", machines(tmp_path / "t.toml", 2), **sizes)
    states = sum(4 * int(np.prod(state["shape"])) for state in plan["decoding"]["states"])
    (stage,) = plan["stages"]
    assert stage["device"] == ["cpu0", "cpu1"]
    assert f"caches: {2 * states >> 10} KiB on each of cpu0,cpu1" in plan["certificate"]["tokens"]
    needed = sum(stage["memory"].values())
    del sizes["chunk"]  # of 4 tokens none fits where a step just does
    tight, _ = compiled(LLAMA, tmp_path / "c", machines(tmp_path / "t.toml", 2, needed), **sizes)
    assert tight["stages"][0]["device"] == ["cpu0", "cpu1"]
    with pytest.raises(Infeasible):
        compiled(LLAMA, tmp_path / "d", machines(tmp_path / "t.toml", 2, needed - 64), **sizes)
    assert not verify_build(tmp_path / "c").violations
    assert prove(tmp_path / "c").error() is None
    assert dnnc.load(tmp_path / "c").check().passed
    del sizes["stages"], sizes["mesh"]
    again, _ = compiled(LLAMA, tmp_path / "e", machines(tmp_path / "t.toml", 2), plan=tmp_path / "b" / "plan.json", **sizes)
    assert again["value"] == pytest.approx(plan["value"], rel=1e-9)


@pytest.mark.parametrize(("groups", "devices"), [(3, 1), (4, 2)])
def test_numbers_of_replicas_divide_the_groups(groups: int, devices: int, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"context": CONTEXT, "batch": BATCH, "groups": groups, "chunk": 1, "stages": 1, "mesh": "none"}
    plan, _ = compiled(LLAMA, tmp_path / "b", machines(tmp_path / "t.toml", 2), **sizes)
    assert len(np.atleast_1d(plan["stages"][0]["device"])) == devices


def test_a_recurrent_model_has_no_replicas(tmp_path: Path) -> None:
    recurrent(tmp_path / "m.onnx")
    topology = machines(tmp_path / "t.toml", 2)
    plan, _ = compiled(str(tmp_path / "m.onnx"), tmp_path / "b", topology, states=("h0=hN",), stages=1, mesh="none")
    assert plan["stages"][0]["device"] == "cpu0"


def assert_right(build: Path) -> None:
    """The plan is counted again, its programs are proven, and what runs generates what the unsplit model does."""
    assert not verify_build(build).violations
    assert prove(build).error() is None
    assert dnnc.load(build).check().passed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cache", "devices", "options"),
    [("inplace", 2, {"strategy": "megatron"}), ("concat", 4, {"stages": 2})],
    ids=["heads", "stages"],
)
def test_members_of_a_mesh_keep_their_parts_of_caches(
    cache: str, devices: int, options: dict[str, Any], tmp_path: Path
) -> None:
    """Heads of one mesh of two members, and what is best on two stages of two; steps and prompts."""
    spec = LLAMA.replace("cache=inplace", f"cache={cache}")
    sizes: dict[str, Any] = {"context": 32, "batch": 2, "groups": 2, "chunk": 4}
    plan, sink = compiled(spec, tmp_path / "b", f"preset:cpu-{devices}", **sizes, mesh="2", **options)
    assert plan["decoding"]["chunk"] == 4, sink.diagnostics
    states = [line for line in (tmp_path / "b" / "plan.ir").read_text().splitlines() if line.startswith("  state ")]
    assert len(states) == 4
    if "strategy" in options:
        assert all("@mesh[S(1)]" in line for line in states)
    programs = [file.name for file in (tmp_path / "b" / "stages").glob("*.onnx")]
    assert len([name for name in programs if ".prompt." in name]) * 2 == len(programs), "a prompt communicates as a step does"
    assert_right(tmp_path / "b")


@pytest.mark.slow
def test_each_stage_of_meshes_makes_the_mask_of_the_encoder(tmp_path: Path) -> None:
    """And those of long caches, so that the prompt program sends what the step sends."""
    spec = "zoo:t5-base,layers=2,hidden=64,heads=4,ffn=64,vocab=64,seq=6,cache=inplace"
    sizes: dict[str, Any] = {"context": 1000, "batch": 2, "groups": 2, "chunk": 4}
    plan, sink = compiled(spec, tmp_path / "b", "preset:cpu-4", **sizes, mesh="2", stages=2)
    assert plan["decoding"]["chunk"] == 4, sink.diagnostics
    assert not [cut for cut in plan["cuts"] if "mask" in cut["tensor"]]
    assert_right(tmp_path / "b")


@pytest.mark.slow
def test_a_mesh_that_was_chosen_for_one_user_answers_as_the_unsplit_model(tmp_path: Path) -> None:
    topology = machines(tmp_path / "t.toml", 2)
    plan, _ = compiled(LLAMA, tmp_path / "b", topology, context=32, objective="token-latency")
    (stage,) = plan["stages"]
    assert (plan["objective"], plan["decoding"]["batch"], stage["device"]) == ("token-latency", 1, ["cpu0", "cpu1"])
    assert "mesh" in stage
    assert_right(tmp_path / "b")


@pytest.mark.slow
def test_a_recurrent_state_on_a_mesh(tmp_path: Path) -> None:
    """It lies as what it becomes, and is begun anew by each member for its part of a sequence."""
    summing(tmp_path / "m.onnx")
    sizes: dict[str, Any] = {"context": 16, "batch": 2, "groups": 2}
    compiled(str(tmp_path / "m.onnx"), tmp_path / "b", **sizes, states=("h0=hN",), mesh="2")
    assert_right(tmp_path / "b")


@pytest.mark.slow
def test_a_mesh_beside_single_devices(tmp_path: Path) -> None:
    """A plan that was edited: the first stage on one device, the second on a mesh that splits heads."""
    sizes: dict[str, Any] = {"context": 32, "batch": 2, "groups": 2, "chunk": 4}
    compiled(LLAMA, tmp_path / "b", "preset:cpu-4", **sizes, mesh="2", stages=2)
    plan = json.loads((tmp_path / "b" / "plan.json").read_text())
    first = plan["stages"][0]
    del first["mesh"]
    first["device"] = "cpu0"
    first["ops"] = list(first["ops"])
    for key in ("weights", "outputs"):
        first.pop(key, None)
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    again, sink = compiled(LLAMA, tmp_path / "c", "preset:cpu-4", **sizes, plan=tmp_path / "plan.json")
    assert again["decoding"]["chunk"] == 4, sink.diagnostics
    assert ["mesh" in stage for stage in again["stages"]] == [False, True]
    assert_right(tmp_path / "c")


@pytest.mark.slow
def test_a_recurrent_model_on_a_mesh_is_checked(tmp_path: Path) -> None:
    """It generates no tokens: each member gets its part of random states, and what they become is compared."""
    x, h, y, n = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (64, 128)) for name in ("x", "h0", "y", "hN"))
    weight = onnx.numpy_helper.from_array(np.random.default_rng(0).normal(0, 0.05, (128, 128)).astype(np.float32), "w")
    nodes = [helper.make_node("MatMul", ["h0", "w"], ["m"]), helper.make_node("Add", ["x", "m"], ["hN"])]
    nodes += [helper.make_node("Tanh", ["hN"], ["y"])]
    graph = helper.make_graph(nodes, "m", [x, h], [y, n], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(tmp_path / "m.onnx"))
    compiled(str(tmp_path / "m.onnx"), tmp_path / "b", states=("h0=hN",), mesh="2")
    assert "state @h0 : tensor<64x128xf32, @mesh[S(0)]>" in (tmp_path / "b" / "plan.ir").read_text()
    assert {one.tensor for one in dnnc.load(tmp_path / "b").check().report.comparisons} == {"hN", "y"}
    assert_right(tmp_path / "b")
