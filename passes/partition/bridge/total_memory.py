"""Whether all devices together have less memory than every plan holds, which a sum says before any search.

The bound is a sum over all devices, so it holds for plans of any form: stages share out what is held; replicas hold it more
than once, except states of decoders and values saved of microbatches, which they share out too; members of a mesh each hold a
part, and the parts are the whole at least; several stages of one device hold what each of them holds. In inference what one
op makes and reads as an argument counts beside the weights: its stage has all of it while the op runs.
"""

from __future__ import annotations

from ir.core.module import Module
from ir.core.topology import Topology
from passes.costs.learning import learning, saved_values
from passes.costs.memory.liveness import own_bytes, resource_bytes
from passes.graph.graph import describe, reads
from passes.partition.bridge.explain import held_in, over_all_memory


def least_held(module: Module, microbatches: int) -> int:
    """Bytes that all devices together hold in any plan: of weights and states that ops read and, in a training step of so many
    ``microbatches`` (0: inference), of gradients, optimizer's state, and the values that one microbatch saves. Gradients of
    a single microbatch may be made where saved values were, so that the larger of the two counts."""
    read = {name for op in module.entry.ops for name in reads(op)}
    sizes = {name: size for name, size in resource_bytes(module).items() if name in read}
    held = sum(sizes.values())
    if not microbatches:
        return held
    learned = learning(module)
    gradients = sum(size for name, size in sizes.items() if name in learned.state)
    saved: dict[str, int] = {}
    for op in module.entry.ops:
        for name, size in saved_values(op, learned).items():
            saved.setdefault(name, size)
    held += sum(learned.state.get(name, 0) for name in sizes)
    both = (gradients, sum(saved.values()))
    return held + (sum(both) if microbatches > 1 else max(both))


def check_total_memory(module: Module, topology: Topology, microbatches: int) -> None:
    """Raises Infeasible, which is proven, where ``least_held`` is more than all devices have together. Parts of values are
    counted in whole bytes on each device, so a byte of each value on each device is left to that."""
    limits = [limit for device in topology.devices if (limit := topology.memory(device)) is not None]
    if len(limits) < len(topology.devices):
        return
    least = least_held(module, microbatches)
    values = len(module.resources) + sum(len(op.results) + 1 for op in module.entry.ops)
    most = sum(limits) + values * len(limits)
    largest = ""
    if least <= most and not microbatches and (working := own_bytes(module.entry)):
        least += max(working)
        largest = f" and the workspace of {describe(module.entry.ops[working.index(max(working))])}"
    if least > most:
        held, advice = held_in(module, training=microbatches > 0, saved=True)
        raise over_all_memory(least, topology, held + largest, advice)
