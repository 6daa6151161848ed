"""Random inputs that a model accepts: what a rule finds out about each input from its uses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from dnnc.build.build import Build, Source, ValueInfo
from dnnc.build.snapshot import Snapshot
from dnnc.data.generate import Demand, input_demands, random_inputs
from dnnc.onnx import import_model
from ir.core.diagnostics import DiagnosticSink, InvalidInput
from ir.core.module import Module, Plan, Schedule

HEADER = '<ir_version: 10, opset_import: ["" : 20]>\n'


def module_of(folder: Path, text: str, header: str = HEADER) -> Module:
    path = folder / "m.onnx"
    onnx.save(onnx.parser.parse_model(header + text), str(path))
    return import_model(path, dims={}, sink=DiagnosticSink()).module


def build_of(module: Module) -> Build:
    """Only what generation reads of a build: its inputs."""
    inputs = tuple(ValueInfo.of(value.name[1:], value.type) for value in module.entry.args)
    plan = Plan("@plan", "throughput", "sum", 1.0, 1.0, 1.0, "optimal", 1.0, ())
    return Build(Snapshot(Path(), {}, {}, {}), plan, (), inputs, (), "shared", Source("", ""), Schedule("@s", "stream", ()))


@pytest.mark.parametrize(
    ("name", "text", "limit"),
    [
        ("gather", "g (int64[4] i) => (float[4,2] y) <float[5,2] t> { y = Gather(t, i) }", 5),
        ("axis", "g (int64[4] i) => (float[5,4] y) <float[5,2] t> { y = Gather <axis = -1> (t, i) }", 2),
        ("elements", "g (int64[5,1] i) => (float[5,1] y) <float[5,3] t> { y = GatherElements <axis = 1> (t, i) }", 3),
        ("nd", "g (int64[4,2] i) => (float[4] y) <float[5,3] t> { y = GatherND(t, i) }", 3),
        (
            "moved",
            "g (int64[2,2] i) => (float[4,2] y) <float[6,2] t, int64[1] s = {-1}>"
            " { r = Reshape(i, s)  c = Cast <to = 6> (r)  y = Gather(t, c) }",
            6,
        ),
        ("offset", "g (int64[4] i) => (float[4,2] y) <float[7,2] t, int64 two = {2}> { j = Add(i, two)  y = Gather(t, j) }", 5),
        (
            "smallest of two",
            "g (int64[4] i) => (float[4,2] y) <float[7,2] t, float[3,2] u>"
            " { a = Gather(t, i)  b = Gather(u, i)  y = Add(a, b) }",
            3,
        ),
        (
            "in a branch",
            "g (bool c, int64[4] i) => (float[4,2] y) <float[9,2] t> { y = If (c) <"
            "then_branch = a () => (float[4,2] p) { p = Gather(t, i) },"
            "else_branch = b () => (float[4,2] q) { z = Gather(t, i)  q = Neg(z) }> }",
            9,
        ),
    ],
)
def test_indices_stay_inside_their_table(tmp_path: Path, name: str, text: str, limit: int) -> None:
    tables = {"t": 0, "u": 0}
    for table in tables:
        shape = text.partition(f"] {table}")[0].rpartition("float[")[2]
        count = int(np.prod([int(d) for d in shape.split(",")])) if f"] {table}" in text else 0
        text = text.replace(f"] {table}", f"] {table} = {{{', '.join(['1.0'] * count)}}}", 1)
    module = module_of(tmp_path, text)
    assert input_demands(module)["i"].limit == limit
    drawn = np.concatenate([random_inputs(build_of(module), seed=s, module=module)["i"].reshape(-1) for s in range(40)])
    assert drawn.min() == 0
    assert drawn.max() == limit - 1


def test_masks_keep_something(tmp_path: Path) -> None:
    text = (
        "g (int64[3,8] attention_mask, bool[3,8] keep, float[3,8] x) => (float[3,8] y) <float zero = {0.0}>"
        " { f = Cast <to = 1> (attention_mask)  k = Where(keep, x, zero)  y = Mul(f, k) }"
    )
    module = module_of(tmp_path, text)
    assert input_demands(module)["attention_mask"] == Demand(mask=True)
    for seed in range(20):
        found = random_inputs(build_of(module), seed=seed, module=module)
        assert set(np.unique(found["attention_mask"])) <= {0, 1}
        assert found["attention_mask"].any(axis=-1).all()
        assert found["keep"].any(axis=-1).all()
    assert not found["attention_mask"].all()


def test_other_inputs(tmp_path: Path) -> None:
    text = (
        "g (float[100] x, uint8[400] u, int8[400] s, int64[50] n, string[2] w, int64[1] size, float[n, 2] free) =>"
        " (float[m] a, uint8[400] b, int8[400] c, int64[50] d, string[2] e, float[n, 2] f)"
        " { a = Expand(x, size)  b = Identity(u)  c = Identity(s)  d = Abs(n)  e = Identity(w)  f = Neg(free) }"
    )
    module = module_of(tmp_path, text)
    found = random_inputs(build_of(module), module=module)
    assert found["x"].dtype == np.float32
    assert abs(found["x"].mean()) < 0.5
    assert (found["u"].min(), found["u"].max()) > (-1, 200)
    assert found["s"].min() < -100
    assert 0 <= found["n"].min() <= found["n"].max() < 10
    assert found["size"].tolist() == [1]
    assert all(isinstance(word, str) for word in found["w"])
    assert found["free"].shape == (2, 2)
    again = random_inputs(build_of(module), module=module)
    assert all((found[name] == again[name]).all() for name in found)
    other = random_inputs(build_of(module), seed=1, module=module)
    assert (found["x"] != other["x"]).any()


def test_a_sequence_is_asked_for(tmp_path: Path) -> None:
    module = module_of(tmp_path, "g (seq(float[2]) s) => (float[4] y) { y = ConcatFromSequence <axis = 0> (s) }")
    with pytest.raises(InvalidInput, match=r"no random value can be made for input 's' of type seq"):
        random_inputs(build_of(module), module=module)


def test_positions_of_grouped_queries_are_those_that_exist(tmp_path: Path) -> None:
    """A cache of 8 places after 3 more: the last is number 7, and a mask of places keeps all."""
    text = """g (float[1,3,32] q, float[1,3,16] k, float[1,3,16] v, float[1,1,5,16] a, float[1,1,5,16] b, int64[1,8] places)
      => (float[1,3,32] y, float[1,1,8,16] c, float[1,1,8,16] d) <int64[1] one = {1}, int32 total = {8}> {
      counted = ReduceSum(places, one)
      before = Sub(counted, one)
      last = Cast <to = 6> (before)
      y, c, d = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1> (q, k, v, a, b, last, total) }"""
    header = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>\n'
    assert input_demands(module_of(tmp_path, text, header))["places"].one
    direct = text.replace("int64[1,8] places", "int32[1] last").replace("counted = ReduceSum(places, one)", "")
    direct = direct.replace("before = Sub(counted, one)", "").replace("last = Cast <to = 6> (before)", "")
    module = module_of(tmp_path, direct, header)
    assert input_demands(module)["last"] == Demand(exact=7)
    assert random_inputs(build_of(module), module=module)["last"].tolist() == [7]


def test_positions_lie_in_the_cache(tmp_path: Path) -> None:
    """New rows fit behind a position; all of a cache is attended to."""
    text = """agraph (float[2,4,9,8] cache, float[2,4,2,8] new, float[2,4,2,8] q, int64[2] at, int64[2] round, int64[2] lengths)
    => (float[2,4,9,8] next, float[2,4,9,8] turned, float[2,4,2,8] y) {
      next = TensorScatter <axis = 2> (cache, new, at)
      turned = TensorScatter <axis = -2, mode = "circular"> (cache, new, round)
      y = Attention (q, next, turned, , , , lengths) }"""
    header = '<ir_version: 10, opset_import: ["" : 24]>\n'
    demands = input_demands(module_of(tmp_path, text, header))
    assert (demands["at"].limit, demands["round"].limit, demands["lengths"].exact) == (8, 9, 9)
