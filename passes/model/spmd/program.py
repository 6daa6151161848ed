"""What one member of a stage's mesh runs.

A ``LocalProgram`` is straight-line code on local tensors: ordinary ops, and collectives (``comm.all_reduce``, ``all_gather``,
``reduce_scatter``, ``all_to_all``) that it runs together with the members of its group. All members of a stage have the same
collectives in the same order, by channel; the ops between may differ (parts that start elsewhere, terms that one member holds).

Invariants: values keep the names that they have in the SPMD stage; every operand is an argument, a received value, a resource
or the result of an op before; types are local and have no layout; ``parts``, ``outputs``, ``sends`` and ``receives`` say of
each value which box of the whole tensor it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from ir.ops import Op, Value
from ir.types import Type
from passes.model.spmd.boxes import Box, Range


@dataclass(frozen=True, slots=True)
class Part:
    """A member's part of a value.

    ``name`` in the program; ``type`` local; ``box`` in the whole tensor, which is of type ``whole`` (no layout).
    ``reduction``: ``sum`` or ``max`` where the part is a term: the whole is the reduction over all members that deliver this
    box. ``delivers``: False where another member hands the same part on."""

    name: str
    type: Type
    whole: Type
    box: Box
    reduction: str = ""
    delivers: bool = True


@dataclass(frozen=True, slots=True)
class Message:
    """A part that crosses to or from another stage on ``channel``. ``members``: of stage ``peer``; those that it is sent to
    (none where another member of this stage sends it), or the one that it comes from. A stage on a single device has the one
    member 0."""

    channel: int
    peer: int
    members: tuple[int, ...]
    part: Part


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective as one member takes part in it: ``%result = comm.<kind>(%operand)``.

    ``group``: the members that run it together, by their coordinate on the axis, of which this one is number ``place``.
    ``pieces``: ranges along the dimension ``dim`` of the joined local tensor, by place in the group. Of an all-gather, the
    result's dimension where the piece of each member lies; of a reduce-scatter, the operand's, of which each member gets its
    piece; of an all-to-all, the result's dimension where what comes from each member lies. ``split_dim`` and ``split``: of an
    all-to-all, the dimension and the ranges of the operand that go to each member."""

    channel: int
    kind: str
    operand: str
    result: str
    group: tuple[int, ...]
    place: int
    reduction: str = ""
    dim: int = -1
    pieces: tuple[Range, ...] = ()
    split_dim: int = -1
    split: tuple[Range, ...] = ()


@dataclass(frozen=True, slots=True)
class LocalProgram:
    """The program of member ``member`` of stage ``stage``, on ``device``.

    ``args``: inputs of the model that it reads, whole. ``receives``: what arrives from other stages, by channel. ``parts``: of
    each resource that it reads, the part that it holds, under the resource's name (an op's operand ``@w`` is that part).
    ``ops``: in order, collectives among them; ``exchanges``: the collectives again, in the same order. ``outputs``: results of
    the model, under the entry's names, in the entry's order; ``sends``: by channel; its value may be an argument's or a
    resource's part too. ``results``: names of all values that leave, each once."""

    stage: int
    member: int
    device: str
    args: tuple[Value, ...]
    receives: tuple[Message, ...]
    parts: tuple[Part, ...]
    ops: tuple[Op, ...]
    exchanges: tuple[Exchange, ...]
    outputs: tuple[Part, ...]
    sends: tuple[Message, ...]

    @property
    def results(self) -> tuple[str, ...]:
        names = [part.name for part in self.outputs]
        return tuple(dict.fromkeys([*names, *(message.part.name for message in self.sends)]))


__all__ = ["Exchange", "LocalProgram", "Message", "Part"]
