"""Runs a whole function of the IR in torch, as the statements of its ops.

torch's autograd differentiates a forward function run this way if its weights require gradients: ``dnnc train --check``
compares a training step with these gradients.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from dnnc.engines.torch.statements import dead_after, identifier, prelude, statement
from ir.core.module import Func, Module
from ir.core.ops import Op
from ir.layout_rules import Surroundings
from ir.ops.opdefs import module_opsets


def function_source(module: Module, func: Func) -> tuple[str, dict[str, str]]:
    """The source of a Python function ``run(values, device)`` that computes ``func``, and a dict: name in the IR -> name in it.

    ``values`` maps the names of arguments and resources to tensors, and ``%step`` to the number of the step for ``grad.step``;
    small constants may be missing, since statements contain their elements. ``run`` returns a tuple of the results and frees
    each value after its last use. Raises InvalidInput for an op that cannot be written for torch."""
    opsets = module_opsets(module)
    surroundings = Surroundings(module.resources.values(), opsets)
    surroundings.types.update((arg.name, arg.type) for arg in func.args)
    taken, names = set[str](), dict[str, str]()
    ops: list[Op] = []
    lines: list[str] = []
    computed = {value.name for op in func.ops for value in op.results}
    outputs = [value.name for value in func.results]
    read = {name for op in func.ops for name in op.operands if name} | set(outputs)
    inputs = sorted(read - computed)
    names.update((name, identifier(name, taken)) for name in inputs)
    for op, dead in zip(func.ops, dead_after(func.ops, outputs), strict=True):
        surroundings.see(op)
        results = [identifier(value.name, taken) if value.name else "" for value in op.results]
        names.update((value.name, result) for value, result in zip(op.results, results, strict=True) if value.name)
        operands = [names[name] if name else None for name in op.operands]
        if op.name == "grad.step":
            lines.append(f'{results[0]} = values["%step"]')
            continue
        ops.append(op)
        lines.append(statement(op, operands, results, surroundings.types, surroundings.numbers, opsets.get("onnx", 24)))
        if freed := [names[name] for name in dead if name in names]:
            lines.append(f"del {', '.join(freed)}")
    used = set(re.findall(r"\w+", "\n".join(lines))) | {names[name] for name in outputs}
    lines[:0] = [f"{names[name]} = values[{name!r}]" for name in inputs if names[name] in used]  # not constants in statements
    lines.append(f"return ({''.join(names[name] + ', ' for name in outputs)})")
    body = "\n".join(f"    {line}" for text in lines for line in text.split("\n"))
    return f"{prelude(ops)}\n\ndef run(values, device):\n{body}\n", names


def run_function(func: Func, module: Module, values: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """The results of ``func`` on the processor. ``values``: name in the IR -> tensor, of arguments and resources (see
    ``function_source``)."""
    return list(compiled(module, func)(values, "cpu"))


def compiled(module: Module, func: Func) -> Callable[[Mapping[str, torch.Tensor], Any], tuple[torch.Tensor, ...]]:
    """The function ``run(values, device)`` that ``function_source`` writes."""
    source, _ = function_source(module, func)
    run: Callable[[Mapping[str, torch.Tensor], Any], tuple[torch.Tensor, ...]] = defined(source)["run"]
    return run


def defined(source: str) -> dict[str, Any]:
    """What a text defines that was written from ops just now."""
    scope: dict[str, Any] = {}
    exec(source, scope)  # safe: value names are made identifiers, attributes are numbers, checked words or reprs
    return scope
