"""Opens every model of a build in onnxruntime, one after another, before the build counts as done.

What is opened is what a run would open, with the same options but for large constants, which are not computed: a model of 400
bytes can ask for gigabytes of them. Each session is given up before the next one is made, so the memory needed is that of the
largest model.

A build may be made on a machine that lacks the execution providers of its devices. Their models are opened on the CPU then,
where a missing kernel is no fault.
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

_STAGE = re.compile(r"stage(\d+)(?:\.member(\d+)\.segment(\d+))?\.onnx")
_NODE = re.compile(r"""node with name '([^']+)'|Node:? ?\(([^)]+)\)|In Node, \("([^"]+)\"""")


def load_test(
    models: Iterable[Path],
    node_of: Callable[[str], str],
    provider_of: Callable[[int, int], Provider] = lambda stage, member: ON_CPU,
) -> None:
    """Raises InvalidInput that names every model which onnxruntime refuses, its reason with the node in it. ``node_of``: the
    first node of an operator (``domain.Type``), for where onnxruntime names that alone; ``provider_of``: the provider of a
    member of a stage, member 0 where the stage is one model."""
    faults = []
    for model in models:
        provider = provider_of(*_place(model))
        try:
            _open(model, provider)
        except OSError:  # the machine's fault: no more descriptors
            raise
        except Exception as error:  # onnxruntime has a dozen classes of its own, of no common base
            if provider != ON_CPU and no_cpu_kernel(str(error)):
                continue
            text = str(error).strip().replace(f"{model}", model.name)
            reason = refusal(text) or plain_words(text) or type(error).__name__
            node = next(filter(None, found.groups()), "") if (found := _NODE.search(text)) else ""
            if not node and (operator := refused_operator(text)):
                node = node_of(operator)
            reason += f" (node {node})" if node and node not in reason else ""
            faults.append(ProgramRefused(reason).at(_label(model)))
    if faults:
        raise InvalidInput([*(replace(fault, hint="") for fault in faults[:-1]), faults[-1]])


def _open(model: Path, provider: Provider) -> None:
    settings = Settings(provider=provider, folder=str(model.parent.absolute()), folded_bytes=LIMITS.folded_bytes)
    if provider != ON_CPU:  # onnxruntime would log why it cannot start the provider, which is no fault here
        load_onnxruntime().set_default_logger_severity(4)
    try:
        Program(model.read_bytes(), (), settings)
    except ProviderUnavailable:
        Program(model.read_bytes(), (), replace(settings, provider=ON_CPU))


def _place(model: Path) -> tuple[int, int]:
    """Stage and member of a model, by its name."""
    found = _STAGE.fullmatch(model.name)
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)


def _label(model: Path) -> str:
    found = _STAGE.fullmatch(model.name)
    if found is None:
        return model.name
    stage, member, segment = found.groups()
    return f"stage {stage}" if member is None else f"stage {stage}, member {member}, segment {segment}"


__all__ = ["load_test"]
