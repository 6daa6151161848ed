"""The pipeline for onnxruntime-genai: its stages in turn compute what the file computes, and its tokens are the file's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime import InferenceSession

from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.onnx.elements import Array
from ir.core.diagnostics import DiagnosticSink, InvalidInput, UsageError
from tests.dnnc.compile.test_configs import NAMES, config
from tests.dnnc.compile.test_configs import decoder as write_growing
from tests.dnnc.compile.test_decoding import opened
from tests.dnnc.onnx.microsoft_models import decoder as of_builder

CONTEXT, END = 8, 5
ROLES = {"input_ids": "ids", "tokens": "ids", "attention_mask": "mask", "there": "mask", "at": "positions"}
Values = Mapping[str, Array]


def write_shared(path: Path) -> None:
    onnx.save(of_builder(layers=2), str(path))


MODELS = pytest.mark.parametrize(("write", "stages"), [(write_growing, 2), (write_shared, 2)])


def compiled(folder: Path, write: Callable[[Path], None], stages: int) -> dict[str, Any]:
    """The section ``model`` of the config of the build ``folder / "b"``."""
    write(folder / "m.onnx")
    if write is write_growing:
        config(folder, NAMES, eos_token_id=[END])
    options = CompileOptions(
        str(folder / "m.onnx"), "preset:cpu-2", folder / "b", report=False, context=CONTEXT, stages=stages, genai=True
    )
    compile_model(options, sink=DiagnosticSink())
    found: dict[str, Any] = json.loads((folder / "b" / "genai_config.json").read_text())["model"]
    return found


def step(whole: InferenceSession, token: int, position: int, caches: Values) -> tuple[Values, Values]:
    """What the model is given for a token, and its results. ``caches``: the results of the step before."""
    of_role = {"ids": [[token]], "mask": [[1] * (position + 1)], "positions": [[position]]}
    feeds: dict[str, Array] = {}
    names = [output.name for output in whole.get_outputs()]
    for arg, name in zip(whole.get_inputs(), [*[""] * (len(whole.get_inputs()) - len(names) + 1), *names[1:]], strict=True):
        shape = [1, *(dim if isinstance(dim, int) else 0 for dim in arg.shape[1:])]
        empty = np.zeros(shape, np.float32)
        feeds[arg.name] = caches.get(name, empty) if name else np.array(of_role[ROLES[arg.name]])
    return feeds, dict(zip(names, map(np.asarray, whole.run(names, feeds)), strict=True))


@MODELS
def test_stages_in_turn_compute_the_model(write: Callable[[Path], None], stages: int, tmp_path: Path) -> None:
    """Each stage is given what the config lists, and gives what it lists."""
    model = compiled(tmp_path, write, stages)
    pipeline = [next(iter(stage.values())) for stage in model["decoder"]["pipeline"]]
    assert len(pipeline) == stages
    assert (write is write_growing) == (model.get("eos_token_id") == [END])
    whole = opened(tmp_path / "m.onnx")
    programs = [opened(tmp_path / "b" / stage["filename"]) for stage in pipeline]
    expected: Values = {}
    for position, token in enumerate([3, 1, 6]):
        feeds, expected = step(whole, token, position, expected)
        values = dict(feeds)
        for stage, program in zip(pipeline, programs, strict=True):
            assert [arg.name for arg in program.get_inputs()] == stage["inputs"]
            made = program.run(stage["outputs"], {name: values[name] for name in stage["inputs"]})
            values.update(zip(stage["outputs"], map(np.asarray, made), strict=True))
        for name, array in expected.items():
            np.testing.assert_allclose(values[name], array, rtol=1e-5, atol=1e-5, err_msg=name)


@MODELS
def test_onnxruntime_genai_draws_the_tokens_of_the_file(write: Callable[[Path], None], stages: int, tmp_path: Path) -> None:
    genai = pytest.importorskip("onnxruntime_genai", reason="onnxruntime-genai is not installed: it is no dependency")
    compiled(tmp_path, write, stages)
    prompt = [3] if write is write_growing else [3, 1, 6, 2]  # the first model takes one token at a time
    model = genai.Model(str(tmp_path / "b"))
    asked = genai.GeneratorParams(model)
    asked.set_search_options(do_sample=False, max_length=CONTEXT)
    generator = genai.Generator(model, asked)
    generator.append_tokens(prompt)
    while not generator.is_done():
        generator.generate_next_token()
    whole, tokens, results = opened(tmp_path / "m.onnx"), list(prompt), dict[str, Array]()
    for position in range(CONTEXT - 1):
        _, results = step(whole, tokens[position], position, results)
        if position == len(tokens) - 1:
            tokens.append(int(results["logits"][0, -1].argmax()))
        if write is write_growing and tokens[-1] == END:
            break
    assert list(generator.get_sequence(0)) == tokens


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"mesh": "2"}, "each of its stages has one device"),
        ({"replicas": 2}, "each of its stages has one device"),
        ({"model": "zoo:llama-7b,cache=concat"}, "sizes of a model of the zoo are numbers"),
        ({"context": None}, "--context"),
        ({"topology": "preset:2xh100x1"}, "its devices are on 2 hosts"),
    ],
)
def test_what_the_pipeline_cannot_be_is_refused(more: Any, words: str, tmp_path: Path) -> None:
    write_growing(tmp_path / "m.onnx")
    config(tmp_path, NAMES)
    given = {"model": str(tmp_path / "m.onnx"), "topology": "preset:cpu-2", "out": tmp_path / "b", "context": CONTEXT}
    with pytest.raises((InvalidInput, UsageError), match=words):
        compile_model(CompileOptions(**{**given, "stages": 2, "genai": True, **more}), sink=DiagnosticSink())
    assert not (tmp_path / "b").exists()
