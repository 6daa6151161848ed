"""Runs the row of one rank in training, action by action.

``F``, ``I``, ``W`` call the functions of the stage's file, ``B`` calls those of the backward pass, ``U`` the update. ``recv``
waits for a tensor that was asked for ``AHEAD`` receives before; ``send`` does not wait. A value that a phase keeps for a later
one lives in ``saved`` of its stage and microbatch, until that phase takes it.

Updates that read tensors of other stages run when all others of the rank have: each goes on when its tensor is there, the one
that waits for the lowest channel first. Channels are numbered in the order of the program, so the lowest for which any rank
waits has a maker that waits for none.

Rows without a flush (``ir/ops/rows.py``, rule 7) go on from step to step. A stage keeps the tensors of weights with which a
step began until its update; an update that would write into tensors that steps still use puts copies in their place first.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from operator import itemgetter
from typing import Any

import torch

from dnnc.build.training import Step, file_name, tensor_type
from dnnc.data.samples import Microbatches
from dnnc.engines.torch.checkpoint import from_array
from dnnc.engines.torch.exchange import Exchange, Network, Pending, torch_dtype
from dnnc.engines.torch.watch.nonfinite import Search, looks_finite, word
from dnnc.engines.torch.watch.scale import Scale
from dnnc.engines.torch.write.stage_file import UPDATES, functions_of
from ir.core.facets import FORWARD, INPUT_GRADIENT, UPDATE, WEIGHT_GRADIENT, phase_of
from ir.core.module import Action, Program, Stage
from ir.ops.grads import ACCUMULATE, ASSIGN
from ir.ops.rows import SHOWN_STEPS, Places, stream

AHEAD = 2
"""Tensors that a rank asks for before it needs them, so that they arrive while it computes."""
_PHASES = {"F": (FORWARD,), "I": (INPUT_GRADIENT,), "W": (WEIGHT_GRADIENT,), "B": (INPUT_GRADIENT, WEIGHT_GRADIENT)}


@dataclass(frozen=True, slots=True)
class Span:
    """One action as it was measured: seconds since the step began, or the first step where there is no flush."""

    action: Action
    start: float
    end: float


@dataclass(slots=True)
class Running:
    """A stage on this rank: its functions and what is alive. ``sent``: the last channel of each tensor that it sends;
    ``reads``: what each function is the first to read of what arrives; ``replaced``: weights of its passes that its update
    writes; ``versions``: the weights of each step under way, of rows without a flush; ``begun``: what the functions of each
    microbatch under way received, and results of their collectives; ``masks``: outputs that hold minus infinity as masks do."""

    stage: Stage
    functions: Mapping[str, Callable[..., Any]]
    comm: Exchange
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    sent: Mapping[str, int]
    reads: Mapping[str, tuple[str, ...]]
    replaced: tuple[str, ...]
    received: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    saved: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    outputs: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    versions: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    begun: dict[int, dict[str, tuple[dict[str, torch.Tensor], dict[int, torch.Tensor]]]] = field(default_factory=dict)
    masks: set[str] = field(default_factory=set)

    def renew(self, weights: dict[str, torch.Tensor], step: int) -> None:
        """End a step's use of its weights, and put copies in the place of those that the update writes and other steps use."""
        self.versions.pop(step, None)
        for name in self.replaced:
            if any(version[name] is weights[name] for version in self.versions.values()):
                weights[name] = weights[name].clone()


class Trainer:
    """One rank of a training. ``weights``: what it holds of each resource, by name; stages that share a weight on this rank
    share its tensor. ``spans``: what was measured of the last step, or the last few where there is no flush."""

    def __init__(
        self,
        step: Step,
        rank: int,
        load: Callable[[str], dict[str, Any]],
        weights: dict[str, torch.Tensor],
        network: Network,
        mark: Callable[[str], None] = lambda doing: None,
        *,
        finite: bool = False,
    ) -> None:
        """``finite``: a result that is not finite raises InvalidInput, which names the op that made it. ``load`` returns the
        functions that a program of the build defines, by the program's file name; ``mark`` is called before each action with
        its description."""
        self.step, self.rank, self.network, self.weights, self.mark = step, rank, network, weights, mark
        self.finite = finite
        self.scale = Scale.of(step, rank, weights)
        self.row, self.flush, self.microbatches = step.row(rank), not step.schedule.periodic, step.microbatches
        self.phases = functions_of(step.schedule)
        self.spans: deque[Span] = deque(maxlen=SHOWN_STEPS * max(1, len(self.row)))
        self.sums: dict[int, float] = {}
        self.updating: dict[int, tuple[Running, Generator[int, Any, None]]] = {}  # by the channel that each waits for
        self.stages: dict[int, Running] = {}
        for stage in step.stages_of(rank):
            program, _ = step.program(stage, rank)
            functions = load(file_name(step, stage, program))
            functions["device"] = network.device
            arguments = tuple(value.name[1:] for value in program.args)
            results = tuple(value.name[1:] for value in program.results)
            sends = [action.channel for action in self.row if action.kind == "send" and action.stage == stage.index]
            sent = {step.channels[channel].sent[1:]: channel for channel in sends if channel is not None}
            arrives = [(phase_of(op.facets), op.results[0].name[1:]) for op in program.ops if op.name == "comm.recv"]
            reads = {key: tuple(name for at, name in arrives if at in phases) for key, phases in self.phases.items()}
            comm = Exchange.of(network, stage, self._passes if finite else None)
            read = {name for op in program.ops if phase_of(op.facets) != UPDATE for name in op.operands}
            assigned = [(op.operands[0], phase_of(op.facets)) for op in program.ops if op.name == ASSIGN]
            moved = {name for name, phase in assigned if phase == FORWARD}  # averages: all passes move one tensor
            replaced = tuple(name[1:] for name, phase in assigned if phase == UPDATE and name in read - moved)
            self.stages[stage.index] = Running(stage, functions, comm, arguments, results, sent, reads, replaced)

    def run(self, first: int, count: int, data: Microbatches) -> Iterator[tuple[int, float]]:
        """Do ``count`` steps from number ``first`` on, counted from 0, on microbatches of ``data``. Yields the number of each
        step when this rank has done its part, with the sum over the microbatches of the results that it computes first. Behind
        the last one nothing is under way."""
        if not self.row:  # one of more replicas than microbatches, of weights that are frozen
            yield from ((number, 0.0) for number in range(first, first + count))
            return
        receives = (action for action, _ in self._actions(first, count) if action.kind == "recv" and not self._stays(action))
        asked: deque[Pending] = deque()
        last, ended, began = self._last(), True, 0.0
        self.network.slowed.begin()
        for action, base in self._actions(first, count):
            number = (base + (action.microbatch or 0)) // self.microbatches
            start = time.perf_counter()
            if ended and (self.flush or not began):
                self.spans.clear()
                began = start
            self.mark(_words(action, number + 1))
            if action.kind == "recv" and self._stays(action):
                self._arrive(action, self.network.here.pop((action.channel or 0, action.microbatch or 0)))
            elif action.kind == "recv":
                asked.extend(self._ask(one) for one in islice(receives, AHEAD + 1 - len(asked)))
                tensor = self.network.arrived(asked.popleft())
                self.network.send(tensor, self.step.channels[action.channel or 0], action.microbatch or 0)  # passes it on
                self._arrive(action, tensor)
            elif action.kind == "send":
                self._send(action)
            elif action.kind == "U":
                self._update(self.stages[action.stage], number)
            else:
                self._compute(action, base, data)
            ended = (action.kind, action.stage, action.channel, (action.microbatch or 0) % self.microbatches) == last
            if ended and (self.flush or number == first + count - 1):
                self._finish()
                if self.finite:
                    self.scale.require_taken(number)
            self.network.slowed.wait()
            self.spans.append(Span(action, start - began, time.perf_counter() - began))
            if ended:
                yield number, self.sums.pop(number, 0.0)

    def _actions(self, first: int, count: int) -> Iterator[tuple[Action, int]]:
        """What the rank does in these steps, each with the number, in the data, of the microbatch that its row calls 0."""
        if self.flush:
            return ((action, number * self.microbatches) for number in range(first, first + count) for action in self.row)
        actions = stream(self.row, 0, count * self.microbatches, self.microbatches)
        return ((replace(action, microbatch=number), first * self.microbatches) for action, number in actions)

    def _last(self) -> tuple[str, int, int | None, int]:
        """Kind, stage, channel and microbatch of the last action of a step."""
        places = Places.in_row(self.row, self.microbatches)
        action, _ = max(places.at.items(), key=itemgetter(1))
        return action.kind, action.stage, action.channel, action.microbatch or 0

    def _stays(self, action: Action) -> bool:
        """Whether the tensor of a receive is made on this rank."""
        assert action.channel is not None
        return self.network.stays(self.step.channels[action.channel], action.microbatch or 0)

    def _ask(self, action: Action) -> Pending:
        assert action.channel is not None
        return self.network.receive(self.step.channels[action.channel], action.microbatch or 0)

    def _arrive(self, action: Action, tensor: torch.Tensor) -> None:
        assert action.channel is not None
        running = self.stages[action.stage]
        name = self.step.channels[action.channel].name[1:]
        running.received.setdefault(action.microbatch or 0, {})[name] = tensor

    def _send(self, action: Action) -> None:
        assert action.channel is not None
        channel = self.step.channels[action.channel]
        running, name = self.stages[action.stage], channel.sent[1:]
        outputs = running.outputs[action.microbatch or 0]
        last = action.channel == running.sent[name]
        self.network.send(outputs.pop(name) if last else outputs[name], channel, action.microbatch or 0)
        if not outputs:
            del running.outputs[action.microbatch or 0]

    def _compute(self, action: Action, base: int, data: Microbatches) -> None:
        """A phase of a microbatch, or the two of its backward pass."""
        running, microbatch = self.stages[action.stage], action.microbatch or 0
        number, weights = (base + microbatch) // self.microbatches, self.weights
        if not self.flush and running.replaced:
            weights = running.versions.setdefault(number, {**self.weights})
        for key, phases in self.phases.items():
            function = running.functions.get(key)
            if function is None or phases[0] not in _PHASES[action.kind]:
                continue
            arrived = running.received.get(microbatch, {})
            inputs = {name: arrived.pop(name) for name in running.reads[key]}
            if self.finite:
                running.comm.heard.clear()
                running.begun.setdefault(microbatch, {})[key] = dict(inputs), {}
            if FORWARD in phases:
                inputs.update(self._arguments(running, base + microbatch, data))
            outputs, gradients, saved = function(weights, inputs, running.saved.pop(microbatch, {}), running.comm)
            if self.finite:
                running.begun[microbatch][key][1].update(running.comm.heard)
                self._require_finite(running, key, base, microbatch, weights, (outputs, gradients), data)
            held = (*outputs.values(), *saved.values(), *inputs.values())
            accumulate(running.gradients, gradients, chain(held, self._held()))
            self.made(running, base + microbatch, outputs)
            if saved:
                running.saved[microbatch] = saved
            if sent := {name: value for name, value in outputs.items() if name in running.sent}:
                running.outputs.setdefault(microbatch, {}).update(sent)
            if not arrived:
                running.received.pop(microbatch, None)

    def made(self, running: Running, number: int, outputs: Mapping[str, torch.Tensor]) -> None:
        """Is called with what a function of a stage made of the microbatch ``number``: adds up the losses of each step."""
        step, microbatch = divmod(number, self.microbatches)
        for name in running.results:
            if name in outputs and self.step.takers(running.stage, microbatch)[0] == self.rank:
                self.sums[step] = self.sums.get(step, 0.0) + float(outputs[name])

    def _arguments(self, running: Running, number: int, data: Microbatches) -> dict[str, torch.Tensor]:
        """The arguments of the model that a stage reads, of a microbatch of this number in the data."""
        if not running.arguments:
            return {}
        arrays = data.microbatch(number)
        return {name: from_array(arrays[name]).to(self.network.device) for name in running.arguments}

    def _require_finite(
        self,
        running: Running,
        key: str,
        base: int,
        microbatch: int,
        weights: Mapping[str, torch.Tensor],
        results: tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]],
        data: Microbatches,
    ) -> None:
        """Raises InvalidInput where results of a phase, ``outputs`` and ``gradients``, are not finite, and names the op. Of a
        scaled loss gradients may not be: then the update skips the step."""
        outputs, gradients = results
        if FORWARD not in self.phases[key] and self.scale.excuses:
            outputs, gradients = {}, {}
        words = {name: said for name, tensor in outputs.items() if name not in running.masks and (said := word(tensor))}
        wrong = [name for name, said in words.items() if said != "-infinity" or FORWARD not in self.phases[key]]
        wrong += [name for name, tensor in gradients.items() if not looks_finite(tensor)]
        masks = [name for name in words if name not in wrong]
        if wrong or masks or running.comm.unfinite:
            phases = []
            for name, (received, heard) in running.begun[microbatch].items():
                more = self._arguments(running, base + microbatch, data) if FORWARD in self.phases[name] else {}
                phases.append((running.functions[name], {**received, **more}, heard))
            program, place = self.step.program(running.stage, self.rank)
            number, within = divmod(base + microbatch, self.microbatches)
            search = Search(self.step.module, program, place, running.stage.index, number + 1, within, phases, weights)
            if wrong or running.comm.unfinite:
                summed = (running.comm.ops[channel].operands[0][1:] for channel in running.comm.unfinite)
                search.refuse([*wrong, *summed])
            if not any(op.name == ASSIGN and phase_of(op.facets) == FORWARD for op in program.ops):  # it would move averages
                search.refuse_computed(masks)
            running.masks.update(masks)
        if key == self.last_function(running):
            del running.begun[microbatch]

    def _passes(self, gradient: torch.Tensor) -> bool:
        """Whether a gradient that is summed looks finite, or the scale of the loss excuses it."""
        return self.scale.excuses or looks_finite(gradient)

    def last_function(self, running: Running) -> str:
        """The last function of a microbatch of a stage."""
        return [key for key in self.phases if key in running.functions][-1]

    def _held(self) -> Iterator[torch.Tensor]:
        """Tensors that this rank reads, sends or adds to later. A phase may hand on what it was given, or a view of it, so
        stages that exchange tensors here hold the same ones."""
        yield from self.weights.values()
        yield from self.network.held()
        for running in self.stages.values():
            yield from running.gradients.values()
            for kept in (running.received, running.saved, running.outputs, running.versions):
                for tensors in kept.values():
                    yield from tensors.values()

    def _update(self, running: Running, number: int) -> None:
        """Do the update of a stage, or begin with it where it reads tensors of others."""
        function = running.functions.get(UPDATES)
        running.renew(self.weights, number)
        if not self.step.turns(running.stage, self.rank):  # of more replicas than microbatches
            running.gradients.update(_zeros(self.step.program(running.stage, self.rank)[0], self.network.device))
        waiting = function(self.weights, running.gradients, number + 1, running.comm) if function is not None else None
        if waiting is None:
            running.gradients.clear()
        else:
            self._go_on(running, waiting, None)

    def _finish(self) -> None:
        """Let all updates of this rank go on to their ends, and wait until all that was sent has arrived."""
        while self.updating:
            channel = min(self.updating)
            running, waiting = self.updating.pop(channel)
            found = self.step.channels[channel]
            stays = self.network.stays(found, 0)
            tensor = self.network.here.pop((channel, 0)) if stays else self.network.receive(found, 0).wait()
            self.scale.arrived(channel, tensor)
            self._go_on(running, waiting, tensor)
        self.network.settle()

    def _go_on(self, running: Running, waiting: Generator[int, Any, None], tensor: torch.Tensor | None) -> None:
        """Hand an update what it waits for, None to begin with."""
        try:
            self.updating[waiting.send(tensor)] = running, waiting
        except StopIteration:
            running.gradients.clear()


def _words(action: Action, step: int) -> str:
    """What an action does, for a person."""
    of = "" if action.microbatch is None else f" of microbatch {action.microbatch}"
    return f"{action.kind} of stage {action.stage}{of} in step {step}"


def _zeros(program: Program, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    """The sums that the update of a program reads, over no microbatches."""
    for op in program.ops:
        if op.name == ACCUMULATE:
            type_ = tensor_type(op.results[0].type)
            shape = [int(dim) for dim in type_.shape or ()]  # type: ignore[arg-type]
            yield op.operands[0][1:], torch.zeros(shape, dtype=torch_dtype(type_.dtype), device=device)


def accumulate(sums: dict[str, torch.Tensor], terms: Mapping[str, torch.Tensor], held: Iterable[torch.Tensor]) -> None:
    """Add a microbatch's terms to the sums, in place. The first term is the sum, or a copy where something else has its
    elements: it is of ``held``, or is the term of two sums."""
    fresh = [name for name in terms if name not in sums]
    for name, term in terms.items():
        if name in sums:
            sums[name].add_(term)
    if not fresh:
        return
    others = Counter(tensor.untyped_storage().data_ptr() for tensor in chain(held, terms.values()))
    for name in fresh:
        term = terms[name]
        alone = others[term.untyped_storage().data_ptr()] == 1 and term.is_contiguous()
        sums[name] = term if alone else term.clone(memory_format=torch.contiguous_format)
