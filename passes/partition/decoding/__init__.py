"""Plans in which unlike devices share stages: for decoding, with batches and groups of sequences, and for streams of samples.

- ``problem``: what a plan is and what it is worth
- ``search``: the plan of most tokens per second, with its bound; and of the least seconds per token of one user
- ``tables``: what it asks of some batches, as arrays
- ``kernels``: the compiled dynamic programmes over cuts and devices
- ``detours``: what links between devices of unlike types cost
- ``from_module``: the problem of a decoder's step; ``batches``: the step for any number of sequences
- ``planned``: the module of a decoder with its plan, as the pass ``partition`` makes it
- ``turns``: that of a stream of samples, whose groups are turns of devices
"""

from passes.partition.decoding.batches import Batches
from passes.partition.decoding.from_module import asked_of
from passes.partition.decoding.problem import Decoding, DecodingPlan, SharedStage
from passes.partition.decoding.search import best_on_links, best_plan, fastest_plan

__all__ = ["Batches", "Decoding", "DecodingPlan", "SharedStage", "asked_of", "best_on_links", "best_plan", "fastest_plan"]
