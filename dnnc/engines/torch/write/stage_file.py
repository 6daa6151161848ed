"""Writes the Python file of a program: a few functions that call PyTorch and nothing else.

The functions of a microbatch are ``forward`` and ``backward``, or ``forward``, ``backward_input`` and ``backward_weight`` if
the schedule runs the phases I (input gradients) and W (weight gradients) separately. Each has the signature
``function(weights, inputs, saved, comm) -> (outputs, gradients, saved)``:

- ``weights``: the rank's part of each resource; ``inputs``: arguments of the model and received tensors; ``saved``: values of
  earlier functions of the same microbatch, which the function pops so that they are freed after their last use.
- ``outputs``: tensors to send, and results of the model; ``gradients``: this microbatch's weight gradients, which the trainer
  sums over the microbatches; ``saved``: values that later functions of the microbatch read.
- ``comm``: communication with other ranks (``dnnc.engines.torch.exchange``): collectives, and in the update also sends.

``update(weights, gradients, step, comm)`` runs once per step, on the sums of the gradients, and updates ``weights`` in place.
If it reads tensors of other stages, it is a generator: it yields the number of a channel and is sent the tensor received there.
Keys of all dicts are names of the IR without sigils; names of variables are derived from them.

Gradients whose all-reduce over ranks starts before the update (``start_early``) are not returned in ``gradients``: as soon as a
function has computed those of a bucket, it calls ``comm.add``, which adds them up over the microbatches and, in the last one,
starts the all-reduce. The rest of the backward pass runs meanwhile; ``comm.summed`` in the update waits for the result.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from dnnc.engines.torch.statements import dead_after, identifier, prelude, statement
from dnnc.engines.torch.statements.call import NEWEST
from dnnc.engines.torch.write.recurrent import with_whole_gradients
from ir.core.attributes import Dense, attributes
from ir.core.facets import FORWARD, INPUT_GRADIENT, UPDATE, WEIGHT_GRADIENT, phase_of
from ir.core.module import Module, Program, Schedule, Stage
from ir.core.ops import Op
from ir.core.types import TensorType
from ir.layout_rules import Surroundings
from ir.ops.grads import ACCUMULATE, DRAWS, STEP
from ir.ops.opdefs import module_opsets

UPDATES = "update"
SPLIT_BACKWARD = {"forward": (FORWARD,), "backward_input": (INPUT_GRADIENT,), "backward_weight": (WEIGHT_GRADIENT,)}
WHOLE_BACKWARD = {"forward": (FORWARD,), "backward": (INPUT_GRADIENT, WEIGHT_GRADIENT)}
"""The functions of a microbatch, in order -> the phases that each contains."""
_RESERVED = frozenset({*SPLIT_BACKWARD, *WHOLE_BACKWARD, UPDATES, "weights", "inputs", "saved", "gradients", "step"})
"""Names of functions and parameters, which no variable may have."""
_WIDTH = 90
"""Approximate number of characters in a line of a list."""
_COLLECTIVE = ("dim", "split_dim", "concat_dim", "reduction")
_ADD, _SUMMED = "comm.add", "comm.summed"
"""Names of two ops that exist only here: they replace the all-reduces of a bucket that start before the update."""


def functions_of(schedule: Schedule | None) -> Mapping[str, tuple[str, ...]]:
    """The functions of a microbatch, in order -> the phases that each contains, in the programs that ``schedule`` runs."""
    rows = schedule.rows if schedule is not None else ()
    split = any(action.kind in (INPUT_GRADIENT, WEIGHT_GRADIENT) for _, row in rows for action in row)
    return SPLIT_BACKWARD if split or not rows else WHOLE_BACKWARD


def program_source(module: Module, program: Program, title: str) -> str:
    """The text of the file. ``title``: its first line. Raises InvalidInput for an op that cannot be written as PyTorch."""
    return _File(module, program).text(title)


def variables_of(module: Module, program: Program) -> dict[str, str]:
    """The variables of the file, by the names in the IR of the values that they hold."""
    file = _File(module, program)
    file.text("")
    return file.names


def title_of(stage: Stage, program: Program) -> str:
    """The first line of the file of a program in a build."""
    return f"Stage {stage.index} on {', '.join(program.devices)}: {program.name} of plan.ir, as functions of PyTorch."


@dataclass(slots=True)
class _File:
    """``functions``: those of a microbatch (``functions_of``). ``ops``: the ops of each function and of the update, without
    ``comm.part``: ``weights`` has the rank's part of a resource under the resource's name. ``names``: name in the IR -> Python
    variable; ``taken``: Python names in use; ``masks``: the values that are dropout masks or slices of one."""

    module: Module
    program: Program
    functions: Mapping[str, tuple[str, ...]] = field(init=False)
    ops: dict[str, list[Op]] = field(default_factory=dict)
    surroundings: Surroundings = field(default_factory=Surroundings)
    names: dict[str, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=lambda: set(_RESERVED))
    masks: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.surroundings = Surroundings(self.module.resources.values(), module_opsets(self.module))
        self.surroundings.types.update((value.name, value.type) for value in self.program.args)
        self.functions = functions_of(self.module.first(Schedule))
        function_of = {UPDATE: UPDATES, **{phase: name for name, phases in self.functions.items() for phase in phases}}
        self.ops = {name: [] for name in (*self.functions, UPDATES)}
        parts: dict[str, str] = {}
        for op in self.program.ops:
            self.surroundings.see(op)
            if op.name in DRAWS or (op.name == "onnx.Slice" and op.operands[0] in self.masks):
                self.masks.add(op.results[0].name)
            if op.name == "comm.part":
                parts[op.results[0].name] = op.operands[0]
                self.surroundings.types[op.operands[0]] = op.results[0].type
            else:
                op = replace(op, operands=tuple(parts.get(name, name) for name in op.operands))
                self.ops[function_of[phase_of(op.facets)]].append(op)
        results = {value.name for value in self.program.results}
        for name in self.functions:
            others = _read(op for other, ops in self.ops.items() if other != name for op in ops)
            sent = _read(op for op in self.ops[name] if op.dialect == "comm")
            self.ops[name] = with_whole_gradients(self.ops[name], {*others, *sent, *results}, self.surroundings)
        for reductions in _bucket_reductions(self.ops[UPDATES]):
            self.start_early(reductions)
        self.order_as_started()

    def start_early(self, reductions: Sequence[Op]) -> None:
        """Moves the start of a bucket's all-reduces from the update to right after the bucket's last gradient.

        Nothing is moved unless one function computes all its gradients and the update reads them for nothing else."""
        update = self.ops[UPDATES]
        mean_by_result = {op.results[0].name: op for op in update if op.name == ACCUMULATE}
        means = [mean for op in reductions if (mean := mean_by_result.get(op.operands[0])) is not None]
        gradients = [mean.operands[0] for mean in means]
        reads = Counter(name for op in update for name in op.operands)
        shared = any(reads[name] > 1 for mean in means for name in (mean.operands[0], mean.results[0].name))
        if len(means) < len(reductions) or shared:
            return
        for function in self.functions:
            ops = self.ops[function]
            computed = [i for i, op in enumerate(ops) for v in op.results if v.name in gradients and op.name != "comm.recv"]
            if len(computed) == len(gradients):
                fields = {"channel": reductions[0].get("channel"), "reduction": reductions[0].get("reduction")}
                start = attributes(**fields, microbatches=means[0].get("microbatches"))
                ops.insert(max(computed) + 1, Op(_ADD, tuple(gradients), (), start))
                results = tuple(op.results[0] for op in reductions)
                replaced = {id(op) for op in (*means, *reductions)}
                others = [op for op in update if id(op) not in replaced]
                self.ops[UPDATES] = [Op(_SUMMED, tuple(gradients), results, attributes(**fields)), *others]
                return

    def order_as_started(self) -> None:
        """Waits in the update for early all-reduces in the order of their start: a rank without microbatches starts each of
        them only there, and all ranks must start them in the same order."""
        started = [op.operands for function in self.functions for op in self.ops[function] if op.name == _ADD]
        summed = {op.operands: op for op in self.ops[UPDATES] if op.name == _SUMMED}
        others = [op for op in self.ops[UPDATES] if op.name != _SUMMED]
        self.ops[UPDATES] = [*(summed[operands] for operands in started), *others]

    def text(self, title: str) -> str:
        helpers = prelude([op for ops in self.ops.values() for op in ops if op.dialect != "comm"]).strip()
        lines = [f'"""{title}"""', "", helpers, "", "", 'device = torch.device("cpu")  # replaced by the trainer']
        for name, ops in self.ops.items():
            if ops:
                lines += ["", "", *(self.update() if name == UPDATES else self.microbatch_function(name))]
        return "\n".join(lines) + "\n"

    def microbatch_function(self, function: str) -> list[str]:
        """The lines of a function that runs once per microbatch."""
        order = list(self.functions)
        position = order.index(function)
        ops = self.ops[function]
        body = [op for op in ops if op.name not in ("comm.recv", "comm.send")]
        read_here, read_later = _read(ops), _read(op for later in order[position + 1 :] for op in self.ops[later])
        arguments = [value.name for value in self.program.args]
        from_before = [*arguments, *_computed(op for earlier in order[:position] for op in self.ops[earlier])]
        earlier_values = from_before if position else []
        popped = [name for name in earlier_values if name in read_here]
        received = [op.results[0].name for op in ops if op.name == "comm.recv"]
        used_arguments = [name for name in arguments if name in read_here or name in read_later]
        inputs = received if position else [*used_arguments, *received]
        weights = [name for name in read_here if name[:1] == "@"]
        new = [*inputs, *_computed(body)]
        accumulated = {op.operands[0] for op in self.ops[UPDATES] if op.name == ACCUMULATE}
        leaving = {value.name for value in self.program.results} | {op.operands[0] for op in ops if op.name == "comm.send"}
        outputs = [name for name in new if name in leaving]  # a popped value was an output of the function that computed it
        gradients = [name for name in new if name in accumulated]
        saved = [name for name in (*popped, *new) if name in read_later]
        passed_on = any(name in read_later and name not in read_here for name in earlier_values)
        lines = [f"def {function}(weights, inputs, saved, comm):"]
        lines += [f"    {self.name(name)} = saved.pop({name[1:]!r})" for name in popped]
        lines += [f"    {self.name(name)} = inputs[{name[1:]!r}]" for name in inputs]
        statements = self.statements(body, {*outputs, *gradients, *saved})
        used = set(re.findall(r"\w+", "\n".join(statements)))  # not small constants, whose elements are in the statements
        lines += [f"    {self.name(name)} = weights[{name[1:]!r}]" for name in weights if self.name(name) in used]
        lines += statements
        saved_dict = self.dict(saved, ["**saved"] if passed_on else [])
        return [*lines, f"    return {self.dict(outputs)}, {self.dict(gradients)}, {saved_dict}"]

    def update(self) -> list[str]:
        """The lines of the function that runs once per step."""
        ops = self.ops[UPDATES]
        sums = {name for op in ops if op.name in (ACCUMULATE, _SUMMED) for name in op.operands}  # in a dict, not variables
        return [f"def {UPDATES}(weights, gradients, step, comm):", *self.statements(ops, sums)]

    def statements(self, ops: Sequence[Op], live_out: set[str]) -> list[str]:
        """The statements of the ops, with a ``del`` of each value after its last use, except those in ``live_out``."""
        dead, lines, end = dead_after(ops, live_out), list[str](), 0
        for bucket in _by_bucket(ops):
            text = self.op_statement(bucket[0]) if len(bucket) == 1 else self.bucket_statement(bucket)
            lines += [f"    {line}" for line in text.splitlines()]
            start, end = end, end + len(bucket)
            names = [self.name(name) for values in dead[start:end] for name in values]
            if names and end < len(ops):
                lines.append(f"    del {', '.join(names)}")
        return lines

    def bucket_statement(self, ops: Sequence[Op]) -> str:
        """One statement for the all-reduces of a bucket."""
        results = [self.name(op.results[0].name) for op in ops]
        operands = [self.name(op.operands[0]) for op in ops]
        fields = f"channel={ops[0].get('channel')}, reduction={ops[0].get('reduction')!r}"
        return f"{_list(results)} = comm.all_reduce_together({_list(operands)}, {fields})"

    def op_statement(self, op: Op) -> str:
        """The statement of an op; a few ops take several lines."""
        weights_are_variables = phase_of(op.facets) != UPDATE
        operands = [
            self.name(name) if weights_are_variables or name[:1] == "%" else self.weight(name) if name else None
            for name in op.operands
        ]
        results = [self.name(value.name) for value in op.results]
        match op.name:
            case name if name == ACCUMULATE:
                shared = sum(other.operands == op.operands for other in self.ops[UPDATES] if other.name == ACCUMULATE) > 1
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
            case "onnx.Slice" if len(op.operands) == 4 and op.operands[1] not in self.surroundings.numbers:
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
        """The text to append to a slice of a dropout mask: a view of the mask, once saved, would keep the whole mask alive."""
        return ".clone()" if op.name == "onnx.Slice" and op.operands[0] in self.masks else ""

    def member(self, op: Op, result: str) -> str:
        """``comm.member``: the rank's entry of a constant with one entry for each device of the program."""
        values = op.get("values")
        assert isinstance(values, Dense)
        constant = Op("onnx.Constant", (), (replace(op.results[0], type=values.type),), attributes(value=values))
        return f"{self.statement(constant, [], [result])}\n{result} = {result}[comm.place]"

    def part(self, op: Op, operands: Sequence[str | None]) -> str:
        """A slice along one axis whose start is computed by ``comm.member``: the rank's part of a tensor."""
        (axis,), type_ = self.surroundings.numbers[op.operands[3]], op.results[0].type
        assert isinstance(type_, TensorType)
        assert type_.shape is not None
        return f"{operands[0]}.narrow({int(axis)}, int({operands[1]}), {type_.shape[int(axis)]})"

    def statement(self, op: Op, operands: Sequence[str | None], results: Sequence[str]) -> str:
        opset = (self.surroundings.opsets or {}).get("onnx", NEWEST)
        return statement(op, operands, results, self.surroundings.types, self.surroundings.numbers, opset)

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


def _by_bucket(ops: Iterable[Op]) -> Iterator[list[Op]]:
    """The ops in order, in lists: one list per bucket, and one for each op without a bucket."""
    for bucket, group in groupby(ops, lambda op: op.get("bucket")):
        members = list(group)
        yield from [members] if bucket is not None else ([op] for op in members)


def _bucket_reductions(update: Iterable[Op]) -> list[list[Op]]:
    """The all-reduces of an update, one list per bucket."""
    return [ops for ops in _by_bucket(update) if ops[0].name == "comm.all_reduce"]


def _list(items: Iterable[str]) -> str:
    """A Python list display, with a line break about every ``_WIDTH`` characters."""
    lines, line = list[str](), ""
    for item in items:
        if line and len(line) + len(item) > _WIDTH:
            lines, line = [*lines, f"{line},"], ""
        line = f"{line}, {item}" if line else item
    return "\n".join(["[", *(f"    {text}" for text in lines), f"    {line},", "]"]) if lines else f"[{line}]"


def _computed(ops: Iterable[Op]) -> list[str]:
    return [value.name for op in ops for value in op.results if value.name]


def _read(ops: Iterable[Op]) -> dict[str, None]:
    return dict.fromkeys(name for op in ops for name in op.operands if name)
