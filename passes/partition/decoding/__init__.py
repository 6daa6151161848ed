"""Plans for decoding: stages that unlike devices share, batches and groups of sequences."""

from passes.partition.decoding.problem import Decoding, DecodingPlan, SharedStage
from passes.partition.decoding.search import best_plan, fastest_plan

__all__ = ["Decoding", "DecodingPlan", "SharedStage", "best_plan", "fastest_plan"]
