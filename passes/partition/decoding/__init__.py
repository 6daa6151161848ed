"""Plans for decoding: stages that unlike devices share, batches and groups of sequences.

- ``problem``: what a plan is and what it is worth
- ``search``: the plan of most tokens per second, with its bound; and of the least seconds per token of one user
- ``kernels``: the compiled dynamic programmes over cuts and devices
"""

from passes.partition.decoding.problem import Decoding, DecodingPlan, SharedStage
from passes.partition.decoding.search import best_plan, fastest_plan

__all__ = ["Decoding", "DecodingPlan", "SharedStage", "best_plan", "fastest_plan"]
