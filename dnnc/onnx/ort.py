"""The one door to onnxruntime: it is imported here and nowhere else, with its telemetry off.

The wheels of onnxruntime come with telemetry on (``Privacy.md`` in the package): a file with a device id and a database of
events, with names of models, graphs and nodes, below the user's cache directory, a file ``.ses`` in the temporary directory,
and uploads to Microsoft after some seconds. ``ORT_DISABLE_TELEMETRY`` turns all of it off when it is set before
onnxruntime is loaded, and only then. A value that the user gave it counts: ``ORT_DISABLE_TELEMETRY=0`` leaves telemetry on.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
from typing import Any

from dnnc.onnx.providers import CPU, ON_CPU, ON_CUDA, Provider

VARIABLE = "ORT_DISABLE_TELEMETRY"
_LOG = logging.getLogger(__name__)


def silence() -> None:
    """Turns onnxruntime's telemetry off in this process and in those that it starts, unless the user set it on or off."""
    if not os.environ.get(VARIABLE):  # an empty value means "on" to onnxruntime; to a shell it is as good as unset
        os.environ[VARIABLE] = "1"


def load_onnxruntime() -> Any:
    """The package ``onnxruntime``."""
    silence()
    import onnxruntime

    return onnxruntime


class ProviderUnavailable(Exception):
    """An execution provider that onnxruntime lacks, or that it has and could not start."""


def make_session(model: bytes | str, options: Any, provider: Provider = ON_CPU) -> Any:
    """An ``InferenceSession`` on ``provider`` of a model (bytes) or of its file (a path). Nodes that the provider does not take
    run on the CPU.

    Raises ProviderUnavailable instead of running on the CPU alone, and what onnxruntime raises."""
    ort = load_onnxruntime()
    if provider.name not in ort.get_available_providers():
        raise ProviderUnavailable(f"this onnxruntime has no {provider.name}")
    if provider.name in ON_CUDA:
        _load_cuda(ort)
    wanted = [(provider.name, dict(provider.options)), *([(CPU, {})] if provider.name != CPU else [])]
    session = ort.InferenceSession(
        model,
        options,
        providers=wanted,
        enable_fallback=0,  # it would print the error to standard output and load the model once more, on the CPU
    )
    if provider.name not in session.get_providers():  # onnxruntime logs why, and goes on without it
        raise ProviderUnavailable(f"onnxruntime has {provider.name} and could not start it")
    return session


def _load_cuda(ort: Any) -> None:
    """Loads the libraries of CUDA and cuDNN from the packages ``nvidia-*`` of this environment, if they are there: onnxruntime
    itself looks for them in the system's paths alone. What it prints of those that it does not find goes to the log."""
    ort.set_default_logger_severity(3)  # it warns of each session that the provider is none of its plugins
    load = getattr(ort, "preload_dlls", None)  # since onnxruntime 1.21
    if load is None:
        return
    with contextlib.redirect_stdout(io.StringIO()) as said:
        load()
    if said.getvalue():
        _LOG.debug("%s", " ".join(said.getvalue().split()))


_BRACKETS = r"\((?:[^()]|\([^()]*\))*\)"
_SIGNATURE = rf"[\w:<>,&*~ ]*(?:operator\(\))?{_BRACKETS}(?:::<lambda{_BRACKETS}>)?(?: const)?(?: \[with [^\]]*\])?"
_SOURCE = r"(?<!\S)[^\s:]+\.(?:cc|cpp|cu|h|hpp|cuh|inc):\d+"
_NOISE = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : \w+ : "
    r"|Load model from .{0,4096}? failed: ?"
    rf"|{_SOURCE}: .{{0,400}}?(?=Assertion )"  # onnx: FILE:LINE: FUNCTION: Assertion ...
    rf"|(?=/){_SOURCE} (?:{_SIGNATURE} )?"
    rf"|{_SOURCE} \w+ "  # the bare name of a file comes with the bare name of the function
)
"""The prefixes of an error of onnxruntime or onnx: its number, the path of the model, and the place in their own source (file,
line and signature of the C++ function)."""


def plain_words(error: str) -> str:
    """The text of an error of onnxruntime or onnx, in one line and without its place in their source code."""
    return " ".join(_NOISE.sub("", " ".join(error.split())).split())
