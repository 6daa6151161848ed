"""The program of a member of a mesh with states: its part of each state, in one process with both of its programs.

Imports no third party but numpy and onnxruntime, because the process of a device must start fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dnnc.engines.onnxruntime.decoding.states import Binding, Bound, Stateful, host_buffers, place_of, spec_of
from dnnc.engines.onnxruntime.decoding.wire import CONTROL, LOGITS, TOKENS
from dnnc.engines.onnxruntime.member import Member, Span
from dnnc.engines.onnxruntime.transport.codec import Raw, raw_view
from dnnc.engines.onnxruntime.transport.edges import ValueSpec
from dnnc.onnx.elements import Array


class StatefulMember(Stateful):
    """The ``Runnable`` of a member with states. The state of a group is the place of a value of its segments: they read it as
    what arrives, and write what it becomes as what leaves."""

    def __init__(self, members: Sequence[Member], specs: Sequence[Mapping[str, ValueSpec]], told: Mapping[str, Any]) -> None:
        """``members``: the step and, where there is one, the prompt program, each with collectives of its own; ``specs``: of
        each the values that its segments and collectives read and make, by name."""
        self.members, self.specs = members, specs
        self._last = members[0]
        super().__init__(told)

    def buffers(self, state: Mapping[str, Any]) -> list[Array]:
        return host_buffers(state)

    def turn_of(self, kind: int) -> int:
        return self.members[kind].turn

    def bound(self, binding: Binding, kind: int, group: int) -> Bound:
        member, specs, names = self.members[kind], self.specs[kind], self.told["values"][kind]
        held = {names.get(name, name): place for name, place in self.held(group).items()}
        arrived = {names.get(name, name): raw for name, raw in binding.feeds.items()}
        wanted = {names.get(name, name): raw for name, raw in binding.targets.items() if name not in (TOKENS, LOGITS)}
        becomes = {names.get(name, name) for state in self.told["states"] if (name := state["result"])}
        own = {**held, **({self.told["position"]: self._position} if CONTROL in binding.feeds else {})}
        feeds = {
            name: _typed(spec, own[name] if name in own else place_of(name, spec, arrived))
            for name, spec in specs.items()
            if name in own.keys() - becomes or (name in arrived and name not in own)
        }
        targets = {name: _typed(specs[name], place_of(name, specs[name], wanted)) for name in wanted}
        targets |= {name: _typed(specs[name], held[name]) for name in becomes}
        steps = member.bind(feeds, targets)
        places = member.output_places(feeds, targets)
        copies = [(target.data, places[name].data) for name, target in targets.items() if _apart(target, places[name])]
        logits = places.get(names.get(self.told["logits"], ""))

        def run() -> None:
            self._last = member
            try:
                member.run_bound(steps)
            finally:
                member.turn = (member.turn + 1) % member.turns

        return Bound(run, copies, logits)

    def run(self, feeds: Mapping[str, Any], targets: Mapping[str, Raw]) -> dict[str, Any]:
        """Runs once, where what arrives has no place that stays."""
        self.run_bound(self.bind(feeds, targets))
        return {**targets}

    def take_spans(self, start: float, end: float) -> list[Span]:
        return self._last.take_spans(start, end)


def specs_of(member: Member, number: int) -> dict[str, ValueSpec]:
    """The values that the segments and collectives of member ``number`` read and make, by name. Raises ValueError where a
    dimension is no number."""
    found = dict[str, ValueSpec]()
    for program in member.programs.values():
        session: Any = program.session  # type: ignore[attr-defined]
        found.update((port.name, spec_of(port)) for port in (*session.get_inputs(), *session.get_outputs()))
    for collective in member.exchange.collectives:
        found.setdefault(collective.operand, ValueSpec(collective.operand, collective.element, collective.operands[number]))
        found[collective.result] = ValueSpec(collective.result, collective.element, collective.results[number])
    return found


def _typed(spec: ValueSpec, place: Array) -> Raw:
    """The tensor at a place, which may be larger."""
    return raw_view(spec.element, spec.shape or (), place.reshape(-1).view(np.uint8)[: spec.size or 0])


def _apart(one: Raw, other: Raw) -> bool:
    return bool(one.data.ctypes.data != other.data.ctypes.data)
