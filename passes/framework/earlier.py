"""Names of earlier versions in pipeline text, and what is written in their place today.

The pass ``contract``, which grouped ops before ``partition`` did it by itself, is left out of what is read.
The pass ``shard``, which searched meshes alone, is a part of ``partition``; the pipelines for meshes are those of ``partition``
with a mesh.
"""

from __future__ import annotations

from collections.abc import Mapping

_ON_MESHES = "partition{{{}mesh=auto,stages=1}},place"
PIPELINES = {
    "sharded-inference": f"canonicalize,unfuse,cost,fold,{_ON_MESHES.format('')},schedule,lower,localize",
    "sharded-training": f"training,canonicalize,cost,{_ON_MESHES.format('objective=training,')},differentiate,schedule,lower,"
    "localize",
}
"""Texts of the named pipelines of earlier versions."""
LEFT_OUT = ("contract",)
"""Passes of earlier versions that nothing needs."""


def instead_of(name: str, options: Mapping[str, str]) -> str:
    """The text to write in place of a pass or pipeline of an earlier version; empty for any other name. ``options``: of the
    pass, as they are written."""
    if name != "shard":
        return PIPELINES.get(name, "")
    told = {"mesh": "auto", "stages": "1"} | {key: text for key, text in options.items() if text not in ("", '""')}
    trains = told.pop("training", "false")
    if trains != "false":
        told = {"objective": "training"} | told
    told = {{"memory": "device-memory"}.get(key, key): text for key, text in told.items() if key != "whole"}
    words = ",".join(f"{key}={text}" for key, text in told.items() if (key, text) != ("stages", "0"))
    return f"partition{{{words}}},place"
