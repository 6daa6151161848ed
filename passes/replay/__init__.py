"""Replay: a plan that a person or a script edited, in the place of ``partition`` (``assign``) or of ``shard`` (``meshes``).

``stated`` is what both have in common: ops and devices as the plan names them, and its faults, each with its place.
"""
