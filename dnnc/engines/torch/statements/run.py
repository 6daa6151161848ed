"""Runs a whole function of the IR in torch, by the statements of its ops.

The forward program so run is differentiable by torch's autograd where its weights require gradients: that is the oracle of
``dnnc train --check``.
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
    """A Python function ``run(values)`` that computes ``func``, and how each name of the IR is called in it.

    ``values`` maps names of arguments and resources to tensors, ``%step`` to the number of the step where ``grad.step`` asks;
    the function gives a tuple of the results. Small constants that are written into statements need not be there. What is not
    read any more is freed. Raises InvalidInput for an op that torch cannot run."""
    opsets = module_opsets(module)
    around = Surroundings(module.resources.values(), opsets)
    around.types.update((arg.name, arg.type) for arg in func.args)
    taken, names = set[str](), dict[str, str]()
    ops: list[Op] = []
    lines: list[str] = []
    made = {value.name for op in func.ops for value in op.results}
    outputs = [value.name for value in func.results]
    read = {name for op in func.ops for name in op.operands if name} | set(outputs)
    given = sorted(read - made)
    names.update((name, identifier(name, taken)) for name in given)
    for op, dead in zip(func.ops, dead_after(func.ops, outputs), strict=True):
        around.see(op)
        results = [identifier(value.name, taken) if value.name else "" for value in op.results]
        names.update((value.name, result) for value, result in zip(op.results, results, strict=True) if value.name)
        operands = [names[name] if name else None for name in op.operands]
        if op.name == "grad.step":
            lines.append(f'{results[0]} = values["%step"]')
            continue
        ops.append(op)
        lines.append(statement(op, operands, results, around.types, around.numbers, opsets.get("onnx", 24)))
        if gone := [names[name] for name in dead if name in names]:
            lines.append(f"del {', '.join(gone)}")
    said = set(re.findall(r"\w+", "\n".join(lines))) | {names[name] for name in outputs}
    lines[:0] = [f"{names[name]} = values[{name!r}]" for name in given if names[name] in said]  # others are written in
    lines.append(f"return ({''.join(names[name] + ', ' for name in outputs)})")
    body = "\n".join(f"    {line}" for text in lines for line in text.split("\n"))
    return f"{prelude(ops)}\n\ndef run(values, device):\n{body}\n", names


def run_function(func: Func, module: Module, values: Mapping[str, torch.Tensor], device: str = "cpu") -> list[torch.Tensor]:
    """The results of ``func`` on these arguments and resources, by their names in the IR."""
    return list(compiled(module, func)(values, device))


def compiled(module: Module, func: Func) -> Callable[[Mapping[str, torch.Tensor], Any], tuple[torch.Tensor, ...]]:
    """The function of ``function_source``."""
    source, _ = function_source(module, func)
    scope: dict[str, Any] = {}
    exec(source, scope)  # the source is ours: names are identifiers, numbers and words of attributes are written by repr
    run: Callable[[Mapping[str, torch.Tensor], Any], tuple[torch.Tensor, ...]] = scope["run"]
    return run


__all__ = ["compiled", "function_source", "run_function"]
