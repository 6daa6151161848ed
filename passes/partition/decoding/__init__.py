"""Plans for decoding: stages that unlike devices share, batches and groups of sequences.

- ``problem``: what a plan is and what it is worth
- ``search``: the plan of most tokens per second, with its bound; and of the least seconds per token of one user
- ``kernels``: the compiled dynamic programmes over cuts and devices
- ``from_module``: the problem of a decoder's step; ``batches``: the step for any number of sequences
- ``planned``: the module with its plan, as the pass ``partition`` makes it
"""

from passes.partition.decoding.batches import Batches
from passes.partition.decoding.from_module import asked_of
from passes.partition.decoding.problem import Decoding, DecodingPlan, SharedStage
from passes.partition.decoding.search import DecodingSearch, best_plan, fastest_plan

__all__ = ["Batches", "Decoding", "DecodingPlan", "DecodingSearch", "SharedStage", "asked_of", "best_plan", "fastest_plan"]
