"""Random models with branches, loops, scans, sequences and optionals whose shapes change on the way.

Among the outputs of each is all that there is to know of its shapes. Some do not run: a caller asks onnxruntime first."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'
CONSTANTS = """ <int64[1] front = {0}, int64[1] last = {-1}, int64[1] flat = {-1}, int64[1] two = {2}, int64 nought = {0},
  int64[2] column = {-1, 1}, float[2] pair = {0.5, -2.0}>"""

Arrays = dict[str, NDArray[Any]]

STEPS = (
    "{y} = Relu({x})",
    "{y} = Neg({x})",
    "{y} = Identity({x})",
    "{y} = Reshape({x}, flat)",
    "{y} = Reshape({x}, column)",
    "{y} = Unsqueeze({x}, front)",
    "{y} = ReduceSum <keepdims = 0> ({x}, last)",
    "{y} = ReduceSum <keepdims = 1> ({x}, front)",
    "{y} = Concat <axis = 0> ({x}, {x})",
    "{y} = Add({x}, {z})",
    "{y} = Slice({x}, front, two)",
    "{y}_s = Shape({x})\n{y} = ConstantOfShape({y}_s)",
    "{y}_n = Size({x})\n{y}_f = Cast <to = 1> ({y}_n)\n{y} = Add({x}, {y}_f)",
    "{y}_s = Shape({x})\n{y} = Expand({z}, {y}_s)",
    "{y}_r = Reshape({x}, flat)\n{y} = Compress <axis = 0> ({y}_r, mask)",
    "{y}_q = SequenceConstruct({x}, {z})\n{y} = SequenceAt({y}_q, at)",
    "{y}_q = SequenceConstruct({x}, {z})\n{y} = ConcatFromSequence <axis = 0> ({y}_q)",
    "{y}_o = Optional({x})\n{y} = OptionalGetElement({y}_o)",
    "{y}_q = SplitToSequence <axis = 0> ({x}, two)\n{y} = SequenceAt({y}_q, nought)",
)


@dataclass
class Writer:
    """Writes a model step by step. ``count``: names so far."""

    dice: random.Random
    count: int = 0
    values: list[str] = field(default_factory=lambda: ["x", "v"])

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def steps(self, scope: list[str], number: int, depth: int) -> tuple[str, list[str]]:
        """Steps that read ``scope``, and the names they make."""
        made: list[str] = []
        lines: list[str] = []
        for _ in range(number):
            known = [*scope, *made, *made]
            x, z, y = self.dice.choice(known), self.dice.choice(known), self.name("t")
            kind = self.dice.random()
            if depth and kind < 0.25:
                lines.append(self.branches([*scope, *made], y, depth - 1))
            elif depth and kind < 0.5:
                lines.append(self.loop([*scope, *made], x, z, y, depth - 1))
            elif depth and kind < 0.55:
                lines.append(
                    f"{y}, {y}_l = Scan <num_scan_inputs = 1, body = g (a{y}, b{y}) => (c{y}, d{y}) "
                    f"{{ c{y} = Neg(a{y})\nd{y} = Add(a{y}, b{y}) }}> (v, {x})"
                )
            else:
                lines.append(self.dice.choice(STEPS).format(x=x, y=y, z=z))
            made.append(y)
        return "\n".join(lines), made

    def branches(self, scope: list[str], y: str, depth: int) -> str:
        ends = []
        for key in ("then_branch", "else_branch"):
            body, made = self.steps(scope, self.dice.randint(1, 2), depth)
            ends.append(f"{key} = g () => ({made[-1]}) {{ {body} }}")
        return f"{y} = If ({self.dice.choice('cd')}) <{', '.join(ends)}>"

    def loop(self, scope: list[str], x: str, z: str, y: str, depth: int) -> str:
        """Two carried values, which may change places, and at times one that is stacked."""
        a, b, go = self.name("a"), self.name("b"), self.name("go")
        body, made = self.steps([*scope, a, b], self.dice.randint(1, 2), depth)
        ends = [made[-1], self.dice.choice([a, b, x, made[0]])]
        copies = "\n".join(f"{end}_{y}{index} = Identity({end})" for index, end in enumerate(ends))
        out = ", ".join(f"{end}_{y}{index}" for index, end in enumerate(ends))
        stacked = self.dice.random() < 0.4
        more = f", {y}_k" if stacked else ""
        tail = f"\n{y}_k = Relu({a})" if stacked else ""
        after = f", {y}_stack" if stacked else ""
        return (
            f"{y}, {y}_second{after} = Loop (n, yes, {x}, {z}) <body = g (int64 i{y}, bool ok{y}, {a}, {b}) => "
            f"(bool {go}, {out}{more}) {{ {go} = Identity(ok{y})\n{body}\n{copies}{tail} }}>"
        )


def random_model(seed: int) -> onnx.ModelProto:
    """A model of inputs c, d, n, at, mask, x and v, and of a few outputs."""
    writer = Writer(random.Random(seed))
    body, made = writer.steps(["x", "v"], writer.dice.randint(1, 4), 2)
    lines, outputs = [body], []
    for name in made:
        lines.append(f"{name}_size = Size({name})\n{name}_shape = Shape({name})\n{name}_out = Identity({name})")
        outputs += [f"int64 {name}_size", f"int64[r{name}] {name}_shape", f"float {name}_out"]
    inputs = "bool c, bool d, int64 n, int64 at, bool[6] mask, float[3, 2] x, float[2] v"
    body = "\n".join(["yes = Constant <value = bool {1}> ()", *lines])
    model = onnx.parser.parse_model(f"{HEAD}m ({inputs}) => ({', '.join(outputs)})\n{CONSTANTS} {{\n{body}\n}}")
    for value in model.graph.output:
        if value.name.endswith("_out"):
            value.type.tensor_type.ClearField("shape")
    return model


def feeds(seed: int) -> list[Arrays]:
    """What to run a model on: both conditions, and loops that never run, run once and run thrice."""
    draw = np.random.default_rng(seed)
    plain = {
        "x": draw.normal(size=(3, 2)).astype(np.float32),
        "v": draw.normal(size=2).astype(np.float32),
        "mask": np.array([1, 0, 1, 1, 0, 1], bool),
    }
    return [
        {"c": np.array(c), "d": np.array(d), "n": np.array(n), "at": np.array(at), **plain}
        for c, d, n, at in ((True, False, 0, 0), (False, True, 1, 1), (False, False, 3, 0), (True, True, 2, 1))
    ]


def unoptimised(model: bytes, arrays: Arrays) -> Arrays | None:
    """What onnxruntime makes of the model as it is written; None where it does not run."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    try:
        session = onnxruntime.InferenceSession(model, options)
        given = {value.name: arrays[value.name] for value in session.get_inputs()}
        results = session.run(None, given)
    except Exception:  # onnxruntime's own classes have no common base
        return None
    return {value.name: result for value, result in zip(session.get_outputs(), results, strict=True)}


def equal(one: Arrays, other: Arrays) -> bool:
    """Whether two results are the same bits."""
    return one.keys() == other.keys() and all(
        one[name].shape == other[name].shape and one[name].tobytes() == other[name].tobytes() for name in one
    )
