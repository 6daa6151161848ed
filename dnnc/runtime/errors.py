"""What a run can end with besides its results: a stage that died, hung or raised, or a model that onnxruntime does not take."""

from __future__ import annotations

import re

from ir.diagnostics import DnncError, ExitCode

REFUSED_HINT = (
    "the plan needs no kernels and stands (compile --plan-only); to run it, export the model without this operator or type"
)

_NO_KERNEL = re.compile(r"Could not find an implementation for ([\w.]+)\((\d+)\) node")
_UNKNOWN = re.compile(r"([\w.]*):(\w+)\(-?\d+\) is not a registered function/op")
_TYPE = re.compile(r"Type '([^']+)' of input parameter \(.*?\) of operator \((\w+)\)")


class RuntimeFailure(DnncError):
    """A stage died, hung or raised while it ran; the message names stage, device and microbatch: exit 1."""

    exit_code = ExitCode.INTERNAL


def refusal(error: str) -> str:
    """In plain words what an error of onnxruntime says stands in the way of running a model; empty for any other error."""
    if found := _NO_KERNEL.search(error):
        return f"onnxruntime has no CPU kernel for {found[1]} (version {found[2]}) with the element types it has here"
    if found := _UNKNOWN.search(error):
        return f"onnxruntime does not know the operator {'.'.join(filter(None, found.groups()))}"
    if found := _TYPE.search(error):
        return f"{found[2]} does not take {found[1]} in the model's opset"
    return ""
