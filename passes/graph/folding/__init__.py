"""What repeats in a function, and how it is written once: as functions and calls, provably the same program.

``fold`` writes ``dnnc.call`` ops and block functions behind the functions of the module (``marks.py`` says what stands in
them), and stages that name the ops that they take (``taken.py``); ``expand`` undoes it exactly (``restore.py``): structure,
names, locations, facets, layouts, order. ``folding`` tells what repeats without rewriting anything.

The way: every op gets a key that says all but names and decisions (``program.py``); a canonical topological order puts the
copies of a block side by side whatever the order and names of the input (``order.py``); exact repeats of keys are found as in
strings (``repeats.py``) and chosen by the ops they save, with their wiring compared (``search.py``); each copy is proven
against the first and its interface told (``structure.py``, the analysis ``folding``); copies that were decided alike share a
function (``variants.py``); then it is written down (``outline.py``, ``folded.py``).

``names.py`` lists the names of an op in one fixed order, for copies that agree in all else.

Invariants: copies of a block agree in everything but names, resources, locations, decisions and layouts, copies of a function
in the last two as well: what stands in a shared body holds for each of its copies. Resources are arguments, but for constants
that all copies share. What is found does not depend on names, on the order of ops, nor on decisions; a ``comm.reshard``, which
a plan adds, is part of the layer that it stands in. Bodies of If, Loop and Scan are part of their op: two such ops fold when
their bodies are the same but for names.

A pass that looks at ops one by one works on the expanded program, and what it makes of that is ``refolded``: with a variant for
each distinct decision.
"""

from passes.graph.folding.folded import fold, folded, refolded
from passes.graph.folding.marks import copies_of, is_block
from passes.graph.folding.restore import expand, expanded_bodies
from passes.graph.folding.search import Item
from passes.graph.folding.structure import (
    Block,
    Chain,
    Copy,
    Folding,
    Input,
    Output,
    folding,
)

__all__ = [
    "Block",
    "Chain",
    "Copy",
    "Folding",
    "Input",
    "Item",
    "Output",
    "copies_of",
    "expand",
    "expanded_bodies",
    "fold",
    "folded",
    "folding",
    "is_block",
    "refolded",
]
