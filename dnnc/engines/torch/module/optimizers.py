"""``optimizer_options``: an optimizer of PyTorch as options of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
import torch

from dnnc.engines.torch.module.faults import OptimizerRefused
from ir.core.diagnostics import UsageError

_RULES: Mapping[type, str] = {
    torch.optim.SGD: "sgd",
    torch.optim.Adam: "adam",
    torch.optim.AdamW: "adamw",
    torch.optim.Adafactor: "adafactor",
}
_OWN = ("params", "param_names", "lr", "initial_lr", "weight_decay")
"""What groups may each have of their own."""
_OTHER_RULES = ("maximize", "amsgrad")
"""Switches of torch that change the rule to one that dnnc does not have."""
_HOW = ("foreach", "capturable", "differentiable", "fused")
"""Switches of torch that say how a step is computed, not what."""


def optimizer_options(
    optimizer: torch.optim.Optimizer, module: torch.nn.Module, model: str | Path
) -> dict[str, str | float | bool | list[str]]:
    """The keywords of ``dnnc.plan`` with which weights are updated as ``optimizer`` does: its rule, its numbers, its parameter
    groups (their rates and weight decays), and as ``frozen`` what would train and is in none of them::

        dnnc.from_torch(model, (x,), "cnn.onnx")
        plan = dnnc.plan("cnn.onnx", .., **dnnc.optimizer_options(optimizer, model, "cnn.onnx"))

    ``optimizer``: a new SGD, Adam, AdamW or Adafactor of the parameters of ``module``, of which ``from_torch`` made the file
    ``model``. Rates are those before any scheduler, which ``learning_rate_schedule`` of ``dnnc.plan`` states.

    Raises UsageError for another optimizer, for what its rule does and dnnc does not, and for one that has made steps, since
    training would begin without its state."""
    rule = _RULES.get(type(optimizer))
    if rule is None:
        raise _refused(
            f"{type(optimizer).__name__} is none of {', '.join(one.__name__ for one in _RULES)}", "take one of these"
        )
    if optimizer.state:
        raise _refused("it has made steps, and training begins without its state", "give a new one")
    groups = optimizer.param_groups
    numbers = _alike(groups)
    names = _names(module, {one.name for one in onnx.load(Path(model), load_external_data=False).graph.initializer})
    own: dict[str, tuple[float, float]] = {}
    for number, group in enumerate(groups):
        for index, parameter in enumerate(group["params"]):
            if id(parameter) not in names:
                reason = f"parameter {index} of its group {number}, {list(parameter.shape)}, is not of the module"
                raise _refused(reason, "make it of module.parameters()")
            if name := names[id(parameter)]:
                own[name] = float(group.get("initial_lr", group["lr"])), float(group["weight_decay"])
    trained = {id(value) for value in module.parameters() if value.requires_grad}
    if not own:
        raise _refused("none of its parameters is a weight of the model", f"is {model} of this module?")
    most = max(own.values(), key=[*own.values()].count)
    options: dict[str, str | float | bool | list[str]] = {
        **_of_rule(rule, numbers),
        "learning_rate": most[0],
        "weight_decay": most[1],
    }
    if different := [_group(name, *its) for name, its in own.items() if its != most]:
        options["group"] = different
    if frozen := [_glob(name) for key, name in names.items() if key in trained and name and name not in own]:
        options["frozen"] = frozen
    return options


def _alike(groups: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What all groups have alike, and must. Raises UsageError."""
    first, *others = [{key: value for key, value in one.items() if key not in (*_OWN, *_HOW)} for one in groups]
    for other in others:
        if different := [key for key in first if first[key] != other.get(key)]:
            raise _refused(
                f"its groups differ in {', '.join(different)}",
                "groups may have a rate and a weight decay of their own, no more",
            )
    for key in _OTHER_RULES:
        if first.pop(key, False):
            raise _refused(f"it has {key}=True, which no rule of dnnc has", "leave it out")
    return first


def _of_rule(rule: str, numbers: Mapping[str, Any]) -> dict[str, str | float | bool | list[str]]:
    """The optimizer of a plan. Raises UsageError for what it has not."""
    if rule == "sgd":
        if not numbers["momentum"]:
            return {"optimizer": "sgd"}
        if numbers["dampening"]:
            raise _refused("it has a dampening of momentum, which no rule of dnnc has", "leave it out")
        return {
            "optimizer": "momentum",
            "momentum": float(numbers["momentum"]),
            **({"nesterov": True} if numbers["nesterov"] else {}),
        }
    if rule == "adafactor":
        first, second = numbers["eps"]
        most = {"threshold": float(numbers["d"]), "beta2_decay": float(numbers["beta2_decay"]), "epsilon2": float(second)}
        return {"optimizer": rule, **most, **({} if first is None else {"epsilon1": float(first)})}
    beta1, beta2 = map(float, numbers["betas"])
    decoupled = numbers.get("decoupled_weight_decay", False)
    return {"optimizer": "adamw" if decoupled else rule, "beta1": beta1, "beta2": beta2, "epsilon": float(numbers["eps"])}


def _names(module: torch.nn.Module, weights: set[str]) -> dict[int, str]:
    """The name in the model of each parameter, by its identity; empty for one that the model lacks. A tied one has several
    names in the module, of which the model has one."""
    found: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if name in weights or id(parameter) not in found:
            found[id(parameter)] = name if name in weights else ""
    return found


def _group(name: str, rate: float, decay: float) -> str:
    return f"{_glob(name)},learning-rate={rate!r},weight-decay={decay!r}"


def _glob(name: str) -> str:
    """The pattern that matches this name alone."""
    return "".join(_escaped(name))


def _escaped(name: str) -> Iterator[str]:
    for letter in name:
        yield f"[{letter}]" if letter in "*?[" else letter


def _refused(reason: str, hint: str) -> UsageError:
    return UsageError(OptimizerRefused(reason, hint), where="optimizer")
