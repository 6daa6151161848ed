"""Chains of repeated parts, from the analysis ``folding``: which nodes make up each copy, in an order that copies share.

A cell holds the ops of one copy and the weights that only this copy reads (those of the interface, in its order). Only chains
of the function itself are taken; copies inside copies are part of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping

from passes.graph.folding import Folding


def cells_of(folding: Folding, weights: Mapping[str, int]) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The chains of ``folding``; ops are nodes by their position in the function, ``weights`` the nodes of resources."""
    chains = []
    for block in folding.blocks:
        private = [port for port, given in enumerate(block.inputs) if given.kind == "weight"]
        for chain in block.chains:
            copies = [block.copies[number] for number in chain.copies]
            if copies[0].parent is not None:
                continue
            names = [[copy.operands[port] for port in private] for copy in copies]
            counts: dict[str, int] = {}
            for row in names:
                for name in set(row):
                    counts[name] = counts.get(name, 0) + 1
            own = [
                slot for slot in range(len(private)) if all(counts[row[slot]] == 1 and row[slot] in weights for row in names)
            ]
            chains.append(
                tuple((*copy.ops, *(weights[row[slot]] for slot in own)) for copy, row in zip(copies, names, strict=True))
            )
    return tuple(chains)
