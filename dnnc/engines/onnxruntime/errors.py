"""What a run can end with besides its results: a stage that died, hung or raised, or a model that onnxruntime does not take."""

from __future__ import annotations

import re
import resource

from ir.core.diagnostics import DnncError, ExitCode

REFUSED_HINT = (
    "the plan needs no kernels and stands (compile --plan-only); to run it, export the model without this operator or type"
)

_NO_KERNEL = re.compile(r"Could not find an implementation for ([\w.]+)\((\d+)\) node")
_UNKNOWN = re.compile(r"([\w.]*):(\w+)\(-?\d+\) is not a registered function/op")
_TYPE = re.compile(r"Type '([^']+)' of input parameter \(.*?\) of operator \((\w+)\)")


class RuntimeFailure(DnncError):
    """A stage died or raised while it ran; the message names stage, device and microbatch: exit 1, unless ``StageStopped``."""

    exit_code = ExitCode.INTERNAL


class StageStopped(RuntimeFailure):
    """A stage ended by no fault of the program: a signal from outside, the limit of time, memory or files that the machine does
    not give, a model or an input that onnxruntime refuses: exit 3."""

    exit_code = ExitCode.INVALID_INPUT


class Interrupted(RuntimeFailure):
    """Somebody interrupted a process of the run, not the command itself: exit 130."""

    exit_code = ExitCode.INTERRUPTED


_MACHINE = (
    (re.compile("Too many open files"), "raise the limit of open files (ulimit -n), or use fewer stages"),
    (re.compile("No space left on device"), "free some space"),
    (re.compile("File too large"), "a limit on the size of files is set (ulimit -f)"),
    (
        re.compile(r"[Oo]ut of memory|MemoryError|bad.alloc|allocate memory|failed to map segment"),
        "the machine gives no more memory: use smaller stages, or more machines",
    ),
    (
        re.compile(r"onnxruntime has \w+ExecutionProvider and could not start it"),
        "are its drivers and libraries installed, is there such a device, are the device type's provider_options right?",
    ),
    (
        re.compile(r"\w+ExecutionProvider takes none of the \d+ nodes"),
        "compile for a device type that names another provider, or none, which is the CPU's",
    ),
    (re.compile("Resource temporarily unavailable|can't start new thread"), "raise the limit of processes (ulimit -u)"),
)


_OF_MEMORY = ("Resource temporarily", "thread", "memory")
"""Hints, and what is said, where a limit of memory may be the reason: a thread needs memory for its stack."""


def machine_hint(said: str) -> str:
    """What to do where the machine did not give what a process asked for, by what that process said; else empty."""
    for pattern, hint in _MACHINE:
        if found := pattern.search(said):
            scarce = any(word in hint or word in found[0] for word in _OF_MEMORY)
            return (memory_limit() if scarce else "") or hint
    return ""


def memory_limit() -> str:
    """What to do where this process, and those that it starts, may have little memory; empty where no limit is set."""
    for name, number in (("v", resource.RLIMIT_AS), ("d", resource.RLIMIT_DATA)):
        size = resource.getrlimit(number)[0]
        if size != resource.RLIM_INFINITY:
            return f"a process may have {size >> 20} MiB of memory here: raise the limit (ulimit -{name})"
    return ""


def of_onnxruntime(error: str) -> bool:
    """Whether onnxruntime said so: of a model, or of an input that the model does not take."""
    return "[ONNXRuntimeError]" in error or "Error in execution: " in error  # the second from a run with bindings


def failure_for(said: str) -> type[RuntimeFailure]:
    """What a stage's failure is, by what it said: a fault of ours, unless the machine or onnxruntime refused."""
    return StageStopped if machine_hint(said) or of_onnxruntime(said) else RuntimeFailure


def no_cpu_kernel(error: str) -> bool:
    """Whether onnxruntime refused a model for an op that the CPU has no kernel for."""
    return _NO_KERNEL.search(error) is not None


def refused_operator(error: str) -> str:
    """The operator (``domain.Type``) that an error of onnxruntime says is unknown or has no kernel; else empty."""
    found = _UNKNOWN.search(error) or _NO_KERNEL.search(error)
    if found is None:
        return ""
    return found[1] if found.re is _NO_KERNEL else ".".join(filter(None, found.groups()))


def refusal(error: str) -> str:
    """In plain words what an error of onnxruntime says stands in the way of running a model; empty for any other error."""
    if found := _NO_KERNEL.search(error):
        return f"onnxruntime has no CPU kernel for {found[1]} (version {found[2]}) with the element types it has here"
    if _UNKNOWN.search(error):
        return f"onnxruntime does not know the operator {refused_operator(error)}"
    if found := _TYPE.search(error):
        return f"{found[2]} does not take {found[1]} in the model's opset"
    return ""
