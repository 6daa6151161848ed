"""More kinds of damage to the programs of a build, for ``damaged_programs``: ops, weights and parts that are lost, doubled,
moved or another member's, and what the mesh and the rows of the schedule say of members and microbatches."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.dnnc.sealing import refresh

# -- ONNX models -------------------------------------------------------------------------------------------------------


def _models(folder: Path, rng: random.Random) -> list[tuple[Path, ModelProto]]:
    paths = sorted((folder / "stages").glob("*.onnx"))
    return [(path, onnx.load(str(path), load_external_data=False)) for path in rng.sample(paths, len(paths))]


def _write(folder: Path, path: Path, model: ModelProto) -> bool:
    path.write_bytes(model.SerializeToString())
    refresh(folder, path.relative_to(folder).as_posix())
    return True


def _node(folder: Path, rng: random.Random, fits: Callable[[NodeProto], bool]) -> tuple[Path, ModelProto, NodeProto] | None:
    for path, model in _models(folder, rng):
        if nodes := [node for node in model.graph.node if fits(node)]:
            return path, model, rng.choice(nodes)
    return None


def lost_operand(folder: Path, rng: random.Random) -> bool:
    """The bias of an op is not given."""
    found = _node(folder, rng, lambda node: node.op_type in ("Gemm", "Conv", "LayerNormalization") and len(node.input) == 3)
    if found is None:
        return False
    path, model, node = found
    del node.input[2]
    return _write(folder, path, model)


def _behind(folder: Path, rng: random.Random, operator: str) -> bool:
    """An op behind another, through which its result goes."""
    found = _node(
        folder, rng, lambda node: node.op_type in ("Gemm", "MatMul", "Add", "Mul", "Relu", "Tanh") and bool(node.output)
    )
    if found is None:
        return False
    path, model, node = found
    own = node.output[0]
    node.output[0] = f"{own}.before"
    operands = [node.output[0]] * (2 if operator == "Add" else 1)
    at = next(place for place, other in enumerate(model.graph.node) if other.output == node.output)
    model.graph.node.insert(at + 1, helper.make_node(operator, operands, [own], f"{node.name}.behind"))
    return _write(folder, path, model)


def doubled_value(folder: Path, rng: random.Random) -> bool:
    """A value that is added to itself."""
    return _behind(folder, rng, "Add")


def negated_value(folder: Path, rng: random.Random) -> bool:
    """A value with the other sign."""
    return _behind(folder, rng, "Neg")


def clipped_value(folder: Path, rng: random.Random) -> bool:
    """A value below a ReLU that the model does not have: equal where it is positive."""
    return _behind(folder, rng, "Relu")


def rounded_value(folder: Path, rng: random.Random) -> bool:
    """A value that is made in half precision and widened again."""
    found = _node(folder, rng, lambda node: node.op_type in ("Gemm", "MatMul", "Add", "Relu", "Tanh"))
    if found is None:
        return False
    path, model, node = found
    own = node.output[0]
    at = next(place for place, other in enumerate(model.graph.node) if other.output == node.output)
    node.output[0] = f"{own}.before"
    model.graph.node.insert(at + 1, helper.make_node("Cast", [node.output[0]], [f"{own}.half"], to=TensorProto.FLOAT16))
    floats = {TensorProto.FLOAT, TensorProto.DOUBLE} & {tensor.data_type for tensor in model.graph.initializer}
    wide = helper.make_node("Cast", [f"{own}.half"], [own], to=max(floats, default=TensorProto.FLOAT))
    model.graph.node.insert(at + 2, wide)
    return _write(folder, path, model)


def exchanged_ops(folder: Path, rng: random.Random) -> bool:
    """Two ops of one operand, each in the place of the other."""
    for path, model in _models(folder, rng):
        unary = [node for node in model.graph.node if len(node.input) == 1 and len(node.output) == 1]
        pairs = [(a, b) for a in unary for b in unary if (a.op_type, str(a.attribute)) < (b.op_type, str(b.attribute))]
        if pairs:
            one, other = rng.choice(pairs)
            a, b = NodeProto(), NodeProto()
            a.CopyFrom(one)
            b.CopyFrom(other)
            for node, of in ((one, b), (other, a)):
                node.op_type = of.op_type
                del node.attribute[:]
                node.attribute.extend(of.attribute)
            return _write(folder, path, model)
    return False


def exchanged_outputs(folder: Path, rng: random.Random) -> bool:
    """Two values that a model makes, each called like the other."""
    return _renamed(folder, rng, lambda model: [value.name for value in model.graph.output])


def exchanged_inputs(folder: Path, rng: random.Random) -> bool:
    """Two values that a model reads, each taken for the other."""
    return _renamed(folder, rng, lambda model: [value.name for value in model.graph.input])


def _renamed(folder: Path, rng: random.Random, names_of: Callable[[ModelProto], list[str]]) -> bool:
    for path, model in _models(folder, rng):
        names = names_of(model)
        if len(names) < 2:
            continue
        one, other = rng.sample(names, 2)
        swap = {one: other, other: one}
        outputs = one in {value.name for value in model.graph.output}
        for node in model.graph.node:
            node.input[:] = [swap.get(name, name) for name in node.input]
            if outputs:
                node.output[:] = [swap.get(name, name) for name in node.output]
        return _write(folder, path, model)
    return False


def other_members_weight(folder: Path, rng: random.Random) -> bool:
    """A weight of one member in the model of another."""
    models = dict(_models(folder, rng))
    for path, model in models.items():
        other = models.get(path.with_name(path.name.replace("member1.", "member0.")))
        if "member1." not in path.name or other is None:
            continue
        theirs = {tensor.name: tensor for tensor in other.graph.initializer}
        different = [
            tensor
            for tensor in model.graph.initializer
            if (own := theirs.get(tensor.name)) is not None and own.dims == tensor.dims and own != tensor
        ]
        if different:
            tensor = rng.choice(different)
            tensor.CopyFrom(theirs[tensor.name])
            return _write(folder, path, model)
    return False


def transposed_weight(folder: Path, rng: random.Random) -> bool:
    """A square weight that is read along its other dimension."""
    for path, model in _models(folder, rng):
        used = {name for node in model.graph.node for name in node.input}
        square = [t for t in model.graph.initializer if len(t.dims) == 2 and t.dims[0] == t.dims[1] and t.name in used]
        if square:
            tensor = rng.choice(square)
            own = tensor.name
            for node in model.graph.node:
                node.input[:] = [f"{own}.turned" if name == own else name for name in node.input]
            model.graph.node.insert(0, helper.make_node("Transpose", [own], [f"{own}.turned"], perm=[1, 0]))
            return _write(folder, path, model)
    return False


def shifted_part(folder: Path, rng: random.Random) -> bool:
    """Start and end of a part, both off by one: its length is right."""
    found = _node(folder, rng, lambda node: node.op_type == "Slice" and len(node.input) >= 3)
    if found is None:
        return False
    path, model, node = found
    step, done = rng.choice((-1, 1)), 0
    holders = [
        *model.graph.initializer,
        *(a.t for n in model.graph.node if n.output[:1] == [node.input[1]] for a in n.attribute),
    ]
    holders += [a.t for n in model.graph.node if n.output[:1] == [node.input[2]] for a in n.attribute]
    names = {node.input[1], node.input[2]}
    for tensor in holders:
        if tensor.name in names or tensor not in list(model.graph.initializer):
            array = numpy_helper.to_array(tensor) + step
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
            done += 1
    return done == 2 and _write(folder, path, model)


def filled_term(folder: Path, rng: random.Random) -> bool:
    """What a member adds to a sum beside another's value: ones for zeros."""
    found = _node(folder, rng, lambda node: node.op_type == "ConstantOfShape")
    if found is None:
        return False
    path, model, node = found
    ones = [np.ones_like(numpy_helper.to_array(attribute.t)) for attribute in node.attribute] or [np.ones(1, np.float32)]
    del node.attribute[:]
    node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(ones[0])))
    return _write(folder, path, model)


def exchanged_branches(folder: Path, rng: random.Random) -> bool:
    """The branches of an If, exchanged."""
    found = _node(folder, rng, lambda node: node.op_type == "If")
    if found is None:
        return False
    path, model, node = found
    for attribute in node.attribute:
        attribute.name = "else_branch" if attribute.name == "then_branch" else "then_branch"
    return _write(folder, path, model)


# -- plan.ir -----------------------------------------------------------------------------------------------------------


def _edited(folder: Path, text: str) -> bool:
    (folder / "plan.ir").write_text(text)
    refresh(folder, "plan.ir")
    return True


def _replaced(folder: Path, rng: random.Random, pattern: str, new: Callable[[re.Match[str]], str]) -> bool:
    """A random place of ``plan.ir`` behind its functions that fits ``pattern``, edited."""
    text = (folder / "plan.ir").read_text()
    at = min(text.find(mark) % len(text) for mark in ("  mesh @", "  stage @"))
    places = [match for match in re.finditer(pattern, text[at:]) if new(match) != match[0]]
    if not places:
        return False
    match = rng.choice(places)
    return _edited(folder, text[: at + match.start()] + new(match) + text[at + match.end() :])


def other_peer(folder: Path, rng: random.Random) -> bool:
    """A message to or from another stage."""
    return _replaced(folder, rng, r"peer = (\d+)", lambda match: f"peer = {int(match[1]) + rng.choice((-1, 1))}")


def other_channel(folder: Path, rng: random.Random) -> bool:
    """A message or a collective on another channel."""
    return _replaced(folder, rng, r"channel = (\d+)", lambda match: f"channel = {int(match[1]) + rng.choice((-1, 1))}")


def lost_message(folder: Path, rng: random.Random) -> bool:
    """A message that is not sent."""
    return _replaced(folder, rng, r"    comm\.send\([^\n]*\n", lambda match: "")


def _exchanged(folder: Path, rng: random.Random, named: str) -> bool:
    """Two different names in the programs that group 2 of ``named`` finds, each in the place of the other."""
    text = (folder / "plan.ir").read_text()
    at = text.index("  program @")
    found = sorted({match[2] for match in re.finditer(named, text[at:])})
    if len(found) < 2:
        return False
    one, other = rng.sample(found, 2)
    swap = {one: other, other: one}
    return _edited(folder, text[:at] + re.sub(named, lambda m: f"{m[1]}{swap.get(m[2], m[2])}", text[at:]))


def exchanged_operands(folder: Path, rng: random.Random) -> bool:
    """Two collectives of a program, each of the operand of the other."""
    return _exchanged(folder, rng, r"(comm\.(?:all_reduce|all_gather|reduce_scatter)\()(%[^\s)]+)")


def exchanged_levels(folder: Path, rng: random.Random) -> bool:
    """Two segments of a program, each with the model of the other."""
    return _exchanged(folder, rng, r"(level = )(\d+)")


def moved_collective(folder: Path, rng: random.Random) -> bool:
    """A sum behind the segment that reads it, which reads the terms."""
    text = (folder / "plan.ir").read_text()
    at = text.index("  program @")
    found = sorted(set(re.findall(r"(%\S+) = comm\.all_reduce\((%\S+)\)", text[at:])))
    if not found:
        return False
    result, operand = rng.choice(found)
    made, waiting = [], ""
    for line in text[at:].split("\n"):
        if line.strip().startswith(f"{result} = comm.all_reduce"):
            waiting = line
            continue
        if waiting and "dnnc.segment" in line:
            made += [re.sub(rf"{re.escape(result)}(?=[,)])", operand, line), waiting]
            waiting = ""
            continue
        made.append(line)
    return _edited(folder, text[:at] + "\n".join(made))


def other_members(folder: Path, rng: random.Random) -> bool:
    """Two members of a mesh, exchanged in its order of devices, but not in the files of its members."""
    text = (folder / "plan.ir").read_text()
    meshes = [match for match in re.findall(r"  mesh @\w+ \[[^\]]*\] on \[([^\]]*)\]", text) if "," in match]
    if not meshes:
        return False
    devices = rng.choice(meshes)
    one, other = rng.sample(range(devices.count(",") + 1), 2)
    order = devices.split(", ")
    order[one], order[other] = order[other], order[one]
    lines = (
        line if line.startswith("  program @") else line.replace(f"[{devices}]", f"[{', '.join(order)}]")
        for line in text.split("\n")
    )
    return _edited(folder, "\n".join(lines))


def lost_action(folder: Path, rng: random.Random) -> bool:
    """An action that a row lacks."""
    return _replaced(folder, rng, r"(?:(?<=\[)|, )(?:recv|send|F)\([^)]*\)", lambda match: "")


def repeated_action(folder: Path, rng: random.Random) -> bool:
    """An action that a row has twice."""
    return _replaced(folder, rng, r"(?:recv|send|F)\(\d+, [^)]*\)", lambda match: f"{match[0]}, {match[0]}")


def exchanged_actions(folder: Path, rng: random.Random) -> bool:
    """Two neighbours of a row, exchanged."""
    action = r"(?:recv|send|F)\(\d+, [^)]*\)"
    return _replaced(folder, rng, rf"({action}), ({action})", lambda match: f"{match[2]}, {match[1]}")


def exchanged_rows(folder: Path, rng: random.Random) -> bool:
    """Two devices, each with the row of the other."""
    text = (folder / "plan.ir").read_text()
    rows = re.findall(r"    row (\S+) (\[[^\]]*\])", text)
    pairs = [(a, b) for a in rows for b in rows if a < b and a[1] != b[1]]
    if not pairs:
        return False
    (one, own), (other, theirs) = rng.choice(pairs)
    text = text.replace(f"row {one} {own}", f"row {one} {theirs}").replace(f"row {other} {theirs}", f"row {other} {own}")
    return _edited(folder, text)


ORDER_KINDS: dict[str, Callable[[Path, random.Random], bool]] = {
    kind.__name__.replace("_", " "): kind
    for kind in (
        lost_operand, doubled_value, negated_value, clipped_value, rounded_value, exchanged_ops, exchanged_outputs,
        exchanged_inputs, other_members_weight, transposed_weight, shifted_part, filled_term, exchanged_branches, other_peer,
        other_channel, lost_message, exchanged_operands, exchanged_levels, moved_collective, other_members, lost_action,
        repeated_action, exchanged_actions, exchanged_rows,
    )
}  # fmt: skip
