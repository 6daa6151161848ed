"""How a run fails: a stage died, hung or raised, or onnxruntime refused its model; and what to do, from the text of an
error."""

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
    """A stage died or raised while it ran. The message names stage, device and microbatch. Exit 1, except for subclasses."""

    exit_code = ExitCode.INTERNAL


class StageStopped(RuntimeFailure):
    """A stage ended, and dnnc is not the reason: a signal from outside, the time limit, memory or files that the machine lacks,
    a model or an input that onnxruntime refuses. Exit 3."""

    exit_code = ExitCode.INVALID_INPUT


class Lost(StageStopped):
    """A process was killed from outside, its host has gone, or a connection broke: what another try may mend
    (``starter.recovery``)."""


class Interrupted(RuntimeFailure):
    """A process of the run was interrupted, but not the command itself. Exit 130."""

    exit_code = ExitCode.INTERRUPTED


_MACHINE = (
    (re.compile("Too many open files"), "raise the limit of open files (ulimit -n), or use fewer stages"),
    (re.compile("No space left on device"), "free some space"),
    (re.compile("File too large"), "a limit on the size of files is set (ulimit -f)"),
    (
        re.compile(  # the last is pybind11's, where memory ends while torch is imported
            r"[Oo]ut of memory|MemoryError|bad.alloc|allocate memory|failed to map segment|Unable to create type object"
        ),
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
"""Words of errors and hints for which a memory limit may be the reason: a thread needs memory for its stack."""


def machine_hint(error: str) -> str:
    """What to do about an error whose reason is this machine (limits, memory, drivers); empty for any other error."""
    for pattern, hint in _MACHINE:
        if match := pattern.search(error):
            of_memory = any(word in hint or word in match[0] for word in _OF_MEMORY)
            return (memory_limit() if of_memory else "") or hint
    return ""


def memory_limit() -> str:
    """What to do about the memory limit of this process, which those that it starts have too; empty where there is none."""
    for name, number in (("v", resource.RLIMIT_AS), ("d", resource.RLIMIT_DATA)):
        size = resource.getrlimit(number)[0]
        if size != resource.RLIM_INFINITY:
            return f"a process may have {size >> 20} MiB of memory here: raise the limit (ulimit -{name})"
    return ""


def of_onnxruntime(error: str) -> bool:
    """Whether an error is onnxruntime's, about a model or its inputs."""
    return "[ONNXRuntimeError]" in error or "Error in execution: " in error  # the second in runs with bindings


def failure_for(error: str) -> type[RuntimeFailure]:
    """The class of a stage's failure: ``StageStopped`` if the machine or onnxruntime is the reason, else a fault of dnnc."""
    return StageStopped if machine_hint(error) or of_onnxruntime(error) else RuntimeFailure


def no_cpu_kernel(error: str) -> bool:
    """Whether onnxruntime refused a model for an op that the CPU has no kernel for."""
    return _NO_KERNEL.search(error) is not None


def refused_operator(error: str) -> str:
    """The operator (``domain.Type``) that is unknown or has no kernel according to an error of onnxruntime; else empty."""
    match = _UNKNOWN.search(error) or _NO_KERNEL.search(error)
    if match is None:
        return ""
    return match[1] if match.re is _NO_KERNEL else ".".join(filter(None, match.groups()))


def refusal(error: str) -> str:
    """Why onnxruntime refuses a model, in plain words: an operator without kernel, unknown, or of other types. Else empty."""
    if match := _NO_KERNEL.search(error):
        return f"onnxruntime has no CPU kernel for {match[1]} (version {match[2]}) with the element types it has here"
    if _UNKNOWN.search(error):
        return f"onnxruntime does not know the operator {refused_operator(error)}"
    if match := _TYPE.search(error):
        return f"{match[2]} does not take {match[1]} in the model's opset"
    return ""
