"""From a planned and lowered module to a directory of programs that run, and back to typed data for the runtime."""

from dnnc.backend.build import Build, Channel, Port, Source, StageProgram
from dnnc.backend.plan_json import plan_from_json, plan_to_json, read_plan
from dnnc.backend.snapshot import Snapshot, read_manifest
from dnnc.backend.write import WEIGHTS, check_target, write_build, write_model, write_plan

__all__ = [
    "WEIGHTS",
    "Build",
    "Channel",
    "Port",
    "Snapshot",
    "Source",
    "StageProgram",
    "check_target",
    "plan_from_json",
    "plan_to_json",
    "read_manifest",
    "read_plan",
    "write_build",
    "write_model",
    "write_plan",
]
