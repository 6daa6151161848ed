"""Tensors between ranks: what a stage's functions call ``comm``, and the sends and receives of rows.

A channel's tensor of a microbatch has a tag of its own, so that messages between two ranks may overtake each other. Sends do
not wait: the tensor stays alive until the receiver is known to have it (``Network.arrived``), at the latest until the step
ends. Between two stages of one rank the tensor itself is handed over. Collectives are made of sends and receives, which allows
parts of unequal length. So are sums and maxima of little (``SWAPPED``), in one step where a ring takes several; those of more
``all_reduce`` forms.

``gloo`` (CPUs) has tags; with ``nccl`` (GPUs) messages between two ranks arrive in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from dnnc.build.training import Channel, Step, tensor_type
from dnnc.engines.torch.faults import NoElementType
from dnnc.engines.torch.slowed import Slowed
from dnnc.engines.torch.statements.call import DTYPES
from ir.core.diagnostics import InvalidInput
from ir.core.facets import FORWARD, phase_of
from ir.core.module import Action, Stage
from ir.core.ops import Op
from ir.core.types import DType
from ir.ops.rows import RECEIVE, SEND, Places


def torch_dtype(dtype: DType) -> torch.dtype:
    """PyTorch's element type. Raises InvalidInput for one that it lacks."""
    if dtype not in DTYPES:
        raise InvalidInput(NoElementType(dtype.value))
    torch_type = getattr(torch, DTYPES[dtype])
    assert isinstance(torch_type, torch.dtype)
    return torch_type


MOST_PASSED = 2
"""Forwarded messages to one rank that may be under way. A forwarded message is never acknowledged, so the sender waits for the
older ones; the receiver needs nothing else from it to receive them, since all members of a mesh have the same rows."""
SWAPPED = 1 << 18
"""Up to so many bytes sent by a rank, all ranks exchange their terms and each adds them up, instead of ``all_reduce``. Best of
100 on two ranks of gloo, exchange and ``all_reduce``: 64 KiB 50 and 115 us, 256 KiB 100 and 190 us, 4 MiB 2 and 1.5 ms."""
HEARD = 1 << 12
"""Results of collectives of up to so many bytes are kept while their microbatch is under way: sums of a loss and its counts."""
_REDUCE = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


@dataclass(slots=True)
class Pending:
    """A message under way, whose ``tensor`` stays alive. ``peer``: the rank at the other end; ``place``: where its action
    stands in the row of that rank, None for a message of an update; ``passed``: this rank forwards it and did not make it."""

    tensor: torch.Tensor
    work: Any
    peer: int
    place: tuple[int, int] | None
    passed: bool = False

    def wait(self) -> torch.Tensor:
        self.work.wait()
        return self.tensor


@dataclass(slots=True)
class Network:
    """The connections of a rank. ``groups``: process groups by stage and ranks, since sums of two stages may begin in any
    order; ``outgoing``: messages that may not have arrived; ``here``: tensors for another stage of this rank, by channel and
    microbatch; ``rows``: places of actions in rows, by rank; ``most``: the limit of messages under way, above what valid rows
    need: without it a stage that waits for no gradients would run far ahead of the next; ``slowed``: waits before a send."""

    step: Step
    rank: int
    device: torch.device
    groups: dict[tuple[int, tuple[int, ...]], Any] = field(default_factory=dict)
    outgoing: list[Pending] = field(default_factory=list)
    here: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)
    rows: dict[int, Places] = field(default_factory=dict)
    most: int = 0
    slowed: Slowed = field(default_factory=Slowed)

    def connect(self) -> None:
        """Make the groups of all collectives. All ranks call this."""
        for stage, ranks in self.step.groups():
            self.groups[stage, ranks] = dist.new_group(list(ranks))

    @property
    def meets(self) -> bool:
        """Whether this rank is idle while it exchanges: it waits for collectives of its forward passes, and neither sends
        nor receives beside them."""
        row = self.step.row(self.rank)
        waits = any(phase_of(op.facets) == FORWARD for _, op in self.step.collectives(self.rank))
        return waits and not any(action.kind in (SEND, RECEIVE) for action in row)

    def tag(self, channel: Channel, microbatch: int) -> int:
        """Messages of a channel with the same tag arrive in the order in which they were sent."""
        return 1 + channel.number * self.step.microbatches + microbatch % self.step.microbatches

    def send(self, tensor: torch.Tensor, channel: Channel, microbatch: int) -> None:
        """Send a tensor, which this rank made or forwards, to the ranks that get it from this one."""
        readers = self.step.readers(channel, self.rank, microbatch)
        if not readers:
            return
        tensor = tensor.detach().contiguous()
        self.slowed.wait()
        tag, passed = self.tag(channel, microbatch), not self.step.makes(channel, self.rank, microbatch)
        for reader in readers:
            if reader == self.rank:
                self.here[channel.number, microbatch] = tensor
                continue
            work = dist.isend(tensor, reader, tag=tag)
            place = self.place(reader, Action(RECEIVE, channel.target.index, microbatch, channel.number))
            self.outgoing.append(Pending(tensor, work, reader, place, passed))
            if passed:
                self._await_forwarded(reader)
        if not self.most:
            row = self.step.row(self.rank)
            deepest = max(action.microbatch or 0 for action in row)
            self.most = len(self.step.devices) * len(row) * (2 + deepest // self.step.microbatches)
        while len(self.outgoing) > self.most:
            self.outgoing.pop(0).wait()

    def _await_forwarded(self, reader: int) -> None:
        """Wait for all but the last ``MOST_PASSED`` messages that were forwarded to a rank."""
        left = sum(pending.passed and pending.peer == reader for pending in self.outgoing) - MOST_PASSED
        under_way = []
        for pending in self.outgoing:
            if left > 0 and pending.passed and pending.peer == reader:
                pending.wait()
                left -= 1
            else:
                under_way.append(pending)
        self.outgoing = under_way

    def place(self, rank: int, action: Action) -> tuple[int, int] | None:
        """Where an action stands in the row of a rank; None for one that is part of an update."""
        if rank not in self.rows:
            self.rows[rank] = Places.in_row(self.step.row(rank), self.step.microbatches)
        return self.rows[rank].of(action)

    def stays(self, channel: Channel, microbatch: int) -> bool:
        """Whether this rank makes the tensor of a microbatch that it reads."""
        return self.step.maker(channel, self.rank, microbatch) == self.rank

    def arrived(self, pending: Pending) -> torch.Tensor:
        """Wait for a tensor. Its sender has then received everything that stands before this send in its row, so messages to it
        from there are complete."""
        tensor = pending.wait()
        under_way = []
        for sent in self.outgoing:
            in_rows = sent.place is not None and pending.place is not None
            if sent.peer == pending.peer and in_rows and sent.place < pending.place:  # type: ignore[operator]
                sent.wait()
            else:
                under_way.append(sent)
        self.outgoing = under_way
        return tensor

    def receive(self, channel: Channel, microbatch: int) -> Pending:
        """Begin to receive a tensor."""
        local = self.step.local(channel.target, self.rank)
        type_ = tensor_type(next(part.type for part in local.receives if part.channel == channel.number))
        tensor = torch.empty(tuple(type_.shape or ()), dtype=torch_dtype(type_.dtype), device=self.device)  # type: ignore[arg-type]
        maker = self.step.maker(channel, self.rank, microbatch)
        work = dist.irecv(tensor, maker, tag=self.tag(channel, microbatch))
        if self.step.makes(channel, maker, microbatch):
            action = Action(SEND, channel.source.index, microbatch, channel.number)
        else:
            action = Action(RECEIVE, channel.target.index, microbatch, channel.number)
        return Pending(tensor, work, maker, self.place(maker, action))

    def held(self) -> Iterator[torch.Tensor]:
        """Tensors on their way to other ranks, or to a stage of this one."""
        yield from (pending.tensor for pending in self.outgoing)
        yield from self.here.values()

    def settle(self) -> None:
        """Wait until all that was sent has arrived."""
        for pending in self.outgoing:
            pending.wait()
        self.outgoing.clear()


@dataclass(slots=True)
class Bucket:
    """Gradients that are summed together, side by side in one tensor. ``left``: microbatches of this rank that are not in it
    yet; ``work``: their sum over the ranks, once it has begun."""

    total: torch.Tensor
    shapes: list[torch.Size]
    left: int
    work: Any = None

    @classmethod
    def of(cls, terms: Sequence[torch.Tensor], microbatches: int) -> Bucket:
        """A bucket of these terms, the first of so many microbatches."""
        return cls(torch.cat([term.reshape(-1) for term in terms]), [term.shape for term in terms], microbatches - 1)

    def add(self, terms: Sequence[torch.Tensor]) -> None:
        """Add the terms of one more microbatch."""
        self.left -= 1
        for part, term in zip(self.parts(), terms, strict=True):
            part.add_(term)

    def parts(self) -> list[torch.Tensor]:
        """The gradients."""
        parts = torch.split(self.total, [shape.numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


@dataclass(slots=True)
class Served:
    """A sum, or maximum, that one rank of a group computes (the server): the others send it their tensors and receive the
    result in ``wait``. ``terms``: on the server, the tensors of the others."""

    total: torch.Tensor
    others: list[int]
    server: int
    group: Any
    reduction: str
    terms: list[torch.Tensor]
    works: list[Any]

    @classmethod
    def begun(cls, total: torch.Tensor, ranks: Sequence[int], place: int, rank: int, group: Any, reduction: str) -> Served:
        """Of the rank at ``place`` of the group; ``total`` is this rank's term, and becomes the result."""
        others, server = [one for one in ranks if one != ranks[place]], ranks[place]
        terms = [torch.empty_like(total) for _ in others] if rank == server else []
        messages = [dist.P2POp(dist.irecv, term, other, group) for other, term in zip(others, terms, strict=False)]
        messages = messages or [dist.P2POp(dist.isend, total, server, group)]
        works = dist.batch_isend_irecv(messages)
        return cls(total, others, server, group, reduction, terms, works)

    def wait(self) -> None:
        """Until ``total`` is the result."""
        for work in self.works:
            work.wait()
        for term in self.terms:
            if self.reduction == "sum":
                self.total.add_(term)
            else:
                torch.maximum(self.total, term, out=self.total)
        messages = [dist.P2POp(dist.isend, self.total, other, self.group) for other in self.others if self.terms]
        messages = messages or [dist.P2POp(dist.irecv, self.total, self.server, self.group)]
        for work in dist.batch_isend_irecv(messages):
            work.wait()


@dataclass(frozen=True, slots=True)
class Exchange:
    """What the functions of one stage on one rank call ``comm``. ``place``: the rank's place among the devices of its
    program; ``turns``: microbatches of a step that the rank works on; ``buckets``: by channel, from the first gradient of a
    step to its sum; ``ranges``: what ``_ranges`` has found. ``look``: whether a gradient that is added is finite, None where
    nobody asks; ``unfinite``: channels of those that were not; ``heard``: results of collectives of the phase under way, by
    channel, of at most ``HEARD`` bytes."""

    network: Network
    stage: Stage
    place: int
    ops: dict[int, Op]
    turns: int = 1
    buckets: dict[int, Bucket] = field(default_factory=dict)
    ranges: dict[tuple[int, int, bool], dict[int, tuple[int, int]]] = field(default_factory=dict)
    look: Callable[[torch.Tensor], bool] | None = None
    unfinite: list[int] = field(default_factory=list)
    heard: dict[int, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, network: Network, stage: Stage, look: Callable[[torch.Tensor], bool] | None = None) -> Exchange:
        """The collectives of a stage, by channel."""
        ops = {int(op.get("channel")): op for of_stage, op in network.step.collectives(network.rank) if of_stage is stage}
        turns = len(network.step.turns(stage, network.rank))
        return cls(network, stage, network.step.program(stage, network.rank)[1], ops, turns, look=look)

    def all_reduce(self, tensor: torch.Tensor, channel: int, reduction: str = "sum") -> torch.Tensor:
        """The sum, or maximum, of the terms of the group."""
        ranks = self._ranks(channel)
        if self._served(channel) is None and tensor.nbytes * (len(ranks) - 1) <= SWAPPED:
            shapes = {rank: list(tensor.shape) for rank in ranks}
            parts = self._swap(dict.fromkeys(ranks, tensor.contiguous()), shapes, tensor, channel)
            return self._hear(_combined([parts[rank] for rank in ranks], reduction), channel)
        result = tensor.contiguous().clone()
        self._reduced(result, channel, reduction).wait()
        return self._hear(result, channel)

    def all_reduce_together(self, tensors: Sequence[torch.Tensor], channel: int, reduction: str = "sum") -> list[torch.Tensor]:
        """The sums, or maxima, of the tensors of a bucket, in one message; ``channel``: of one of them."""
        bucket = Bucket.of(tensors, 1)
        self._begin(bucket, channel, reduction)
        bucket.work.wait()
        return bucket.parts()

    def add(self, terms: Sequence[torch.Tensor], channel: int, reduction: str, microbatches: int) -> None:
        """Add a microbatch's terms of the gradients of a bucket, ``channel``: that of one of its sums. With those of the rank's
        last microbatch of the step begins the sum over the ranks, of means over ``microbatches``; it goes on by itself."""
        if self.look is not None and not all(map(self.look, terms)):
            self.unfinite.append(channel)
        bucket = self.buckets.get(channel)
        if bucket is None:
            bucket = self.buckets[channel] = Bucket.of(terms, self.turns)
        else:
            bucket.add(terms)
        if not bucket.left:
            bucket.total.div_(microbatches)
            self._begin(bucket, channel, reduction)

    def summed(
        self, gradients: dict[str, torch.Tensor], names: Sequence[str], channel: int, reduction: str
    ) -> list[torch.Tensor]:
        """The sums over the ranks of what was added; of a rank without microbatches, of the ``gradients`` of these names."""
        bucket = self.buckets.pop(channel, None)
        if bucket is None:
            bucket = Bucket.of([gradients.pop(name) for name in names], 1)
            self._begin(bucket, channel, reduction)
        bucket.work.wait()
        return bucket.parts()

    def _begin(self, bucket: Bucket, channel: int, reduction: str) -> None:
        bucket.work = self._reduced(bucket.total, channel, reduction)

    def _reduced(self, tensor: torch.Tensor, channel: int, reduction: str) -> Any:
        """Begin to turn ``tensor`` into the sum, or maximum, of the terms of the group; returns what to wait for."""
        self.network.slowed.wait()
        server, group = self._served(channel), self._group(channel)
        if server is None:
            return dist.all_reduce(tensor, op=_REDUCE[reduction], group=group, async_op=True)
        return Served.begun(tensor, self._ranks(channel), server, self.network.rank, group, reduction)

    def reduce_scatter(self, tensor: torch.Tensor, channel: int, dim: int, reduction: str = "sum") -> torch.Tensor:
        """This rank's range, along ``dim``, of the sum or maximum: each rank gets its range of all terms."""
        ranges = self._ranges(channel, dim, result=True)
        outgoing = {rank: tensor.narrow(dim, *ranges[rank]).contiguous() for rank in ranges}
        shapes = {rank: list(outgoing[self.network.rank].shape) for rank in ranges}
        parts = self._swap(outgoing, shapes, tensor, channel)
        return self._hear(_combined([parts[rank] for rank in ranges], reduction), channel)

    def all_gather(self, tensor: torch.Tensor, channel: int, dim: int) -> torch.Tensor:
        """The ranges of all ranks of the group, joined along ``dim``."""
        ranges = self._ranges(channel, dim, result=False)
        shape = list(tensor.shape)
        outgoing = dict.fromkeys(ranges, tensor.contiguous())
        incoming = {rank: [*shape[:dim], length, *shape[dim + 1 :]] for rank, (_, length) in ranges.items()}
        parts = self._swap(outgoing, incoming, tensor, channel)
        return self._hear(torch.cat([parts[rank] for rank in ranges], dim), channel)

    def all_to_all(self, tensor: torch.Tensor, channel: int, split_dim: int, concat_dim: int) -> torch.Tensor:
        """Each rank's range along ``concat_dim``, of what this rank now holds along ``split_dim``."""
        ranges = self._ranges(channel, split_dim, result=True)
        had = self._ranges(channel, concat_dim, result=False)
        outgoing = {rank: tensor.narrow(split_dim, *ranges[rank]).contiguous() for rank in ranges}
        shape = list(tensor.shape)
        shape[split_dim] = ranges[self.network.rank][1]
        incoming = {rank: [*shape[:concat_dim], had[rank][1], *shape[concat_dim + 1 :]] for rank in ranges}
        parts = self._swap(outgoing, incoming, tensor, channel)
        return self._hear(torch.cat([parts[rank] for rank in ranges], concat_dim), channel)

    def _hear(self, result: torch.Tensor, channel: int) -> torch.Tensor:
        """Keeps a copy of the small result of a collective, with which a phase can run again without other ranks."""
        if self.look is not None and result.nbytes <= HEARD:
            self.heard[channel] = result.clone()
        return result

    def send(self, tensor: torch.Tensor, channel: int) -> None:
        """Send a tensor of the update."""
        sent = self.network.step.channels[channel]
        if self.network.rank in self.network.step.ends(sent, 0)[0]:
            self.network.send(tensor, sent, 0)

    def _group(self, channel: int) -> Any:
        return self.network.groups[self.stage.index, self._ranks(channel)]

    def _ranks(self, channel: int) -> tuple[int, ...]:
        return self.network.step.group(self.ops[channel], self.network.rank)

    def _ranges(self, channel: int, dim: int, *, result: bool) -> dict[int, tuple[int, int]]:
        """Start and length along ``dim`` of what each rank of the group holds of the operand, or result, counted from the
        start of what they hold together."""
        key = channel, dim, result
        if key not in self.ranges:
            op = self.ops[channel]
            type_ = op.results[0].type if result else self._operand_type(op)
            ranges = {rank: self.network.step.box(type_, op, rank)[dim] for rank in self._ranks(channel)}
            first = min(start for start, _ in ranges.values())
            self.ranges[key] = {rank: (start - first, length) for rank, (start, length) in ranges.items()}
        return self.ranges[key]

    def _served(self, channel: int) -> int | None:
        """The place of the member that makes the sum; None where all do."""
        place: int | None = self.ops[channel].get("through")
        return place

    def _operand_type(self, op: Op) -> Any:
        name = op.operands[0]
        if name in self.network.step.resources:
            return self.network.step.resources[name].type
        values = (value for other in self.stage.ops for value in other.results)
        return next(value.type for value in (*self.stage.args, *values) if value.name == name)

    def _swap(
        self, outgoing: dict[int, torch.Tensor], incoming: dict[int, list[int]], like: torch.Tensor, channel: int
    ) -> dict[int, torch.Tensor]:
        """Send one tensor to each rank of the group, and receive one of a given shape from each."""
        me = self.network.rank
        group = self._group(channel)
        parts = {rank: outgoing[me] if rank == me else like.new_empty(shape) for rank, shape in incoming.items()}
        self.network.slowed.wait()
        given = {rank: part for rank, part in outgoing.items() if rank != me}
        for work in swapped(group, sorted(parts), given, {rank: part for rank, part in parts.items() if rank != me}):
            work.wait()
        return parts


def swapped(group: Any, ranks: Sequence[int], given: Mapping[int, torch.Tensor], got: Mapping[int, torch.Tensor]) -> list[Any]:
    """Begins to send a tensor to each of some ranks of a group and to receive one from each; ``ranks``: those of the group,
    ascending. On a CPU without the checks of ``torch.distributed``'s own functions, which take as long as a small message."""
    if all(tensor.device.type == "cpu" for tensor in given.values()):
        works = [group.recv([tensor], ranks.index(rank), 0) for rank, tensor in got.items()]
        return works + [group.send([tensor], ranks.index(rank), 0) for rank, tensor in given.items()]
    messages = [dist.P2POp(dist.isend, tensor, rank, group) for rank, tensor in given.items()]
    messages += [dist.P2POp(dist.irecv, tensor, rank, group) for rank, tensor in got.items()]
    works = dist.batch_isend_irecv(messages) if messages else []
    return list(works)


def _combined(terms: Sequence[torch.Tensor], reduction: str) -> torch.Tensor:
    """The sum, or maximum, in the order of the terms, so that all ranks have the same."""
    join = torch.add if reduction == "sum" else torch.maximum
    total = join(terms[0], terms[1])
    for term in terms[2:]:
        join(total, term, out=total)
    return total
