"""What a person asks for: cuts and pins, from text to positions, with every fault named.

``cut`` names a tensor made by an op (with or without ``%``). ``pin`` is ``NODE=DEVICE``: the node by the id of its op (with or
without ``%``) or by its ONNX node name where that is unique.
"""

from __future__ import annotations

import difflib
from collections.abc import Container, Iterable, Mapping, Sequence

from ir.core.diagnostics import InvalidInput
from ir.core.module import Func
from ir.core.topology import Topology
from passes.graph.faults import AmbiguousOp, UnknownDevice, UnknownOp
from passes.graph.graph import reads
from passes.partition.faults import CutIsInput, CutUnread, FoldedAway, NoSuchTensor, PinForm, PinnedTwice


def _near(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else ""


def _what_became(name: str, gone: Mapping[str, str], inputs: Container[str], flag: str) -> FoldedAway | None:
    """What simplification made of a value or node, and what to do; None where it made nothing of it."""
    if name not in gone:
        return None
    heir, left = gone[name], name.removeprefix("%")
    if heir in inputs:
        return FoldedAway(left, f"the input {heir} stands for it", "inputs reach any stage")
    if heir.startswith("%"):
        return FoldedAway(left, f"{heir} stands for it", flag.format(heir[1:]))
    if heir.startswith("@"):
        return FoldedAway(left, "it is a constant", "a stage that reads a constant holds it")
    return FoldedAway(left, "nothing that is left reads it", "name one that is left")


def read_cuts(func: Func, cuts: Sequence[str], gone: Mapping[str, str]) -> frozenset[str]:
    """Names of the values to cut at. ``gone``: as ``PassContext`` has it. Raises InvalidInput naming every unknown or senseless
    one."""
    if not cuts:
        return frozenset()
    made = {value.name for op in func.ops for value in op.results}
    used = {name for op in func.ops for name in reads(op)}
    given = {value.name for value in func.args}
    found, problems = set(), []
    for text in cuts:
        name = text if text in made or text.startswith("%") else f"%{text}"
        where = f"--cut {text}"
        if name in given:
            problems.append(CutIsInput().at(where))
        elif name not in made and (became := _what_became(name, gone, given, "--cut {}")):
            problems.append(became.at(where))
        elif name not in made:
            hint = _near(name, made) or "dnnc inspect MODEL lists the tensors; canonicalize may have folded this one away"
            problems.append(NoSuchTensor(text, hint).at(where))
        elif name not in used:
            problems.append(CutUnread().at(where))
        else:
            found.add(name)
    if problems:
        raise InvalidInput(problems)
    return frozenset(found)


def read_pins(func: Func, topology: Topology, pins: Sequence[str], gone: Mapping[str, str]) -> dict[int, str]:
    """Device by position of the pinned op. ``gone``: as ``PassContext`` has it. Raises InvalidInput naming every fault."""
    if not pins:
        return {}
    by_id = {op.id: i for i, op in enumerate(func.ops)}
    by_result = {value.name: i for i, op in enumerate(func.ops) for value in op.results}
    given = {value.name for value in func.args}
    by_node: dict[str, list[int]] = {}
    for i, op in enumerate(func.ops):
        if op.location.node:
            by_node.setdefault(op.location.node, []).append(i)
    devices = [device.name for device in topology.devices]
    found: dict[int, str] = {}
    problems = []
    for text in pins:
        node, equals, device = text.rpartition("=")
        where = f"--pin {text}"
        if not equals or not node or not device:
            problems.append(PinForm(f"{func.ops[0].id[1:] if func.ops else 'x'}={devices[0]}").at(where))
            continue
        device = device.removeprefix("@")
        if device not in devices:
            hint = (
                _near(device, devices) or f"{topology.name} has {', '.join(devices[:8])}{', ...' if len(devices) > 8 else ''}"
            )
            problems.append(UnknownDevice(device, hint).at(where))
            continue
        matches = [by_id[n] for n in (node, f"%{node}") if n in by_id] or by_node.get(node, [])
        matches = matches or [by_result[n] for n in (node, f"%{node}") if n in by_result]
        heirs = [_what_became(n, gone, given, f"--pin {{}}={device}") for n in (f"%{node}", node)]
        if not matches and (became := heirs[0] or heirs[1]):
            problems.append(became.at(where))
        elif len(matches) != 1:
            near = _near(f"%{node.removeprefix('%')}", by_id) or _near(node, by_node) or "dnnc inspect MODEL lists the ops"
            problems.append(
                (AmbiguousOp(node, "name its first result instead", len(matches)) if matches else UnknownOp(node, near)).at(
                    where
                )
            )
        elif found.setdefault(matches[0], device) != device:
            problems.append(PinnedTwice(node, found[matches[0]]).at(where))
    if problems:
        raise InvalidInput(problems)
    return found
