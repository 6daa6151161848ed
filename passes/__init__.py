"""Passes: module in, module out; and what runs, names and lists them. Importing this package loads no pass and no grammar."""

from passes.base import AnalysisCache, ConstantEvaluator, Pass, PassContext

__all__ = ["AnalysisCache", "ConstantEvaluator", "Pass", "PassContext"]
