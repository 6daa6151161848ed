"""What files beside the model of a decoder say of it: names of its caches and inputs, its context, and tokens that end a text.

``genai_config.json`` is written for onnxruntime-genai. In its section ``model.decoder``, ``inputs`` has the names of inputs,
and templates of names with ``%d`` for the number of a layer: ``inputs.past_key_names`` is continued by
``outputs.present_key_names``, and so on for each ``past_.._names``. Only those of keys and values have defaults. A
``generation_config.json``, of transformers, says ``eos_token_id`` where the other does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dnnc.build.decoding import STOP
from dnnc.compile.faults import GenaiConfigInvalid
from ir.core.attributes import attributes
from ir.core.diagnostics import InvalidInput
from ir.core.limits import LIMITS
from ir.core.module import Func, Module
from ir.system.files import read_input_text
from ir.text.json_text import parse_json
from passes.prepare.states.pairs import CACHES, caches
from passes.prepare.states.roles import ROLES, Role

CONFIG, GENERATION = "genai_config.json", "generation_config.json"
LONGEST = "decoding.longest"
"""The attribute of an entry function that says for how many positions its model was made."""
_NUMBER = "%d"
_PAST = re.compile(r"past_(\w+_)?names")
_DEFAULTS = {
    f"{time}_{part}_names": f"{word}.%d.{part}"
    for time, word in (("past", "past_key_values"), ("present", "present"))
    for part in ("key", "value")
}
_ROLES = {"input_ids": Role.IDS, "attention_mask": Role.MASK, "position_ids": Role.POSITIONS}
"""The roles of inputs, by the keys of ``model.decoder.inputs`` that state their names."""


def with_configs(module: Module, model: Path) -> Module:
    """The module of an ONNX file, with what the files beside it say as attributes of its entry: ``caches`` lists caches, as
    ``IN=OUT``, and ``roles`` other inputs, as ``NAME=ROLE``; ``decoding.longest`` is the context length, and ``decoding.stop``
    lists the tokens that end a text. Unchanged where there are no such files, the config is of another file, or the model is
    no decoder. Raises InvalidInput for a file that is no JSON or has other contents than its readers take."""
    func = module.first(Func)
    if func is None:
        return module
    facts: dict[str, Any] = {}
    document = _document(model.parent / CONFIG)
    if document is not None and document.names(model.name):
        facts = {CACHES: tuple(_pairs(func, document.templates())), ROLES: tuple(_roles(func, document.inputs()))}
        facts |= {LONGEST: document.longest(), STOP: document.stop(document.model(), "model.")}
    facts = {**dict(func.attributes), **{name: fact for name, fact in facts.items() if fact}}
    if not caches(replace(func, attributes=attributes(facts))):
        return module
    if STOP not in facts and (document := _document(model.parent / GENERATION)) is not None:
        facts |= {STOP: stop} if (stop := document.stop(document.content)) else {}
    return module.replace(func, replace(func, attributes=attributes(facts)))


def _pairs(func: Func, templates: Mapping[str, str]) -> Iterator[str]:
    """The inputs of ``func`` that a template fits and whose results are there, as ``IN=OUT``."""
    results = {value.name[1:] for value in func.results}
    for arg in func.args:
        for past, present in templates.items():
            before, after = past.split(_NUMBER)
            match = re.fullmatch(re.escape(before) + r"(\d+)" + re.escape(after), arg.name[1:])
            if match and (result := present.replace(_NUMBER, match[1])) in results:
                yield f"{arg.name[1:]}={result}"
                break


def _roles(func: Func, inputs: Mapping[str, str]) -> Iterator[str]:
    names = {arg.name[1:] for arg in func.args}
    return (f"{name}={_ROLES[key]}" for key, name in inputs.items() if name in names)


class _Document:
    """A config: its content, and where it lies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = read_input_text(path, "a config of a language model", LIMITS.document_bytes)
        self.content = self.object(parse_json(text, str(path)), "the config")

    def model(self) -> dict[str, Any]:
        return self.object(self.content.get("model", {}), "model")

    def decoder(self, key: str = "") -> dict[str, Any]:
        """The section ``model.decoder``, or that of ``key`` in it."""
        section = self.object(self.model().get("decoder", {}), "model.decoder")
        return self.object(section.get(key, {}), f"model.decoder.{key}") if key else section

    def names(self, file: str) -> bool:
        """Whether the config is of ``file``, or does not say of which one it is."""
        return bool(self.decoder().get("filename", file) == file)

    def templates(self) -> dict[str, str]:
        """Templates of names of the decoder's inputs, each with that of the outputs which continue them."""
        inputs, outputs, found = self.decoder("inputs"), self.decoder("outputs"), dict[str, str]()
        for key in dict.fromkeys([*inputs, *_DEFAULTS]):
            if _PAST.fullmatch(key):
                continued = key.replace("past", "present", 1)
                past = self.template(inputs, key, "model.decoder.inputs")
                present = self.template(outputs, continued, "model.decoder.outputs")
                if past and present:
                    found[past] = present
        return found

    def template(self, section: Mapping[str, Any], key: str, place: str) -> str:
        """The template at ``key``; empty where none is stated and none is the default."""
        value = section.get(key, _DEFAULTS.get(key, ""))
        if not isinstance(value, str) or (value and (value.count("%") != 1 or _NUMBER not in value)):
            raise self.wrong(f"{place}.{key}", value, "a name with one %d")
        return value

    def inputs(self) -> dict[str, str]:
        """The names of the decoder's other inputs, by their keys."""
        section = self.decoder("inputs")
        for key in _ROLES.keys() & section.keys():
            if not isinstance(section[key], str):
                raise self.wrong(f"model.decoder.inputs.{key}", section[key], "a name")
        return {key: section[key] for key in _ROLES if key in section}

    def longest(self) -> int:
        """The positions for which the model was made; 0 where the config does not say."""
        value = self.model().get("context_length", 0)
        if type(value) is not int or value < 0:
            raise self.wrong("model.context_length", value, "a number of positions")
        return value

    def stop(self, section: Mapping[str, Any], place: str = "") -> tuple[int, ...]:
        """The tokens that end a text: ``eos_token_id`` of the section, one or several."""
        value = section.get("eos_token_id")
        tokens = () if value is None else tuple(value) if isinstance(value, list) else (value,)
        if any(type(token) is not int or not 0 <= token < 1 << 63 for token in tokens):
            raise self.wrong(f"{place}eos_token_id", value, "a token id, or a list of them,")
        return tokens

    def object(self, value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.wrong(place, value, "an object")
        return value

    def wrong(self, place: str, found: Any, expected: str) -> InvalidInput:
        return InvalidInput(GenaiConfigInvalid(place, _told(found), expected), where=str(self.path))


def beside(folder: Path) -> dict[str, Any]:
    """The ``genai_config.json`` of a folder; empty where there is none. Raises InvalidInput where it is none."""
    document = _document(folder / CONFIG)
    if document is None:
        return {}
    document.decoder()
    return document.content


def _document(path: Path) -> _Document | None:
    return _Document(path) if path.is_file() else None


def _told(value: Any) -> str:
    """A value of JSON in words."""
    if isinstance(value, str):
        return f"'{value[:80]}'"
    kinds = {dict: "an object", list: "a list", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), str(value)[:20] if isinstance(value, int) else "a number")
