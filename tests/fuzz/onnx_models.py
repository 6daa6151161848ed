"""ONNX: small models with changed fields of any message, ONNX text with changed tokens, and models made to break importers."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import onnx
from onnx import TensorProto, helper, parser

from tests.fuzz.harness import Surface
from tests.fuzz.mutate import INTEGERS, STRINGS, mutate_bytes, mutate_text
from tests.fuzz.onnx_mutate import MARK, mutate_message, serialised
from tests.golden import ROOT


@cache
def texts() -> tuple[str, ...]:
    """Every ONNX text of the golden files, without comments."""
    return tuple(
        "\n".join(re.sub(r"\s*//.*$", "", line) for line in path.read_text(encoding="utf-8").split("\n"))
        for path in sorted(ROOT.rglob("*.onnxtxt"))
    )


@cache
def seeds() -> tuple[onnx.ModelProto, ...]:
    """Small models: the golden ones, and some of the operators that have shapes, weights and bodies."""
    found = [attention_like(), convolution(), external_weights()]
    for text in texts():
        try:
            found.append(parser.parse_model(text))
        except parser.ParseError:
            continue
    return tuple(found)


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: list[Any] = [], opset: int = 20) -> onnx.ModelProto:  # noqa: B006
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def value(name: str, *shape: Any, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, list(shape))


def weight(name: str, *shape: int) -> Any:
    count = 1
    for size in shape:
        count *= size
    return helper.make_tensor(name, TensorProto.FLOAT, shape, bytes(4 * count), raw=True)


def attention_like() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="q"),
        helper.make_node("Reshape", ["h", "shape"], ["r"]),
        helper.make_node("Transpose", ["r"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["r", "t"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("Split", ["p"], ["a", "b"], axis=1, num_outputs=2),
        helper.make_node("Concat", ["a", "b"], ["y"], axis=1),
    ]
    shape = helper.make_tensor("shape", TensorProto.INT64, [3], [2, 4, 8])
    return model(nodes, [value("x", 2, 4, 8)], [value("y", "n", 4, 4)], [weight("w", 8, 8), shape])


def convolution() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Resize", ["m", "", "scales"], ["u"], mode="nearest"),
        helper.make_node("Pad", ["u", "pads"], ["q"]),
        helper.make_node("GlobalAveragePool", ["q"], ["g"]),
        helper.make_node("Flatten", ["g"], ["y"]),
    ]
    scales = helper.make_tensor("scales", TensorProto.FLOAT, [4], [1, 1, 2, 2])
    pads = helper.make_tensor("pads", TensorProto.INT64, [8], [0, 0, 1, 1, 0, 0, 1, 1])
    return model(nodes, [value("x", 1, 3, 8, 8)], [value("y", 1, 4)], [weight("k", 4, 3, 3, 3), scales, pads])


def external_weights() -> onnx.ModelProto:
    tensor = weight("w", 4, 4)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in (("location", "w.data"), ("offset", "0"), ("length", "64")):
        tensor.external_data.add(key=key, value=text)
    return model([helper.make_node("MatMul", ["x", "w"], ["y"])], [value("x", "batch", 4)], [value("y", "batch", 4)], [tensor])


def mutated(rng: Random, folder: Path, base: Path) -> list[str]:
    (folder / "w.data").write_bytes(bytes(64))
    if rng.random() < 0.25:
        (folder / "m.onnxtxt").write_bytes(mutate_text(rng, rng.choice(texts()), texts()).encode("utf-8", "surrogatepass"))
        return command(rng, "m.onnxtxt")
    changed = onnx.ModelProto()
    changed.CopyFrom(rng.choice(seeds()))
    mutate_message(rng, changed)
    data = serialised(changed)
    return written(rng, folder, mutate_bytes(rng, data) if rng.random() < 0.1 else data)


def written(rng: Random, folder: Path, data: bytes | onnx.ModelProto) -> list[str]:
    (folder / "m.onnx").write_bytes(data if isinstance(data, bytes) else serialised(data))
    return command(rng, "m.onnx")


def command(rng: Random, name: str) -> list[str]:
    dims = ["--dim", "batch=2"] if rng.random() < 0.2 else []
    match rng.randrange(6):
        case 0 | 1:
            return [
                "import",
                name,
                *dims,
                *rng.choice(([], ["--passes", "canonicalize,cost"], ["--passes", "canonicalize,cost,fold"])),
            ]
        case 2:
            return ["inspect", name, *dims, *rng.choice(([], ["--json"]))]
    shape = rng.choice(([], [], ["--mesh", "2"], ["--split", "any", "--time-limit", "5"], ["--objective", "latency"]))
    return [
        "compile",
        name,
        "-t",
        "preset:cpu-2",
        "-o",
        "out",
        *dims,
        *shape,
        *rng.choice(([], [], ["--plan-only"], ["--weights", "per-stage"])),
    ]


# --- models made to break an importer -----------------------------------------------------------------------------------------


def huge_input(rng: Random, folder: Path, base: Path) -> list[str]:
    """A few bytes of model about a tensor that nothing holds; its operators make values of it while shapes are inferred."""
    size = rng.choice((10_000_000, 10**9, 2**31, 2**62, 2**63 - 1))
    nodes = rng.choice(
        (
            [helper.make_node("Shape", ["x"], ["y"])],
            [
                helper.make_node("Shape", ["x"], ["s"]),
                helper.make_node("ConstantOfShape", ["s"], ["c"]),
                helper.make_node("Size", ["c"], ["y"]),
            ],
            [helper.make_node("Gather", ["x", "x"], ["y"])],
            [helper.make_node("Concat", ["x"] * 50, ["y"], axis=0)],
            [helper.make_node("Range", ["z", "n", "o"], ["y"])],
            [helper.make_node("ConstantOfShape", ["n1"], ["y"])],
            [helper.make_node("Tile", ["x", "n1"], ["y"])],
            [helper.make_node("Expand", ["o", "n1"], ["e"]), helper.make_node("NonZero", ["e"], ["y"])],
            [helper.make_node("Slice", ["x", "o1", "n1"], ["y"])],
            [helper.make_node("OneHot", ["x", "n", "ab"], ["y"])],
        )
    )
    numbers = [("z", [], [0]), ("n", [], [size]), ("o", [], [1]), ("n1", [1], [size]), ("o1", [1], [1]), ("ab", [2], [0, 1])]
    weights = [helper.make_tensor(name, TensorProto.INT64, shape, numbers_) for name, shape, numbers_ in numbers]
    shape = rng.choice(([size], [size, size], [size, 4], [4]))
    return written(
        rng, folder, model(nodes, [value("x", *shape, kind=TensorProto.INT64)], [value("y", kind=TensorProto.INT64)], weights)
    )


def functions(rng: Random, folder: Path, base: Path) -> list[str]:
    """Functions that call each other: a long chain, a doubling, a circle."""
    kind, count = rng.choice((("chain", 60), ("chain", 3000), ("double", 12), ("double", 17), ("double", 60), ("circle", 3)))
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("f", 1)]
    found = model([helper.make_node("f0", ["x"], ["y"], domain="f")], [value("x", 4)], [value("y", 4)])
    found.opset_import.append(opsets[1])
    for i in range(count):
        called = f"f{(i + 1) % count}" if kind == "circle" else f"f{i + 1}"
        nodes = [helper.make_node(called, ["a"], ["b"], domain="f")]
        if kind == "double":
            nodes += [helper.make_node(called, ["a"], ["c"], domain="f"), helper.make_node("Add", ["b", "c"], ["d"])]
        if i == count - 1 and kind != "circle":
            nodes = [helper.make_node("Neg", ["a"], ["d" if kind == "double" else "b"])]
        found.functions.append(helper.make_function("f", f"f{i}", ["a"], ["d" if kind == "double" else "b"], nodes, opsets))
    return written(rng, folder, found)


def long_chain(rng: Random, folder: Path, base: Path) -> list[str]:
    count = rng.choice((2000, 6000))
    operator = rng.choice(("Neg", "Shape", "Identity", "Relu"))
    nodes = [helper.make_node(operator, [f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
    inputs = ["import", "m.onnx"] if rng.random() < 0.5 else ["inspect", "m.onnx"]
    written(rng, folder, model(nodes, [value("v0", 4)], [value(f"v{count}")]))
    return inputs


def bodies(rng: Random, folder: Path, base: Path) -> list[str]:
    """Branches inside branches."""
    depth = rng.choice((5, 12, 25))  # protobuf itself goes no deeper than 100 messages
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["o"])], "b", [], [value("o", 4)])
    for level in range(depth):
        node = helper.make_node(
            "If",
            ["c"],
            [f"o{level}"],
            then_branch=graph,
            else_branch=graph
            if level < 3
            else helper.make_graph([helper.make_node("Abs", ["x"], ["e"])], "e", [], [value("e", 4)]),
        )
        graph = helper.make_graph([node], "b", [], [value(f"o{level}", 4)])
    return written(
        rng, folder, model([*graph.node], [value("x", 4), value("c", kind=TensorProto.BOOL)], [value(f"o{depth - 1}", 4)])
    )


def deep_messages(rng: Random, folder: Path, base: Path) -> list[str]:
    """Messages inside messages, deeper than protobuf writes them: graphs of attributes of nodes, types of types."""
    fields = rng.choice(((6, 5, 1), (4, 1), (5,)))  # AttributeProto.g, NodeProto.attribute, GraphProto.node; ...
    data = b""
    for level in range(rng.choice((90, 120, 3000))):
        data = _field(fields[level % len(fields)], data)
    return written(rng, folder, b"\x08\x0a" + _field(7, _field(1, _field(5, data)) + _field(11, _field(2, data))))


def _field(number: int, data: bytes) -> bytes:
    """A length-delimited field on the wire."""
    length, size = b"", len(data)
    while True:
        size, low = size >> 7, size & 0x7F
        length += bytes([low | (0x80 if size else 0)])
        if not size:
            return bytes([number << 3 | 2]) + length + data


def nested_types(rng: Random, folder: Path, base: Path) -> list[str]:
    found = model([helper.make_node("Identity", ["x"], ["y"])], [value("x", 4)], [value("y", 4)])
    kind = found.graph.input[0].type
    kind.Clear()
    for _ in range(rng.choice((5, 40, 45))):
        kind = rng.choice(
            (lambda k: k.sequence_type.elem_type, lambda k: k.optional_type.elem_type, lambda k: k.map_type.value_type)
        )(kind)
    kind.tensor_type.elem_type = 1
    return written(rng, folder, found)


def names(rng: Random, folder: Path, base: Path) -> list[str]:
    """One strange name in all places, or in one of them."""
    strange = rng.choice((MARK, MARK, *STRINGS))
    found = model(
        [helper.make_node("Relu", ["x"], ["h"], name="n"), helper.make_node("Neg", ["h"], ["y"], name="m")],
        [value("x", "batch", 4)],
        [value("y", "batch", 4)],
    )
    where = rng.randrange(8)
    if where == 0:
        found.graph.node[0].op_type = strange
    elif where == 1:
        found.graph.node[0].name = strange
    elif where == 2:
        found.graph.node[0].output[0] = found.graph.node[1].input[0] = strange
    elif where == 3:
        found.graph.input[0].type.tensor_type.shape.dim[0].dim_param = strange
    elif where == 4:
        found.graph.node[0].domain = strange
        found.opset_import.add(domain=strange, version=1)
    elif where == 5:
        found.graph.node[0].attribute.append(helper.make_attribute("a", strange))
    elif where == 6:
        found.graph.node[0].input[0] = strange
    else:
        found.graph.name = found.producer_name = strange
    return written(rng, folder, found)


def opsets(rng: Random, folder: Path, base: Path) -> list[str]:
    found = model([helper.make_node("Relu", ["x"], ["y"])], [value("x", 4)], [value("y", 4)])
    found.opset_import[0].version = rng.choice((0, -1, 1, 6, 99, 2**31, 2**63 - 1, -(2**63)))
    for _ in range(rng.choice((0, 1, 1000))):
        found.opset_import.add(domain=rng.choice(STRINGS[:20]), version=rng.choice((0, 1, 2**62)))
    return written(rng, folder, found)


def attributes(rng: Random, folder: Path, base: Path) -> list[str]:
    """Attributes of other types than the operator's, and of numbers out of range."""
    operator, key = rng.choice(
        (
            ("Concat", "axis"),
            ("Transpose", "perm"),
            ("Softmax", "axis"),
            ("Cast", "to"),
            ("Flatten", "axis"),
            ("Constant", "value"),
            ("ConstantOfShape", "value"),
            ("Conv", "strides"),
            ("Einsum", "equation"),
            ("Split", "num_outputs"),
            ("Gemm", "alpha"),
            ("LSTM", "hidden_size"),
            ("Unsqueeze", "axes"),
            ("ReduceSum", "axes"),
            ("Resize", "mode"),
            ("Trilu", "upper"),
            ("DepthToSpace", "blocksize"),
        )
    )
    strange = rng.choice(
        (
            rng.choice([n for n in INTEGERS if -(2**63) <= n < 2**63]),
            [2**62, -1],
            [],
            1.5,
            [0.5],
            "ij,jk->ik" * 50,
            "a" * 60 + "->",
            [b"x"],
            b"\xff",
            weight("t", 2, 2),
            [3] * 3000,
        )
    )
    made = (
        helper.make_attribute(key, strange) if strange != [] else onnx.AttributeProto(name=key, type=onnx.AttributeProto.INTS)
    )
    if rng.random() < 0.2:
        made.type = rng.randrange(15)
    node = helper.make_node(operator, ["x"] * rng.choice((0, 1, 2, 3)), ["y"])
    node.attribute.append(made)
    return written(rng, folder, model([node], [value("x", 4, 4)], [value("y")], opset=rng.choice((9, 11, 13, 18, 20))))


def raw_data(rng: Random, folder: Path, base: Path) -> list[str]:
    """Weights whose bytes, elements, type and shape contradict each other."""
    tensor = weight("w", 4, 4)
    tensor.data_type = rng.choice(range(26))
    tensor.raw_data = bytes(rng.choice((0, 1, 63, 64, 65, 1000)))
    if rng.random() < 0.5:
        del tensor.dims[:]
        tensor.dims.extend(rng.choice(([], [-1], [0], [2**62, 4], [2**63 - 1], [4, 4, 4], [1] * 70)))
    if rng.random() < 0.3:
        tensor.float_data.extend([1.0] * 16)
    operator = rng.choice(("Add", "Reshape", "MatMul", "Gather", "Expand"))
    return written(
        rng, folder, model([helper.make_node(operator, ["x", "w"], ["y"])], [value("x", 4, 4)], [value("y")], [tensor])
    )


def external(rng: Random, folder: Path, base: Path) -> list[str]:
    """Weights that lie elsewhere, or nowhere, or without end."""
    found = external_weights()
    entries = found.graph.initializer[0].external_data
    key = rng.randrange(3)
    paths = ("../w.data", "/etc/passwd", "/dev/zero", "w.data\x00x", "", "sub/../../w", "fifo", "link", MARK, ".")
    offsets = ("-1", "1e3", "x", "9" * 400, "63", "4096", " 0")
    lengths = ("-1", "63", "65", "9" * 30, "", "x")
    entries[key].value = rng.choice((paths, offsets, lengths)[key])
    (folder / "w.data").write_bytes(bytes(64))
    if rng.random() < 0.2:
        entries.add(key=rng.choice(("location", "checksum", "x")), value=rng.choice(STRINGS))
    if entries[0].value == "fifo":
        os.mkfifo(folder / "fifo")
    if entries[0].value == "link":
        (folder / "link").symlink_to("/dev/zero")
    return written(rng, folder, found)


SURFACE = Surface(
    "onnx",
    mutated,
    (
        *[huge_input] * 10,
        *[functions] * 5,
        long_chain,
        *[bodies] * 2,
        *[deep_messages] * 3,
        *[nested_types] * 2,
        *[names] * 10,
        *[opsets] * 4,
        *[attributes] * 12,
        *[raw_data] * 8,
        *[external] * 8,
    ),
    quick=4,
)
