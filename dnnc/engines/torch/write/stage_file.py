"""The Python file of a program: one function per phase, which calls PyTorch and nothing else.

The backward pass is one function, ``backward``, in the order of the program, unless the rows of the schedule run its phases I
and W apart: then it is ``backward_input`` and ``backward_weight``.

The functions of a microbatch are ``phase(weights, inputs, saved, comm) -> (outputs, gradients, saved)``:

- ``weights``: what the rank holds of each resource; ``inputs``: arguments of the model, and what the phase received;
  ``saved``: what earlier phases of the microbatch kept. The function takes ``saved`` over, and frees values when it is done
  with them.
- ``outputs``: what the stage sends, or returns of the model; ``gradients``: the microbatch's terms of the sums that the update
  reads; ``saved``: what later phases read.
- ``comm``: the rank's way to others (``dnnc.engines.torch.exchange``): collectives in any phase, in the update sends
  too.

``update(weights, gradients, step, comm)`` runs once a step on these sums, and puts new weights in ``weights``. Where it reads
tensors of other stages it is a generator: it yields the number of a channel, and is sent the tensor. Keys of the dicts are the
names of the IR without sigils; names of variables are made from them.

Gradients that other ranks add to are none of ``gradients``: where a phase has made the last of a bucket it hands them to
``comm.add``, which sums them over the microbatches and, in the last of a step, begins the sum over the ranks. The rest of the
backward pass runs beside it; ``comm.summed`` waits for it in the update.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from dnnc.engines.torch.statements import dead_after, identifier, prelude, statement
from dnnc.engines.torch.statements.call import NEWEST
from ir.core.attributes import Dense, attributes
from ir.core.facets import FORWARD, INPUT_GRADIENT, UPDATE, WEIGHT_GRADIENT, phase_of
from ir.core.module import Module, Program, Schedule
from ir.core.ops import Op
from ir.core.types import TensorType
from ir.layout_rules import Surroundings
from ir.ops.grads import ACCUMULATE, MASK, STEP
from ir.ops.opdefs import module_opsets

UPDATES = "update"
APART = {"forward": (FORWARD,), "backward_input": (INPUT_GRADIENT,), "backward_weight": (WEIGHT_GRADIENT,)}
TOGETHER = {"forward": (FORWARD,), "backward": (INPUT_GRADIENT, WEIGHT_GRADIENT)}
"""The functions of a microbatch, in order, and the phases that each of them is."""
_WORDS = frozenset({*APART, *TOGETHER, UPDATES, "weights", "inputs", "saved", "gradients", "step"})
_WIDTH = 90
"""Characters of a line of a list, about."""
_COLLECTIVE = ("dim", "split_dim", "concat_dim", "reduction")
_ADD, _SUMMED = "comm.add", "comm.summed"
"""What stands in a function for the sums of a bucket that begin before the update: they are no ops of the IR."""


def functions_of(schedule: Schedule | None) -> Mapping[str, tuple[str, ...]]:
    """The functions of a microbatch in programs that a schedule runs."""
    rows = schedule.rows if schedule is not None else ()
    alone = any(action.kind in (INPUT_GRADIENT, WEIGHT_GRADIENT) for _, row in rows for action in row)
    return APART if alone or not rows else TOGETHER


def program_source(module: Module, program: Program, title: str) -> str:
    """The text of the file; ``title``: its first line. Raises InvalidInput for an op that PyTorch does not have."""
    return _File(module, program).text(title)


@dataclass(slots=True)
class _File:
    """``ops`` by function, without ``comm.part``: a function finds the rank's part of a resource under the resource's name.
    ``functions``: of a microbatch, and their phases; ``masks``: values that are masks of dropouts, or parts of one."""

    module: Module
    program: Program
    functions: Mapping[str, tuple[str, ...]] = field(init=False)
    ops: dict[str, list[Op]] = field(default_factory=dict)
    around: Surroundings = field(default_factory=Surroundings)
    names: dict[str, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=lambda: set(_WORDS))
    masks: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.around = Surroundings(self.module.resources.values(), module_opsets(self.module))
        self.around.types.update((value.name, value.type) for value in self.program.args)
        self.functions = functions_of(self.module.first(Schedule))
        of = {UPDATE: UPDATES, **{phase: name for name, phases in self.functions.items() for phase in phases}}
        self.ops = {name: [] for name in (*self.functions, UPDATES)}
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
                self.ops[of[phase_of(op.facets)]].append(op)
        for sums in _buckets(self.ops[UPDATES]):
            self.begin_early(sums)
        self.in_one_order()

    def begin_early(self, sums: Sequence[Op]) -> None:
        """Let the sums of a bucket begin where its last gradient is made, if they are of gradients that nothing else of the
        update reads, all made by one function."""
        update = self.ops[UPDATES]
        means = {op.results[0].name: op for op in update if op.name == ACCUMULATE}
        found = [mean for op in sums if (mean := means.get(op.operands[0])) is not None]
        gradients = [mean.operands[0] for mean in found]
        read = Counter(name for op in update for name in op.operands)
        if len(found) < len(sums) or any(read[name] > 1 for mean in found for name in (mean.operands[0], mean.results[0].name)):
            return
        for function in self.functions:
            ops = self.ops[function]
            made = [at for at, op in enumerate(ops) for v in op.results if v.name in gradients and op.name != "comm.recv"]
            if len(made) == len(gradients):
                fields = {"channel": sums[0].get("channel"), "reduction": sums[0].get("reduction")}
                begun = attributes(**fields, microbatches=found[0].get("microbatches"))
                ops.insert(max(made) + 1, Op(_ADD, tuple(gradients), (), begun))
                results = tuple(op.results[0] for op in sums)
                gone = {id(op) for op in (*found, *sums)}
                left = [op for op in update if id(op) not in gone]
                self.ops[UPDATES] = [Op(_SUMMED, tuple(gradients), results, attributes(**fields)), *left]
                return

    def in_one_order(self) -> None:
        """A rank without microbatches begins all sums as its update starts, in the order in which the others begin them."""
        begun = [op.operands for function in self.functions for op in self.ops[function] if op.name == _ADD]
        summed = {op.operands: op for op in self.ops[UPDATES] if op.name == _SUMMED}
        others = [op for op in self.ops[UPDATES] if op.name != _SUMMED]
        self.ops[UPDATES] = [*(summed[operands] for operands in begun), *others]

    def text(self, title: str) -> str:
        helpers = prelude([op for op in self.program.ops if op.dialect != "comm"]).strip()
        lines = [f'"""{title}"""', "", helpers, "", "", 'device = torch.device("cpu")  # the rank says which is its own']
        for name, ops in self.ops.items():
            if ops:
                lines += ["", "", *(self.update() if name == UPDATES else self.function(name))]
        return "\n".join(lines) + "\n"

    def function(self, function: str) -> list[str]:
        """The lines of a function of a microbatch."""
        order = list(self.functions)
        at = order.index(function)
        ops = self.ops[function]
        body = [op for op in ops if op.name not in ("comm.recv", "comm.send")]
        read, later = _read(ops), _read(op for one in order[at + 1 :] for op in self.ops[one])
        arguments = [value.name for value in self.program.args]
        earlier = [*arguments, *_made(op for one in order[:at] for op in self.ops[one])] if at else []
        popped = [name for name in earlier if name in read]
        received = [op.results[0].name for op in ops if op.name == "comm.recv"]
        fed = received if at else [*(name for name in arguments if name in read or name in later), *received]
        weights = [name for name in read if name[:1] == "@"]
        new = [*fed, *_made(body)]
        here = [*popped, *new]
        sums = {op.operands[0] for op in self.ops[UPDATES] if op.name == ACCUMULATE}
        leaving = {value.name for value in self.program.results} | {op.operands[0] for op in ops if op.name == "comm.send"}
        outputs = [name for name in new if name in leaving]  # what is popped has left with the phase that kept it
        gradients = [name for name in new if name in sums]
        saved = [name for name in here if name in later]
        passed_on = any(name in later and name not in read for name in earlier)
        lines = [f"def {function}(weights, inputs, saved, comm):"]
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
        ops = self.ops[UPDATES]
        sums = {name for op in ops if op.name in (ACCUMULATE, _SUMMED) for name in op.operands}  # they are no variables
        return [f"def {UPDATES}(weights, gradients, step, comm):", *self.statements(ops, sums)]

    def statements(self, ops: Sequence[Op], leaving: set[str]) -> list[str]:
        """A statement for each op; a value that nothing reads any more, and that does not leave, is freed."""
        dead, lines, at = dead_after(ops, leaving), list[str](), 0
        for together in _together(ops):
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
        return f"{_list(results)} = comm.all_reduce_together({_list(operands)}, {fields})"

    def lines(self, op: Op) -> str:
        """What an op does."""
        at_hand = phase_of(op.facets) != UPDATE
        operands = [
            self.name(name) if at_hand or name[:1] == "%" else self.weight(name) if name else None for name in op.operands
        ]
        results = [self.name(value.name) for value in op.results]
        match op.name:
            case name if name == ACCUMULATE:
                shared = sum(one.operands == op.operands for one in self.ops[UPDATES] if one.name == ACCUMULATE) > 1
                count, key = op.get("microbatches"), repr(op.operands[0][1:])
                if count == 1:
                    return f"{results[0]} = gradients{f'[{key}]' if shared else f'.pop({key})'}"
                return f"{results[0]} = " + (f"gradients[{key}] / {count}" if shared else f"gradients.pop({key}).div_({count})")
            case name if name == _ADD:
                fields = "".join(f", {key}={op.get(key)!r}" for key in ("channel", "reduction", "microbatches"))
                return f"comm.add({_list(filter(None, operands))}{fields})"
            case name if name == _SUMMED:
                keys = _list(repr(name[1:]) for name in op.operands)
                fields = f"channel={op.get('channel')}, reduction={op.get('reduction')!r}"
                return f"{_list(results)} = comm.summed(gradients, {keys}, {fields})"
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


def _together(ops: Iterable[Op]) -> Iterator[list[Op]]:
    """The ops one by one, but those of a bucket together."""
    for bucket, group in groupby(ops, lambda op: op.get("bucket")):
        some = list(group)
        yield from [some] if bucket is not None else ([op] for op in some)


def _buckets(update: Iterable[Op]) -> list[list[Op]]:
    """The sums of an update over other ranks, those of a bucket together."""
    return [some for some in _together(update) if some[0].name == "comm.all_reduce"]


def _list(items: Iterable[str]) -> str:
    """The text of a list, on as many lines as it needs."""
    lines, line = list[str](), ""
    for item in items:
        if line and len(line) + len(item) > _WIDTH:
            lines, line = [*lines, f"{line},"], ""
        line = f"{line}, {item}" if line else item
    return "\n".join(["[", *(f"    {one}" for one in lines), f"    {line},", "]"]) if lines else f"[{line}]"


def _ends(op: Op) -> tuple[str, str]:
    return op.results[0].name, op.operands[0]


def _made(ops: Iterable[Op]) -> list[str]:
    return [value.name for op in ops for value in op.results if value.name]


def _read(ops: Iterable[Op]) -> dict[str, None]:
    return dict.fromkeys(name for op in ops for name in op.operands if name)


__all__ = ["UPDATES", "functions_of", "program_source"]
