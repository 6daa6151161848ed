"""The table of ONNX Runtime's own operators, against the ONNX Runtime that is installed."""

from __future__ import annotations

import difflib
from importlib.resources import files
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as state

TABLE = Path(str(files("dnnc.onnx.schemas").joinpath("microsoft.toml")))
MARKS = {"Single": "", "Optional": "?"}


def signature(schema: Any, last: int | None) -> str:
    """``(INPUTS) -> (OUTPUTS) {ATTRIBUTES}``; a type variable that stands for one type only is written as that type."""

    def formals(parameters: list[Any], least: int) -> str:
        rows = []
        for position, parameter in enumerate(parameters):
            types = sorted(parameter.types)
            kind = types[0] if len(types) == 1 else parameter.typeStr
            rows.append(f"{parameter.name}: {kind}{MARKS.get(parameter.option.name, '+' if position < least else '*')}")
        return ", ".join(rows)

    text = f"({formals(schema.inputs, schema.min_input)}) -> ({formals(schema.outputs, schema.min_output)})"
    keys = [f"{key}: {a.type.name}{'' if a.required else '?'}" for key, a in sorted(schema.attributes.items())]
    until = f"until {last}: " if last else ""
    return until + text + (f" {{{', '.join(keys)}}}" if keys else "")


def own_schemas() -> dict[str, dict[str, str]]:
    """Signatures of the operators that ONNX Runtime registers in version 1 and onnx does not define, by domain and name."""
    onnx_defines = {(s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history() if s.since_version == 1}
    every = [s for s in state.get_all_operator_schema() if s.domain in ("", "com.microsoft")]
    removed = {(s.domain, s.name): s.since_version - 1 for s in every if s.deprecated}
    found: dict[str, dict[str, str]] = {"ai.onnx": {}, "com.microsoft": {}}
    for schema in sorted(every, key=lambda s: str(s.name)):
        key = (schema.domain, schema.name)
        if schema.since_version == 1 and key not in onnx_defines:
            found[schema.domain or "ai.onnx"][schema.name] = signature(schema, removed.get(key))
    return found


def table() -> str:
    """The text that ``microsoft.toml`` should be."""
    version = onnxruntime.__version__
    lines = [f"# Operators that ONNX Runtime {version} registers and onnx does not define: domain, operator, signature."]
    lines += ["# Written by `pytest --update-golden tests/dnnc/onnx/test_schemas.py`; read by schemas.py."]
    for domain, rows in own_schemas().items():
        lines += ["", f'["{domain}"]']
        lines += [f'{name} = "{text}"' for name, text in rows.items()]
    return "\n".join(lines) + "\n"


def test_the_table_is_what_onnxruntime_says(update_golden: bool) -> None:
    text = TABLE.read_text(encoding="utf-8")
    if update_golden:
        TABLE.write_text(table(), encoding="utf-8")
        return
    if f"ONNX Runtime {onnxruntime.__version__} registers" not in text:
        pytest.skip(f"the table is of another release than the installed onnxruntime {onnxruntime.__version__}")
    difference = list(difflib.unified_diff(text.splitlines(), table().splitlines(), "microsoft.toml", "onnxruntime", n=0))
    assert not difference, "\n".join([*difference, "pytest --update-golden tests/dnnc/onnx/test_schemas.py writes it"])
