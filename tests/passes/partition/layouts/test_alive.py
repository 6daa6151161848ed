"""What the search counts of a plan's memory, against a walk over the program that the plan makes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.core.module import Module
from passes.costs.network import network
from passes.graph.graph import reads
from passes.meshes.costs.footprint import footprint
from passes.meshes.costs.price import price
from passes.meshes.mesh import mesh_of
from passes.meshes.staged import Staged
from passes.partition.layouts import ShardInput, build, decisions_of
from passes.partition.layouts.mesh.alive import Alive
from tests.passes.meshes.graphs import random_module
from tests.passes.meshes.planning import prepared, topology

MESHES = [
    ((2,), False, ()),
    ((2, 2), False, ()),
    ((4,), True, ((3, 1, 1, 1),)),
    ((2, 2), True, ((2, 1), (1, 1))),
    ((1,), False, ()),
]


def same(module: Module, given_: ShardInput, plans: int, seed: int) -> None:
    """Random plans, each counted both ways."""
    generator, problem, func = np.random.default_rng(seed), given_.problem, module.entry
    resources = {name: resource.type for name, resource in module.resources.items()}
    captured = {name for op in func.ops for name in reads(op) if name not in op.operands}
    counted = Alive(module, given_)
    for _ in range(plans):
        choices = [int(generator.integers(len(problem.node(node).labels))) for node in range(problem.size)]
        decisions = decisions_of(given_, choices)
        bill = price(module, func, given_.mesh, decisions)
        walked = footprint(func, resources, Staged(tuple(range(len(func.ops))), given_.mesh, decisions, bill))
        found = counted.needs(choices)
        assert (found.weights, found.workspace) == (walked.weights, walked.workspace)
        assert walked.alive <= found.alive <= walked.alive | captured  # the walk names what operands read


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10**6), st.integers(2, 14), st.sampled_from(MESHES), st.booleans())
def test_of_a_random_function_it_is_what_the_walk_counts(seed: int, count: int, of: tuple, slow: bool) -> None:  # type: ignore[type-arg]
    sizes, uneven, shares = of
    module = random_module(seed, count, uneven=uneven)
    top = topology(math.prod(sizes), (0,) if slow else ())
    given_ = build(module, module.entry, mesh_of(top, network(top), sizes, 0, shares), None)
    same(module, given_, 3, seed)


@pytest.mark.parametrize("spec", ["zoo:gpt2,layers=3,hidden=32,heads=4,vocab=64", "zoo:t5-base,layers=1,vocab=64"])
def test_of_a_model_it_is_what_the_walk_counts(spec: str) -> None:
    module, _ = prepared(spec)
    top = topology(4)
    same(module, build(module, module.entry, mesh_of(top, network(top), (2, 2)), None), 3, 0)
