"""A decoder pipeline of onnxruntime-genai: the stages of a plan with all sizes open, and the config that names them.

The stages are those of the model as its file has it, cut at the same ops: caches are inputs and outputs, masks and positions
are inputs. onnxruntime-genai runs them in turn in one process, and hands each what earlier ones made; so all devices of the
plan are of one host and one execution provider, and each stage has one device.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dnnc.build.decoding import STOP, open_name
from dnnc.build.members import model_name
from dnnc.compile.decoding.configs import CONFIG, beside
from dnnc.compile.decoding.loading import load_step
from dnnc.compile.faults import NotForGenai
from dnnc.compile.flags import CompileOptions
from dnnc.onnx.providers import ON_CPU, Provider
from ir.core.diagnostics import DiagnosticSink, InvalidInput, UsageError
from ir.core.module import Func, Module, Plan, Stage
from ir.core.names import bare
from ir.core.topology import Topology
from ir.core.types import TensorType
from passes.framework.base import PassContext, needed
from passes.framework.registry import NO_MESH, PASSES
from passes.graph.folding import expand
from passes.plan.other_sizes import cut_at_first
from passes.prepare.states import Role
from passes.prepare.states.decoder import GROUP_QUERY
from passes.programs.localize import LocalizePass
from passes.programs.lower import LowerPass

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
"""The files beside a model that onnxruntime-genai reads texts with."""
PROVIDERS = {ON_CPU.name: "", "CUDAExecutionProvider": "cuda", "DmlExecutionProvider": "dml"}
"""onnxruntime-genai's names of execution providers; none for the CPU."""
KEYS = {Role.IDS: "input_ids", Role.MASK: "attention_mask", Role.POSITIONS: "position_ids"}
"""The inputs that onnxruntime-genai gives a model, by role: keys of ``model.decoder.inputs``."""


@dataclass(frozen=True, slots=True)
class GenaiPipeline:
    """``module``: the stages with all sizes open; ``files``: what lies beside the folder of their models, by name."""

    module: Module
    files: Mapping[str, bytes]


def of_genai(options: CompileOptions) -> CompileOptions:
    """The options; with ``genai``, without meshes and replicas. Raises UsageError where they are asked for."""
    if not options.genai:
        return options
    if options.mesh not in ("", NO_MESH) or (options.replicas or 1) > 1:
        raise UsageError(NotForGenai("each of its stages has one device"), where="--genai")
    if options.model.startswith("zoo:"):
        raise UsageError(NotForGenai("sizes of a model of the zoo are numbers"), where="--genai")
    return options if options.plan is not None else replace(options, mesh=NO_MESH, replicas=1)


def genai_of(planned: Module, options: CompileOptions, context: PassContext) -> GenaiPipeline:
    """The pipeline of a planned step of a decoder, expanded. Raises InvalidInput where onnxruntime-genai could not run it."""
    inside = replace(context, sink=DiagnosticSink(), statistics={})
    provider = _provider(planned)
    opened = expand(load_step(replace(options, dims={}), DiagnosticSink()))
    module = cut_at_first(planned, expand(PASSES["canonicalize"]().run(opened, inside)))
    module = expand(LocalizePass().run(expand(LowerPass().run(module, inside)), inside))
    folder = Path(options.model).parent
    files = {name: (folder / name).read_bytes() for name in TOKENIZER if (folder / name).is_file()}
    config = _config(planned, opened.entry, tuple(module.of_type(Stage)), provider, beside(folder), options)
    files[CONFIG] = (json.dumps(config, indent=1, ensure_ascii=False) + "\n").encode()
    return GenaiPipeline(module, files)


def _provider(planned: Module) -> str:
    """onnxruntime-genai's name of the execution provider of all devices; raises InvalidInput for several, and several hosts."""
    topology, stages = needed(planned, Topology), needed(planned, Plan).stages
    if several := [stage.index for stage in stages if len(stage.devices) > 1]:
        raise InvalidInput(NotForGenai(f"stage {several[0]} has several devices"), where="--genai")
    devices = [topology.device(stage.devices[0]) for stage in stages]
    if len(hosts := {device.host for device in devices}) > 1:
        raise InvalidInput(NotForGenai(f"its devices are on {len(hosts)} hosts"), where="--genai")
    names = {(Provider.of(topology, device.name) or ON_CPU).name for device in devices}
    if len(names) > 1 or not names <= PROVIDERS.keys():
        raise InvalidInput(NotForGenai(f"its devices need {', '.join(sorted(names))}"), where="--genai")
    return PROVIDERS[names.pop()]


def _config(
    planned: Module,
    entry: Func,
    stages: Sequence[Stage],
    provider: str,
    source: Mapping[str, Any],
    options: CompileOptions,
) -> dict[str, Any]:
    """The ``genai_config.json``. ``entry``: of the model with all sizes open; ``source``: the config beside it, or nothing."""
    facts = {key: attribute.value for key, attribute in planned.entry.attributes}
    roles = {name: role for name, _, role in (text.rpartition("=") for text in facts["decoding.inputs"])}
    if unknown := [name for name, role in roles.items() if role not in KEYS]:
        raise InvalidInput(NotForGenai(f"it gives no input {unknown[0]}"), where="--genai")
    heads, width, layers, names = _caches(planned)
    in_place = any(op.name == GROUP_QUERY for op in entry.ops)
    logits = next(value.type for value in planned.entry.results if value.name == f"%{facts['decoding.logits']}")
    vocabulary = logits.shape[-1] if isinstance(logits, TensorType) and logits.shape else 0
    model = {key: value for key, value in dict(source.get("model", {})).items() if key.endswith("_token_id")}
    if "eos_token_id" not in model and facts.get(STOP):
        model["eos_token_id"] = list(facts[STOP])
    return {
        "model": {
            **model,
            "type": "decoder-pipeline",
            "context_length": options.context,
            "vocab_size": vocabulary,
            "decoder": {
                "session_options": {"provider_options": [{provider: {}}] if provider else []},
                "head_size": width,
                "num_hidden_layers": layers,
                "num_key_value_heads": heads,
                "inputs": {KEYS[Role(role)]: name for name, role in roles.items()} | names[0],
                "outputs": {"logits": facts["decoding.logits"]} | names[1],
                "pipeline": [{f"stage{stage.index}": _stage(stage)} for stage in stages],
            },
        },
        "search": {
            **dict(source.get("search", {})),
            "max_length": options.context,
            "past_present_share_buffer": in_place,
        },
    }


def _stage(stage: Stage) -> dict[str, Any]:
    received = [value.name for op in stage.ops if op.name == "comm.recv" for value in op.results]
    sent = [op.operands[0] for op in stage.ops if op.name == "comm.send"]
    inputs, outputs = ([*(value.name for value in stage.args), *received], [*(value.name for value in stage.results), *sent])
    return {
        "filename": open_name(model_name(stage.index)),
        "inputs": [bare(name) for name in dict.fromkeys(inputs)],
        "outputs": [bare(name) for name in dict.fromkeys(outputs)],
    }


def _caches(planned: Module) -> tuple[int, int, int, tuple[dict[str, str], dict[str, str]]]:
    """Heads and width of a cache, the number of layers, and templates of the names of caches and of what they become. Raises
    InvalidInput for caches that onnxruntime-genai does not hold: ``[batch, heads, positions, width]``, all alike, a key and a
    value in each layer."""
    states, resources = planned.states, planned.resources
    shapes = {type_.shape if isinstance(type_ := resources[name].type, TensorType) else None for name in states}
    numbers: dict[tuple[str, str], set[int]] = {}
    for name, state in states.items():
        found = re.search(r"\d+", name)
        if found is None or state.axis != 2:
            raise InvalidInput(NotForGenai(f"{bare(name)} is no cache of a numbered layer"), where="--genai")
        before, after = (re.sub(r"\d+", "%d", text, count=1) for text in (bare(name), state.result))
        numbers.setdefault((before, after), set()).add(int(found[0]))
    layers = len(states) // 2
    shape = [dim for dim in next(iter(shapes)) or () if isinstance(dim, int)]
    if len(numbers) != 2 or any(found != set(range(layers)) for found in numbers.values()):
        raise InvalidInput(NotForGenai("its caches are not a key and a value in each layer"), where="--genai")
    if len(shapes) > 1 or len(shape) != 4:
        raise InvalidInput(NotForGenai("its caches are not all alike, [batch, heads, positions, width]"), where="--genai")
    parts = dict(zip(("key", "value"), sorted(numbers, key=lambda names: "value" in names[0]), strict=True))
    inputs = {f"past_{part}_names": before for part, (before, _) in parts.items()}
    outputs = {f"present_{part}_names": after for part, (_, after) in parts.items()}
    return shape[1], shape[3], layers, (inputs, outputs)
