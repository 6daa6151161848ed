"""Replay: a plan that a person or a script edited, in the place of a search (``assign``; on meshes ``meshes``).

``stage_by_stage`` decides the stages of a plan on meshes; ``other_sizes`` asks it for those of the same model of other sizes.
``stated`` is what both passes have in common: ops and devices as the plan names them, and its faults, each with its place.
"""
