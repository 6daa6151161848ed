"""Passes: module in, module out; and what runs, names and lists them. Importing this package loads no pass and no grammar."""

from passes.framework.base import AnalysisCache, ConstantEvaluator, Pass, PassContext
from passes.framework.manager import PassCrash, PassManager, PassReport, pipeline_of
from passes.framework.pipeline import parse_pipeline, pass_text, pipeline_text
from passes.framework.registry import PASSES, PIPELINES, OptionInfo, PassInfo, describe

__all__ = [
    "PASSES",
    "PIPELINES",
    "AnalysisCache",
    "ConstantEvaluator",
    "OptionInfo",
    "Pass",
    "PassContext",
    "PassCrash",
    "PassInfo",
    "PassManager",
    "PassReport",
    "describe",
    "parse_pipeline",
    "pass_text",
    "pipeline_of",
    "pipeline_text",
]
