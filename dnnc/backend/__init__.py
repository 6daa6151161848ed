"""From a planned and lowered module to a directory of programs that run."""

from dnnc.backend.write import WEIGHTS, check_target, write_build, write_model, write_plan

__all__ = [
    "WEIGHTS",
    "check_target",
    "write_build",
    "write_model",
    "write_plan",
]
