"""Opens every model of a build in onnxruntime, one after another, before the build counts as done.

What is opened is what a run would open, with the same options but for large constants, which are not computed: a model of 400
bytes can ask for gigabytes of them. Each session is given up before the next one is made, so the memory needed is that of the
largest model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from dnnc.ort import plain_words
from dnnc.runtime.errors import refusal, refused_operator
from dnnc.runtime.program import Program
from ir.diagnostics import Diagnostic, InvalidInput
from ir.limits import LIMITS

HINT = "onnxruntime runs the programs; --no-load-test writes them without asking it"
_STAGE = re.compile(r"stage(\d+)(?:\.member(\d+)\.segment(\d+))?\.onnx")
_NODE = re.compile(r"""node with name '([^']+)'|Node:? ?\(([^)]+)\)|In Node, \("([^"]+)\"""")


def load_test(models: Iterable[Path], node_of: Callable[[str], str]) -> None:
    """Raises InvalidInput that names every model which onnxruntime refuses, its reason with the node in it. ``node_of``: the
    first node of an operator (``domain.Type``), for where onnxruntime names that alone."""
    faults = []
    for model in models:
        try:
            Program(model.read_bytes(), (), folder=str(model.parent.absolute()), folded_bytes=LIMITS.folded_bytes)
        except OSError:  # the machine's fault: no more descriptors
            raise
        except Exception as error:  # onnxruntime has a dozen classes of its own, of no common base
            text = str(error).strip().replace(f"{model}", model.name)
            reason = refusal(text) or plain_words(text) or type(error).__name__
            node = next(filter(None, found.groups()), "") if (found := _NODE.search(text)) else ""
            if not node and (operator := refused_operator(text)):
                node = node_of(operator)
            reason += f" (node {node})" if node and node not in reason else ""
            faults.append(Diagnostic(f"onnxruntime refuses its program: {reason}", where=_label(model)))
    if faults:
        faults[-1] = Diagnostic(faults[-1].message, faults[-1].where, None, HINT)
        raise InvalidInput(faults)


def _label(model: Path) -> str:
    found = _STAGE.fullmatch(model.name)
    if found is None:
        return model.name
    stage, member, segment = found.groups()
    return f"stage {stage}" if member is None else f"stage {stage}, member {member}, segment {segment}"


__all__ = ["load_test"]
