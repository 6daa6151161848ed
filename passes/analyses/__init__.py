"""Analyses: pure functions of a function, an op or the machines, asked through ``context.analyses.get(analysis, subject)``.

Each lives in a module of its own and is imported from there, so that one that needs a heavy library costs only who asks.
"""
