"""What several passes ask and none of them owns: pure functions of a function, an op, a plan or the machines.

Imports ``ir`` only. Passes ask through ``context.analyses.get(function, subject)`` where the answer is worth keeping. Each file
is imported from by itself, so that one that needs a heavy library costs only who asks.
"""
