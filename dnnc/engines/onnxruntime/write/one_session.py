"""``session.json``: a plan for one host as the settings of a single ONNX Runtime session, for programs that do not run dnnc.

ONNX Runtime can be told which execution provider should take which nodes (from 1.31 at the latest): nodes have labels, the
metadata ``layer_ann``, and the session option ``session.layer_assignment_settings`` lists labels by provider::

    CUDAExecutionProvider(=stage0, =stage2); CPUExecutionProvider(=stage1)

``=`` asks for the whole label: without it, ``stage1`` would be the beginning of ``stage10``. This is a preference: a node for
which the provider has no kernel goes to the next provider. A session has each provider once, so a plan that uses two GPUs of
one provider has no such form.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dnnc.onnx.providers import CPU, ON_CPU, Provider
from ir.core.module import Stage
from ir.core.topology import Topology

SESSION = "session.json"
SCHEMA = "dnnc.session/1"
LABEL = "layer_ann"
"""The node metadata that ONNX Runtime reads."""


def label(stage: int) -> str:
    """The label of the nodes of a stage."""
    return f"stage{stage}"


def session_settings(stages: Iterable[Stage], topology: Topology, model: str) -> dict[str, Any] | None:
    """What ``session.json`` says of ``model``, the file whose nodes have labels. None where one session cannot do what the plan
    says: it is for several hosts, uses two devices of one provider, or a device is no CPU and its type names no provider."""
    by_provider: dict[Provider, list[str]] = {}
    hosts = set()
    for stage in stages:
        for name in stage.devices:
            device = topology.device(name)
            hosts.add(device.host)
            provider = Provider.of(topology, name)
            if provider is None and topology.type(device.type).kind != "cpu":
                return None
            labels = by_provider.setdefault(provider or ON_CPU, [])
            if label(stage.index) not in labels:
                labels.append(label(stage.index))
    names = [provider.name for provider in by_provider]
    every = [text for labels in by_provider.values() for text in labels]
    if len(hosts) > 1 or len(set(names)) < len(names) or len(set(every)) < len(every):
        return None
    rules = [f"{provider.name}({', '.join(f'={text}' for text in labels)})" for provider, labels in by_provider.items()]
    others = [[provider.name, dict(provider.options)] for provider in by_provider if provider.name != CPU]
    cpu = next((provider for provider in by_provider if provider.name == CPU), ON_CPU)
    return {
        "schema": SCHEMA,
        "model": model,
        "providers": [*others, [CPU, dict(cpu.options)]],
        "options": {"session.layer_assignment_settings": "; ".join(rules)},
    }


__all__ = ["LABEL", "SESSION", "label", "session_settings"]
