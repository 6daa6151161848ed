"""Training cases for the prior of TAG's search: models, and random topologies drawn as TAG draws them.

Topologies (Zhang et al., TPDS 2023): up to 4 hosts, each with 2 to 8 P100, GTX 1080 Ti or V100, 8 or 20 GB/s inside a host,
2.81 or 5 GB/s between hosts. Models are those that TAG was trained on, from the zoo, except for batch and depth."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from dnnc.machines.topology.read import read_topology
from dnnc.onnx.model import ImportedModel
from dnnc.search_tag.device_groups import Machines
from dnnc.search_tag.op_groups import Workload
from dnnc.search_tag.simulator import Simulator
from ir.core.module import Module
from passes.framework.base import PassContext
from passes.framework.manager import PassManager
from passes.framework.pipeline import parse_pipeline
from passes.graph.folding import expand

MODELS = (
    "zoo:vgg19,batch=96",
    "zoo:resnet101,batch=96",
    "zoo:inception-v3,batch=96",
    "zoo:transformer-base,batch=96",
    "zoo:bert-large,batch=48",
    "zoo:bert-small,batch=96",
)
"""The models that TAG was trained on."""
TYPES = {"p100": 10, "gtx1080ti": 9, "v100": 30}
"""GiB of memory that programs can use, by device type."""


class Cases:
    """Cases by number: models in turn, on ``topologies`` random topologies drawn from ``seed`` on. ``load`` reads a model
    (``dnnc.compile.load.load_model``)."""

    def __init__(
        self, models: Sequence[str], topologies: int, seed: int, context: PassContext, load: Callable[..., ImportedModel]
    ) -> None:
        self.models, self.topologies, self.seed, self.context = tuple(models), topologies, seed, context
        self._load = load
        self._modules: dict[str, Module] = {}
        self._simulators: dict[tuple[str, int], Simulator] = {}

    def __call__(self, number: int) -> tuple[str, Simulator]:
        """Name and simulator of a case. Raises what reading a model raises."""
        model = self.models[number % len(self.models)]
        drawing = self.seed + number // len(self.models) % self.topologies
        key = model, drawing
        if key not in self._simulators:
            self._simulators[key] = simulator_of(self.module(model), drawn(drawing))
        return f"{model} on topology {drawing}", self._simulators[key]

    def module(self, model: str) -> Module:
        """The module of a model, with the costs of its ops."""
        if model not in self._modules:
            loaded = self._load(model, {}, self.context.sink, allow_missing_weights=True)
            context = replace(self.context, statistics={})
            self._modules[model] = PassManager(parse_pipeline("canonicalize,cost"), expanded=True).run(
                expand(loaded.module), context
            )
        return self._modules[model]


def simulator_of(module: Module, text: str) -> Simulator:
    """The simulator of a module with costs on the topology of a TOML text."""
    topology = read_topology(text)
    return Simulator(Workload(module, topology), Machines(topology))


def drawn(seed: int) -> str:
    """One of TAG's random topologies, as TOML."""
    pick = random.Random(seed)
    hosts = [(pick.choice(sorted(TYPES)), pick.randint(2, 8), pick.choice((8, 20))) for _ in range(pick.randint(1, 4))]
    between = pick.choice((2.81, 5))
    lines = ["version = 1", 'switches = ["network"]', "[types]"]
    lines += [f'{name} = "preset:{name}"' for name in sorted({name for name, _, _ in hosts})]
    for number, (name, count, inside) in enumerate(hosts):
        host = f"h{number}"
        lines += ["[[hosts]]", f'name = "{host}"']
        lines += ["[[devices]]", f'name = "{host}-{name}-{{0..{count - 1}}}"', f'type = "{name}"', f'host = "{host}"']
        lines += [f'memory = "{TYPES[name]} GiB"']
        lines += [
            "[[links]]",
            f'each = "devices of {host}"',
            f'to = "{host}"',
            f'bandwidth = "{inside} GB/s"',
            'latency = "6 us"',
        ]
        lines += ["[[links]]", f'each = "{host}"', 'to = "network"', f'bandwidth = "{between} GB/s"', 'latency = "0 us"']
        lines += ["shared = true"]
    return "\n".join(lines) + "\n"
