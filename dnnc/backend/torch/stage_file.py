"""The Python file of a program: one function per phase, which calls PyTorch and nothing else.

The functions of a microbatch are ``phase(weights, inputs, saved, comm) -> (outputs, gradients, saved)``:

- ``weights``: what the rank holds of each resource; ``inputs``: arguments of the model, and what the phase received;
  ``saved``: what earlier phases of the microbatch kept. The function takes ``saved`` over, and frees values when it is done
  with them.
- ``outputs``: what the stage sends, or returns of the model; ``gradients``: the microbatch's terms of the sums that the update
  reads; ``saved``: what later phases read.
- ``comm``: the rank's way to others (``dnnc.runtime.torch.exchange``): collectives in any phase, in the update sends
  too.

``update(weights, gradients, step, comm)`` runs once a step on these sums, and puts new weights in ``weights``. Where it reads
tensors of other stages it is a generator: it yields the number of a channel, and is sent the tensor. Keys of the dicts are the
names of the IR without sigils; names of variables are made from them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from dnnc.backend.torch import dead_after, identifier, prelude, statement
from dnnc.backend.torch.call import NEWEST
from ir.attributes import Dense, attributes
from ir.facets import FORWARD, INPUT_GRADIENT, UPDATE, WEIGHT_GRADIENT, phase_of
from ir.grads import ACCUMULATE, MASK, STEP
from ir.layout_rules import Surroundings
from ir.module import Module, Program
from ir.opdefs import module_opsets
from ir.ops import Op
from ir.types import TensorType

FUNCTIONS = {
    FORWARD: "forward",
    INPUT_GRADIENT: "backward_input",
    WEIGHT_GRADIENT: "backward_weight",
    UPDATE: "update",
}
"""The function of each phase."""
MICROBATCH = (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
"""The phases of a microbatch, in order."""
_WORDS = frozenset({*FUNCTIONS.values(), "weights", "inputs", "saved", "gradients", "step"})
_COLLECTIVE = ("dim", "split_dim", "concat_dim", "reduction")


def program_source(module: Module, program: Program, title: str) -> str:
    """The text of the file; ``title``: its first line. Raises InvalidInput for an op that PyTorch does not have."""
    return _File(module, program).text(title)


@dataclass(slots=True)
class _File:
    """``ops`` by phase, without ``comm.part``: a function finds the rank's part of a resource under the resource's name.
    ``masks``: values that are masks of dropouts, or parts of one."""

    module: Module
    program: Program
    ops: dict[str, list[Op]] = field(default_factory=dict)
    around: Surroundings = field(default_factory=Surroundings)
    names: dict[str, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=lambda: set(_WORDS))
    masks: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.around = Surroundings(self.module.resources.values(), module_opsets(self.module))
        self.around.types.update((value.name, value.type) for value in self.program.args)
        self.ops = {phase: [] for phase in FUNCTIONS}
        parts: dict[str, str] = {}
        for op in self.program.ops:
            self.around.see(op)
            if op.name == MASK or (op.name == "onnx.Slice" and op.operands[0] in self.masks):
                self.masks.add(op.results[0].name)
            if op.name == "comm.part":
                parts[op.results[0].name] = op.operands[0]
                self.around.types[op.operands[0]] = op.results[0].type
            else:
                op = replace(op, operands=tuple(parts.get(name, name) for name in op.operands))
                self.ops[phase_of(op.facets)].append(op)

    def text(self, title: str) -> str:
        helpers = prelude([op for op in self.program.ops if op.dialect != "comm"]).strip()
        lines = [f'"""{title}"""', "", helpers, "", "", 'device = torch.device("cpu")  # the rank says which is its own']
        for phase, ops in self.ops.items():
            if ops:
                lines += ["", "", *(self.update() if phase == UPDATE else self.function(phase))]
        return "\n".join(lines) + "\n"

    def function(self, phase: str) -> list[str]:
        """The lines of the function of one phase of a microbatch."""
        at = MICROBATCH.index(phase)
        ops = self.ops[phase]
        body = [op for op in ops if op.name not in ("comm.recv", "comm.send")]
        read, later = _read(ops), _read(op for one in MICROBATCH[at + 1 :] for op in self.ops[one])
        arguments = [value.name for value in self.program.args]
        earlier = [*arguments, *_made(op for one in MICROBATCH[:at] for op in self.ops[one])] if at else []
        popped = [name for name in earlier if name in read]
        received = [op.results[0].name for op in ops if op.name == "comm.recv"]
        fed = received if at else [*(name for name in arguments if name in read or name in later), *received]
        weights = [name for name in read if name[:1] == "@"]
        new = [*fed, *_made(body)]
        here = [*popped, *new]
        sums = {op.operands[0] for op in self.ops[UPDATE] if op.name == ACCUMULATE}
        leaving = {value.name for value in self.program.results} | {op.operands[0] for op in ops if op.name == "comm.send"}
        outputs = [name for name in new if name in leaving]  # what is popped has left with the phase that kept it
        gradients = [name for name in new if name in sums]
        saved = [name for name in here if name in later]
        passed_on = any(name in later and name not in read for name in earlier)
        lines = [f"def {FUNCTIONS[phase]}(weights, inputs, saved, comm):"]
        lines += [f"    {self.name(name)} = saved.pop({name[1:]!r})" for name in popped]
        lines += [f"    {self.name(name)} = inputs[{name[1:]!r}]" for name in fed]
        statements = self.statements(body, {*outputs, *gradients, *saved})
        said = set(re.findall(r"\w+", "\n".join(statements)))  # small constants are written into the statements
        lines += [f"    {self.name(name)} = weights[{name[1:]!r}]" for name in weights if self.name(name) in said]
        lines += statements
        kept = self.dict(saved, ["**saved"] if passed_on else [])
        return [*lines, f"    return {self.dict(outputs)}, {self.dict(gradients)}, {kept}"]

    def update(self) -> list[str]:
        """The lines of the function that runs once a step."""
        sums = {op.operands[0] for op in self.ops[UPDATE] if op.name == ACCUMULATE}  # they are no variables
        return ["def update(weights, gradients, step, comm):", *self.statements(self.ops[UPDATE], sums)]

    def statements(self, ops: Sequence[Op], leaving: set[str]) -> list[str]:
        """A statement for each op; a value that nothing reads any more, and that does not leave, is freed."""
        dead, lines, at = dead_after(ops, leaving), list[str](), 0
        for bucket, group in groupby(ops, lambda op: op.get("bucket")):
            some = list(group)
            for together in [some] if bucket is not None and len(some) > 1 else [[op] for op in some]:
                said = self.lines(together[0]) if len(together) == 1 else self.together(together)
                lines += [f"    {line}" for line in said.splitlines()]
                names = [self.name(name) for one in dead[at : at + len(together)] for name in one]
                at += len(together)
                if names and at < len(ops):
                    lines.append(f"    del {', '.join(names)}")
        return lines

    def together(self, ops: Sequence[Op]) -> str:
        """The sums of a bucket."""
        results, operands = ([self.name(name) for name in names] for names in zip(*map(_ends, ops), strict=True))
        fields = f"channel={ops[0].get('channel')}, reduction={ops[0].get('reduction')!r}"
        return f"{', '.join(results)} = comm.all_reduce_together([{', '.join(operands)}], {fields})"

    def lines(self, op: Op) -> str:
        """What an op does."""
        at_hand = phase_of(op.facets) != UPDATE
        operands = [
            self.name(name) if at_hand or name[:1] == "%" else self.weight(name) if name else None for name in op.operands
        ]
        results = [self.name(value.name) for value in op.results]
        match op.name:
            case name if name == ACCUMULATE:
                shared = sum(one.operands == op.operands for one in self.ops[UPDATE] if one.name == ACCUMULATE) > 1
                count, key = op.get("microbatches"), repr(op.operands[0][1:])
                if count == 1:
                    return f"{results[0]} = gradients{f'[{key}]' if shared else f'.pop({key})'}"
                return f"{results[0]} = " + (f"gradients[{key}] / {count}" if shared else f"gradients.pop({key}).div_({count})")
            case name if name == STEP:
                return f"{results[0]} = step"
            case "comm.member":
                return self.member(op, results[0])
            case "onnx.Slice" if len(op.operands) == 4 and op.operands[1] not in self.around.numbers:
                return f"{results[0]} = {self.part(op, operands)}{self.copy(op)}"
            case "comm.recv":
                return f"{results[0]} = yield {op.get('channel')}"
            case "comm.send":
                return f"comm.send({operands[0]}, {op.get('channel')})"
            case "comm.slice" | "comm.term" | "comm.reshard":
                raise AssertionError(f"{op.name} stands in no program")
            case _ if op.dialect == "comm":
                fields = "".join(f", {key}={op.get(key)!r}" for key in _COLLECTIVE if op.get(key) is not None)
                kind = op.name.removeprefix("comm.")
                return f"{results[0]} = comm.{kind}({operands[0]}, channel={op.get('channel')}{fields})"
            case _:
                return self.statement(op, operands, results) + self.copy(op)

    def copy(self, op: Op) -> str:
        """Behind what takes a part of a mask: a view, when it is kept, would keep the whole mask."""
        return ".clone()" if op.name == "onnx.Slice" and op.operands[0] in self.masks else ""

    def member(self, op: Op, result: str) -> str:
        """The entry of the rank in a constant that has one for each device of the program."""
        values = op.get("values")
        assert isinstance(values, Dense)
        whole = Op("onnx.Constant", (), (replace(op.results[0], type=values.type),), attributes(value=values))
        return f"{self.statement(whole, [], [result])}\n{result} = {result}[comm.place]"

    def part(self, op: Op, operands: Sequence[str | None]) -> str:
        """A slice along one axis that begins where the rank's part does (``comm.member``)."""
        (axis,), made = self.around.numbers[op.operands[3]], op.results[0].type
        assert isinstance(made, TensorType)
        assert made.shape is not None
        return f"{operands[0]}.narrow({int(axis)}, int({operands[1]}), {made.shape[int(axis)]})"

    def statement(self, op: Op, operands: Sequence[str | None], results: Sequence[str]) -> str:
        opset = (self.around.opsets or {}).get("onnx", NEWEST)
        return statement(op, operands, results, self.around.types, self.around.numbers, opset)

    def weight(self, name: str) -> str:
        return f"weights[{name[1:]!r}]"

    def name(self, value: str) -> str:
        """The variable that holds a value of the IR."""
        if not value:
            return ""
        if value not in self.names:
            self.names[value] = identifier(value, self.taken)
        return self.names[value]

    def dict(self, values: Iterable[str], first: Sequence[str] = ()) -> str:
        return "{" + ", ".join([*first, *(f"{name[1:]!r}: {self.name(name)}" for name in values)]) + "}"


def _ends(op: Op) -> tuple[str, str]:
    return op.results[0].name, op.operands[0]


def _made(ops: Iterable[Op]) -> list[str]:
    return [value.name for op in ops for value in op.results if value.name]


def _read(ops: Iterable[Op]) -> dict[str, None]:
    return dict.fromkeys(name for op in ops for name in op.operands if name)


__all__ = ["FUNCTIONS", "program_source"]
