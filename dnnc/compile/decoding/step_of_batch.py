"""The step of a decoder, for any number of sequences of a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dnnc.compile.context import pass_context, with_topology
from dnnc.compile.decoding.steps import fixed_batch, read_at, unsized
from dnnc.compile.flags import CompileOptions
from ir.core.diagnostics import DiagnosticSink
from ir.core.module import Module, Resource, State
from ir.core.topology import Topology
from passes.costs.network import network
from passes.framework.base import Pass
from passes.partition.decoding import Batches, DecodingPlan, asked_of, best_on_links

READ = (2, 3)
"""Batches at which a model is read: with one sequence, dimensions of length 1 may be left out."""
GAP = 2e-3
"""Relative: how far the bound of all batches may be from the best of them."""
SECONDS = 3.0, 1.5
"""Of counted work, of the search over the batches that are tried at first, and of that over those between."""


class StepOfBatch:
    """The step of a decoder, for any batch."""

    def __init__(self, options: CompileOptions, pipeline: Sequence[Pass], topology: Topology) -> None:
        self.options, self.pipeline, self.topology = options, pipeline, topology
        self.file = unsized(options)
        self.fixed = fixed_batch(self.file, options)
        """The batch that the file fixes."""
        self.linear = Batches(*((batch, self.read(batch)) for batch in READ)) if self.fixed is None else None
        self.alike = self.linear is not None and self.linear.alike

    def tried(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Those of the batches that are planned: every second where each is read by itself."""
        if self.fixed is not None:
            return (self.fixed,) if sizes else ()
        return tuple(sizes if self.alike else sizes[::2])

    def read(self, batch: int) -> Module:
        """The module of the step, with costs."""
        options = replace(self.options, batch=batch, groups=1)
        module = read_at(options, 1, self.pipeline, pass_context(DiagnosticSink()), self.file)
        return with_topology(module, self.topology, self.pipeline)

    def at(self, batch: int, groups: int) -> Module:
        """The step of ``groups`` groups of ``batch`` sequences."""
        module = self.linear.at(batch) if self.alike and self.linear is not None else self.read(batch)
        symbols = (
            replace(one, data=replace(one.data, sets=groups))
            if isinstance(one, Resource) and isinstance(one.data, State)
            else one
            for one in module.symbols
        )
        return replace(module, symbols=tuple(symbols))

    def searched(self, sizes: Sequence[int], groups: tuple[int, int], seconds: float) -> DecodingPlan | None:
        """The best plan of these batches on single devices and replicas, with its bound; None where nothing fits. ``seconds``:
        of counted work."""
        modules = {size: self.at(size, 1) for size in sizes}
        net, asked = network(self.topology), self.options
        found = asked_of(modules, self.topology, net, groups, stages=asked.stages or 0, replicas=asked.replicas or 0)
        return best_on_links(found.decoding, found.on_links, GAP, seconds)[0]
