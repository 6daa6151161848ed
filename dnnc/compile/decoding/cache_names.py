"""The names of caches that ``genai_config.json`` beside a model states, for the generator of onnxruntime-genai.

Its section ``model.decoder`` has templates of names with ``%d`` for the number of a layer: ``inputs.past_key_names`` is
continued by ``outputs.present_key_names``, and so on for each ``past_.._names``. Only those of keys and values have defaults.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dnnc.compile.faults import GenaiConfigInvalid
from ir.core.attributes import attributes
from ir.core.diagnostics import InvalidInput
from ir.core.limits import LIMITS
from ir.core.module import Func, Module
from ir.system.files import read_input_text
from ir.text.json_text import parse_json
from passes.prepare.states.pairs import CACHES

CONFIG = "genai_config.json"
_NUMBER = "%d"
_PAST = re.compile(r"past_(\w+_)?names")
_DEFAULTS = {
    f"{time}_{part}_names": f"{word}.%d.{part}"
    for time, word in (("past", "past_key_values"), ("present", "present"))
    for part in ("key", "value")
}


def with_cache_names(module: Module, model: Path) -> Module:
    """The module of an ONNX file, whose entry's attribute ``caches`` lists the caches that the config beside it names, as
    ``IN=OUT``; unchanged where there is no config, or it names none that the entry has. Raises InvalidInput for a config that
    is no JSON or has other contents than onnxruntime-genai reads."""
    config = model.parent / CONFIG
    if not config.is_file():
        return module
    templates = _templates(config)
    func = module.first(Func)
    found = tuple(_named(func, templates)) if func is not None else ()
    if func is None or not found:
        return module
    return module.replace(func, replace(func, attributes=attributes({**dict(func.attributes), CACHES: found})))


def _named(func: Func, templates: Mapping[str, str]) -> Iterator[str]:
    """The inputs of ``func`` that a template fits and whose results are there, as ``IN=OUT``."""
    results = {value.name[1:] for value in func.results}
    for arg in func.args:
        for past, present in templates.items():
            before, after = past.split(_NUMBER)
            match = re.fullmatch(re.escape(before) + r"(\d+)" + re.escape(after), arg.name[1:])
            if match and (result := present.replace(_NUMBER, match[1])) in results:
                yield f"{arg.name[1:]}={result}"
                break


def _templates(config: Path) -> dict[str, str]:
    """Templates of names of the decoder's inputs, each with that of the outputs which continue them. A config without a
    decoder has none."""
    document = parse_json(read_input_text(config, "a config of onnxruntime-genai", LIMITS.document_bytes), str(config))
    section, place = _object(document, "the config", config), ""
    for key in ("model", "decoder"):
        place = f"{place}.{key}" if place else key
        section = _object(section.get(key, {}), place, config)
    inputs, outputs = (_object(section.get(key, {}), f"{place}.{key}", config) for key in ("inputs", "outputs"))
    found: dict[str, str] = {}
    for key in dict.fromkeys([*inputs, *_DEFAULTS]):
        if _PAST.fullmatch(key):
            continued = key.replace("past", "present", 1)
            past = _template(inputs, key, f"{place}.inputs", config)
            present = _template(outputs, continued, f"{place}.outputs", config)
            if past and present:
                found[past] = present
    return found


def _object(value: Any, place: str, config: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(GenaiConfigInvalid(place, _told(value), "an object"), where=str(config))
    return value


def _template(section: Mapping[str, Any], key: str, place: str, config: Path) -> str:
    """The template at ``key``; empty where none is stated and none is the default."""
    value = section.get(key, _DEFAULTS.get(key, ""))
    if not isinstance(value, str) or (value and (value.count("%") != 1 or _NUMBER not in value)):
        raise InvalidInput(GenaiConfigInvalid(f"{place}.{key}", _told(value), "a name with one %d"), where=str(config))
    return value


def _told(value: Any) -> str:
    """A value of JSON in words."""
    if isinstance(value, str):
        return f"'{value[:80]}'"
    kinds = {dict: "an object", list: "a list", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


__all__ = ["CONFIG", "with_cache_names"]
