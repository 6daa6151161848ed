"""Kinds of damage to the programs of a build, for ``damaged_programs``: each edits the ONNX models or ``plan.ir`` at a random
place, and makes the manifest state the new bytes."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tests.bench.damage_order import ORDER_KINDS
from tests.dnnc.sealing import refresh

Damage = Callable[[Path, random.Random], bool]
"""Changes a build at a random place; False where it has no place for it."""
FLOATS = {TensorProto.FLOAT: 4, TensorProto.DOUBLE: 8}
"""Bytes of an element of the types of weights."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``proof``: refused (by what opens a build), refuted, not proven or proven; ``runs``: refused, fail, differ, equal
    or not run."""

    proof: str
    runs: str
    message: str

    @property
    def missed(self) -> bool:
        """Whether the proof holds for a build that computes something else."""
        return self.proof == "proven" and self.runs != "equal"


# -- ONNX models -------------------------------------------------------------------------------------------------------


def _models(folder: Path) -> list[Path]:
    return sorted((folder / "stages").glob("*.onnx"))


def _nodes(
    folder: Path, rng: random.Random, fits: Callable[[NodeProto], bool]
) -> tuple[Path, onnx.ModelProto, NodeProto] | None:
    """A random node that fits, of a random model that has one."""
    for path in rng.sample(_models(folder), len(_models(folder))):
        model = onnx.load(str(path), load_external_data=False)
        nodes = [node for node in model.graph.node if fits(node)]
        if nodes:
            return path, model, rng.choice(nodes)
    return None


def _write(folder: Path, path: Path, model: onnx.ModelProto) -> bool:
    path.write_bytes(model.SerializeToString())
    refresh(folder, path.relative_to(folder).as_posix())
    return True


def swapped_operands(folder: Path, rng: random.Random) -> bool:
    """The first two operands of an op, exchanged."""
    found = _nodes(folder, rng, lambda node: len(node.input) >= 2 and node.input[0] != node.input[1] and bool(node.input[1]))
    if found is None:
        return False
    path, model, node = found
    node.input[0], node.input[1] = node.input[1], node.input[0]
    return _write(folder, path, model)


def other_operand(folder: Path, rng: random.Random) -> bool:
    """An operand that is another value of its graph."""
    found = _nodes(folder, rng, lambda node: bool(node.input))
    if found is None:
        return False
    path, model, node = found
    known = [value.name for value in model.graph.input] + [tensor.name for tensor in model.graph.initializer]
    for other in model.graph.node:
        if other is node or list(other.output) == list(node.output):
            break
        known += other.output
    place = rng.randrange(len(node.input))
    others = [name for name in known if name != node.input[place]]
    if not others or not node.input[place]:
        return False
    node.input[place] = rng.choice(others)
    return _write(folder, path, model)


def other_capture(folder: Path, rng: random.Random) -> bool:
    """A value that a branch reads from around it, exchanged for another; or hidden by an inner one of its name."""
    found = _nodes(folder, rng, lambda node: node.op_type == "If")
    if found is None:
        return False
    path, model, node = found
    graph = rng.choice([attribute.g for attribute in node.attribute])
    if rng.random() < 0.5:
        inner = graph.node[0]
        inner.input[0], inner.input[1] = inner.input[1], inner.input[1]
    else:
        graph.node[0].output[0] = "b"
        graph.node[1].input[0] = "b"
    return _write(folder, path, model)


def lost_op(folder: Path, rng: random.Random) -> bool:
    """An op that hands its first operand on."""
    found = _nodes(folder, rng, lambda node: len(node.output) == 1 and bool(node.input) and node.op_type != "Identity")
    if found is None:
        return False
    path, model, node = found
    made = helper.make_node("Identity", [node.input[0]], list(node.output), node.name)
    node.CopyFrom(made)
    return _write(folder, path, model)


def other_operator(folder: Path, rng: random.Random) -> bool:
    """An operator that is another of its kind."""
    swaps = {"Add": "Sub", "Sub": "Add", "Mul": "Add", "Relu": "Sigmoid", "Tanh": "Relu", "Softmax": "LogSoftmax", "Div": "Mul"}
    found = _nodes(folder, rng, lambda node: node.op_type in swaps)
    if found is None:
        return False
    path, model, node = found
    node.op_type = swaps[node.op_type]
    return _write(folder, path, model)


def other_attribute(folder: Path, rng: random.Random) -> bool:
    """A number of an attribute, off by one (a flag turned), or a factor of 1.5."""
    kinds = (onnx.AttributeProto.INT, onnx.AttributeProto.FLOAT, onnx.AttributeProto.INTS)
    found = _nodes(folder, rng, lambda node: any(a.type in kinds for a in node.attribute))
    if found is None:
        return False
    path, model, node = found
    attribute = rng.choice([a for a in node.attribute if a.type in kinds])
    if attribute.type == onnx.AttributeProto.INT:
        attribute.i = 1 - attribute.i if attribute.i in (0, 1) else attribute.i + 1
    elif attribute.type == onnx.AttributeProto.FLOAT:
        attribute.f = attribute.f * 1.5 + (attribute.f == 0)
    elif len(attribute.ints) > 1:
        attribute.ints[0], attribute.ints[1] = attribute.ints[1], attribute.ints[0]
    else:
        return False
    return _write(folder, path, model)


def _integers(model: onnx.ModelProto) -> Iterator[TensorProto]:
    for node in model.graph.node:
        if node.op_type == "Constant":
            yield from (a.t for a in node.attribute if a.name == "value")
    yield from model.graph.initializer


def off_by_one(folder: Path, rng: random.Random) -> bool:
    """An integer constant, off by one: the start or end of a part, a shape, an axis."""
    places = []
    for path in _models(folder):
        model = onnx.load(str(path), load_external_data=False)
        places += [
            (path, number)
            for number, tensor in enumerate(_integers(model))
            if tensor.data_type == TensorProto.INT64
            and tensor.data_location != TensorProto.EXTERNAL
            and np.prod(tensor.dims) > 0
        ]
    if not places:
        return False
    path, number = rng.choice(places)
    model = onnx.load(str(path), load_external_data=False)
    tensor = list(_integers(model))[number]
    array = numpy_helper.to_array(tensor).copy()
    array.reshape(-1)[rng.randrange(array.size)] += rng.choice((-1, 1))
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return _write(folder, path, model)


def swapped_weights(folder: Path, rng: random.Random) -> bool:
    """Two weights of one type, exchanged."""
    for path in rng.sample(_models(folder), len(_models(folder))):
        model = onnx.load(str(path), load_external_data=False)
        pairs = [
            (a, b)
            for a in model.graph.initializer
            for b in model.graph.initializer
            if a.name < b.name and a.data_type == b.data_type and a.dims == b.dims and a.data_type in FLOATS
        ]
        if pairs:
            one, other = rng.choice(pairs)
            one.name, other.name = other.name, one.name
            return _write(folder, path, model)
    return False


def other_bytes(folder: Path, rng: random.Random) -> bool:
    """A weight, one of whose elements is another; or the bytes one element further in its file."""
    path = rng.choice(_models(folder))
    model = onnx.load(str(path), load_external_data=False)
    floats = [t for t in model.graph.initializer if t.data_type in FLOATS]
    if not floats:
        return False
    tensor = rng.choice(floats)
    if tensor.data_location == TensorProto.EXTERNAL:
        entry = next(e for e in tensor.external_data if e.key == "offset")
        size, offset = FLOATS[tensor.data_type], int(entry.value)
        entry.value = str(offset - size if offset >= size else offset + size)
    else:
        array = numpy_helper.to_array(tensor).copy()
        array.reshape(-1)[rng.randrange(array.size)] += 1.0
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return _write(folder, path, model)


def other_opset(folder: Path, rng: random.Random) -> bool:
    """A model read by the rules of an older opset."""
    path = rng.choice(_models(folder))
    model = onnx.load(str(path), load_external_data=False)
    entry = next(e for e in model.opset_import if e.domain == "")
    entry.version = rng.choice((9, 11, 12, 17))
    return _write(folder, path, model)


def exchanged_members(folder: Path, rng: random.Random) -> bool:
    """The models of two members, exchanged."""
    groups: dict[str, list[Path]] = {}
    for path in _models(folder):
        groups.setdefault(re.sub(r"member\d+", "member", path.name), []).append(path)
    several = [group for group in groups.values() if len(group) > 1]
    if not several:
        return False
    one, other = rng.sample(rng.choice(several), 2)
    a, b = one.read_bytes(), other.read_bytes()
    if a == b:
        return False
    one.write_bytes(b)
    other.write_bytes(a)
    refresh(folder, *(path.relative_to(folder).as_posix() for path in (one, other)))
    return True


def copied_member(folder: Path, rng: random.Random) -> bool:
    """The models of the first member in the place of another's: what one member alone is to add is added twice."""
    models = [path for path in _models(folder) if "member0" in path.name]
    if not models:
        return False
    for path in models:
        other = path.with_name(path.name.replace("member0", "member1"))
        if other.exists():
            other.write_bytes(path.read_bytes())
            refresh(folder, other.relative_to(folder).as_posix())
    return True


# -- plan.ir -----------------------------------------------------------------------------------------------------------


def _edited(folder: Path, text: str) -> bool:
    (folder / "plan.ir").write_text(text)
    refresh(folder, "plan.ir")
    return True


def _channels(text: str, kind: str) -> list[str]:
    """The channels of a kind of collective or message."""
    return sorted({match[1] for match in re.finditer(rf"comm\.{kind}\([^)]*\) {{[^}}]*channel = (\d+)", text)})


def _on_channel(text: str, channel: str, old: str, new: str) -> str:
    """The text with ``old`` replaced in the lines of one channel."""
    lines = []
    for line in text.split("\n"):
        hit = "comm." in line and f"channel = {channel}," in line
        lines.append(re.sub(old, new, line, count=1) if hit else line)
    return "\n".join(lines)


def other_reduction(folder: Path, rng: random.Random) -> bool:
    """A sum that is a maximum."""
    text = (folder / "plan.ir").read_text()
    channels = [c for kind in ("all_reduce", "reduce_scatter") for c in _channels(text, kind)]
    return bool(channels) and _edited(folder, _on_channel(text, rng.choice(channels), 'reduction = "sum"', 'reduction = "max"'))


def other_axis(folder: Path, rng: random.Random) -> bool:
    """A collective along another axis of its mesh."""
    text = (folder / "plan.ir").read_text()
    axes = re.findall(r"  mesh @\S+ \[(\w+) = \d+, (\w+) = \d+\]", text)
    channels = _channels(text, r"(?:all_\w+|reduce_scatter)")
    if not axes or not channels:
        return False
    one, other = axes[0]
    channel = rng.choice(channels)
    swapped = _on_channel(text, channel, f'axis = "{one}"', f'axis = "{other}"')
    return _edited(folder, swapped if swapped != text else _on_channel(text, channel, f'axis = "{other}"', f'axis = "{one}"'))


def other_dimension(folder: Path, rng: random.Random) -> bool:
    """A collective that joins or cuts another dimension."""
    text = (folder / "plan.ir").read_text()
    channels = [c for kind in ("all_gather", "reduce_scatter") for c in _channels(text, kind)]
    if not channels:
        return False
    return _edited(folder, _on_channel(text, rng.choice(channels), r"\bdim = (\d)", lambda m: f"dim = {1 - int(m[1]) % 2}"))  # type: ignore[arg-type]


def lost_collective(folder: Path, rng: random.Random) -> bool:
    """A sum that the members do not take: they go on with their terms."""
    text = (folder / "plan.ir").read_text()
    found = re.findall(r'(%\S+) = comm\.all_reduce\((%\S+)\) {axis = "\w+", channel = \d+', text)
    if not found:
        return False
    result, operand = rng.choice(sorted(set(found)))
    lines = [
        line if f"{result} = comm.all_reduce" in line else re.sub(rf"{re.escape(result)}(?=[,) ])", operand, line)
        for line in text.split("\n")
    ]
    lines = [line for line in lines if f"{result} = comm.all_reduce" not in line]
    for path in _models(folder):
        model = onnx.load(str(path), load_external_data=False)
        for value in model.graph.input:
            if value.name == result[1:]:
                value.name = operand[1:]
        for node in model.graph.node:
            for place, name in enumerate(node.input):
                if name == result[1:]:
                    node.input[place] = operand[1:]
        _write(folder, path, model)
    return _edited(folder, "\n".join(lines))


def repeated_collective(folder: Path, rng: random.Random) -> bool:
    """A sum that is taken twice."""
    text = (folder / "plan.ir").read_text()
    lines = [line for line in text.split("\n") if re.search(r"= comm\.all_reduce\(", line)]
    if not lines:
        return False
    results = sorted({line.split("=")[0].strip() for line in lines})
    chosen = rng.choice(results)
    last = max(int(c) for c in re.findall(r"channel = (\d+)", text))
    made = []
    for line in text.split("\n"):
        if line.split("=")[0].strip() == chosen and "comm.all_reduce" in line:
            middle = f"{chosen}.once"
            made.append(line.replace(f"{chosen} =", f"{middle} =", 1))
            again = re.sub(r"comm\.all_reduce\([^)]*\)", f"comm.all_reduce({middle})", line)
            made.append(re.sub(r"channel = \d+", f"channel = {last + 1}", again))
        else:
            made.append(line)
    return _edited(folder, "\n".join(made))


def exchanged_channels(folder: Path, rng: random.Random) -> bool:
    """Two values that arrive, each taken for the other."""
    text = (folder / "plan.ir").read_text()
    program = text[text.index("  program @") :] if "  program @" in text else ""
    found = re.findall(r"(%\S+) = comm\.recv\(\) {(?:of|channel)", program)
    names = sorted(set(found))
    if len(names) < 2:
        return False
    one, other = rng.sample(names, 2)
    at = text.index("  program @")
    body = re.sub(rf"{re.escape(one)} = comm\.recv", "%@@ = comm.recv", text[at:])
    body = re.sub(rf"{re.escape(other)} = comm\.recv", f"{one} = comm.recv", body).replace(
        "%@@ = comm.recv", f"{other} = comm.recv"
    )
    return _edited(folder, text[:at] + body)


def other_value_sent(folder: Path, rng: random.Random) -> bool:
    """Two messages of a program, each with the value of the other."""
    text = (folder / "plan.ir").read_text()
    at = text.index("  program @")
    sent = [re.findall(r"comm\.send\((%\S+)\)", program) for program in text[at:].split("  program @")]
    several = [sorted(set(names)) for names in sent if len(set(names)) > 1]
    if not several:
        return False
    one, other = rng.sample(rng.choice(several), 2)
    body = text[at:].replace(f"comm.send({one})", "comm.send(%@@)").replace(f"comm.send({other})", f"comm.send({one})")
    return _edited(folder, text[:at] + body.replace("comm.send(%@@)", f"comm.send({other})"))


def misnamed_value(folder: Path, rng: random.Random) -> bool:
    """A value that a member sends, reduces or delivers is called otherwise in its program; what has its name is another."""
    text = (folder / "plan.ir").read_text()
    at = text.index("  program @")
    head, *programs = re.split(r"(?=  program @)", text[at:])
    places = [
        (number, call)
        for number, program in enumerate(programs)
        for call in re.finditer(r"(?<=    )(%\S+) = dnnc\.segment\([^)]*\) {level = (\d+)} : (\S+)", program)
        if re.search(rf"comm\.\w+\({re.escape(call[1])}\)", program) or f"-> ({call[1]} :" in program
    ]
    if not places:
        return False
    number, call = rng.choice(places)
    program = programs[number]
    stage, device = re.findall(r"of (@\S+) on \[(\S+?)[],]", program)[0]
    index, devices, mesh = re.findall(rf"  stage {stage} index (\d+) on \[([^]]*)\] ?(mesh)?", text)[0]
    member = f".member{devices.split(', ').index(device)}.segment{call[2]}" if mesh else ""
    path = folder / f"stages/stage{index}{member}.onnx"
    model = onnx.load(str(path), load_external_data=False)
    own = call[1][1:]
    for node in model.graph.node:
        node.output[:] = ["right" if name == own else name for name in node.output]
        node.input[:] = ["right" if name == own else name for name in node.input]
    model.graph.node.append(helper.make_node("Exp", ["right"], [own]))
    (output,) = (value for value in model.graph.output if value.name == own)
    model.graph.output.append(output)
    model.graph.output[-1].name = "right"
    _write(folder, path, model)
    program = program.replace(f"({call[1]})", "(%right)").replace(f"-> ({call[1]} :", "-> (%right :")
    programs[number] = program.replace(
        call[0], call[0].replace(f"{call[1]} =", f"{call[1]}, %right =").replace(f": {call[3]}", f": {call[3]}, {call[3]}")
    )
    return _edited(folder, text[:at] + head + "".join(programs))


def exchanged_devices(folder: Path, rng: random.Random) -> bool:
    """Two programs of a stage, each on the devices of the other."""
    text = (folder / "plan.ir").read_text()
    heads = re.findall(r"  program @\w+ of (@\w+) on (\[[^\]]*\])", text)
    pairs = [(a, b) for i, a in enumerate(heads) for b in heads[:i] if a[0] == b[0] and len(a[1]) == len(b[1])]
    if not pairs:
        return False
    (stage, one), (_, other) = rng.choice(pairs)
    mark = f"of {stage} on "
    text = text.replace(mark + one, mark + "@@").replace(mark + other, mark + one).replace(mark + "@@", mark + other)
    return _edited(folder, text)


def other_layout(folder: Path, rng: random.Random) -> bool:
    """An output, or what crosses between stages, taken for a part along another dimension."""
    text = (folder / "plan.ir").read_text()
    at = text.index("  program @")
    places = [match for match in re.finditer(r"S\((\d)\)", text[at:])]
    if not places:
        return False
    match = rng.choice(places)
    start = at + match.start()
    return _edited(folder, f"{text[:start]}S({1 - int(match[1]) % 2}){text[start + 4 :]}")


def other_microbatch(folder: Path, rng: random.Random) -> bool:
    """A row of the schedule with another microbatch."""
    text = (folder / "plan.ir").read_text()
    places = list(re.finditer(r"(recv|send|F)\((\d+), (-?\d+)", text))
    match = rng.choice(places)
    number = int(match[3]) + rng.choice((-1, 1))
    return _edited(folder, f"{text[: match.start()]}{match[1]}({match[2]}, {number}{text[match.end() :]}")


KINDS: dict[str, Damage] = {
    kind.__name__.replace("_", " "): kind
    for kind in (
        swapped_operands, other_operand, other_capture, lost_op, other_operator, other_attribute, off_by_one, swapped_weights,
        other_bytes, other_opset, exchanged_members, copied_member, other_reduction, other_axis, other_dimension,
        lost_collective, repeated_collective,
        exchanged_channels, other_value_sent, misnamed_value, exchanged_devices, other_layout, other_microbatch,
    )
} | ORDER_KINDS  # fmt: skip
