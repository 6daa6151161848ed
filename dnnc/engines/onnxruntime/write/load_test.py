"""Opens every model of a build in onnxruntime, so that a model that it refuses fails ``compile`` and not the first run.

A model is opened with the options of a run, except that onnxruntime computes no constant larger than ``LIMITS.folded_bytes``: a
model of 400 bytes can ask for gigabytes of constants. Models are opened one at a time, so memory is that of the largest.

Where this machine lacks the execution provider of a device, its models are opened on the CPU. A kernel that the CPU lacks is
then no fault, because another provider is to run the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from dnnc.engines.onnxruntime.errors import no_cpu_kernel, refusal, refused_operator
from dnnc.engines.onnxruntime.faults import ProgramRefused
from dnnc.engines.onnxruntime.session.program import Program
from dnnc.engines.onnxruntime.session.session import Settings
from dnnc.onnx.ort import ProviderUnavailable, load_onnxruntime, plain_words
from dnnc.onnx.providers import ON_CPU, Provider
from ir.core.diagnostics import InvalidInput
from ir.core.limits import LIMITS

_STAGE = re.compile(r"stage(\d+)(?:\.member(\d+)\.segment(\d+))?(?:\.prompt|\.open)?\.onnx")
_NODE = re.compile(r"""node with name '([^']+)'|Node:? ?\(([^)]+)\)|In Node, \("([^"]+)\"""")


def load_test(
    models: Iterable[Path],
    node_of: Callable[[str], str],
    provider_of: Callable[[int, int], Provider] = lambda stage, member: ON_CPU,
) -> None:
    """Raises InvalidInput that names every model which onnxruntime refuses, with the reason and the node.

    ``node_of(operator)``: the first node of an operator (``domain.Type``), used where onnxruntime names only the operator.
    ``provider_of(stage, member)``: the provider of a device; the member is 0 where the stage is one model."""
    faults = []
    for model in models:
        provider = provider_of(*_stage_and_member(model))
        try:
            _open(model, provider)
        except OSError:  # the machine's fault, such as no more file descriptors
            raise
        except Exception as error:  # onnxruntime has a dozen classes of errors, without a common base
            if provider != ON_CPU and no_cpu_kernel(str(error)):
                continue
            text = str(error).strip().replace(f"{model}", model.name)
            reason = refusal(text) or plain_words(text) or type(error).__name__
            node = next(filter(None, match.groups()), "") if (match := _NODE.search(text)) else ""
            if not node and (operator := refused_operator(text)):
                node = node_of(operator)
            reason += f" (node {node})" if node and node not in reason else ""
            faults.append(ProgramRefused(reason).at(_label(model)))
    if faults:
        raise InvalidInput([*(replace(fault, hint="") for fault in faults[:-1]), faults[-1]])


def _open(model: Path, provider: Provider) -> None:
    settings = Settings(provider=provider, folder=str(model.parent.absolute()), folded_bytes=LIMITS.folded_bytes)
    if provider != ON_CPU:  # else onnxruntime logs why it cannot start the provider, which is no fault here
        load_onnxruntime().set_default_logger_severity(4)
    try:
        Program(model.read_bytes(), (), settings)
    except ProviderUnavailable:
        Program(model.read_bytes(), (), replace(settings, provider=ON_CPU))


def _stage_and_member(model: Path) -> tuple[int, int]:
    """Stage and member of a model, from its file name."""
    match = _STAGE.fullmatch(model.name)
    return (int(match[1]), int(match[2] or 0)) if match else (0, 0)


def _label(model: Path) -> str:
    match = _STAGE.fullmatch(model.name)
    if match is None:
        return model.name
    stage, member, segment = match.groups()
    return f"stage {stage}" if member is None else f"stage {stage}, member {member}, segment {segment}"
