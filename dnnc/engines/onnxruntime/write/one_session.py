"""``session.json``: settings with which a single ONNX Runtime session follows a plan for one host, without dnnc.

An ONNX Runtime session can assign nodes to execution providers by label (tried with 1.31): the metadata ``layer_ann`` labels a
node, and the session option ``session.layer_assignment_settings`` lists the labels of each provider::

    CUDAExecutionProvider(=stage0, =stage2); CPUExecutionProvider(=stage1)

``=`` compares whole labels; without it, ``stage1`` would match ``stage10`` too. The assignment is a preference: a node for
which the provider has no kernel goes to the next provider. A session has each provider once, so it cannot use two GPUs of one
provider.
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
    """The content of ``session.json``. ``model``: the file whose nodes are labelled.

    None where one session cannot follow the plan: its devices are on several hosts, need one provider with different options
    (two GPUs), or a stage needs two providers; or a device is no CPU and its type names no provider."""
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
    assigned = [text for labels in by_provider.values() for text in labels]
    if len(hosts) > 1 or len(set(names)) < len(names) or len(set(assigned)) < len(assigned):
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
