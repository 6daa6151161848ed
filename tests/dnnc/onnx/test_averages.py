"""Initializers that an exporter stored once for several tensors, of which some are running averages of batch normalisations."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ir.core.module import Inline
from tests.dnnc.onnx.models import load


def normalised(folder: Path, *operands: tuple[str, ...], producer: str = "pytorch") -> list[tuple[str, ...]]:
    """What imported batch normalisations, with these initializers of zeros or ones, read of scale, bias, mean and variance."""
    names = dict.fromkeys(name for own in operands for name in own)
    nodes = [
        helper.make_node("BatchNormalization", [f"v{number}", *own], [f"v{number + 1}"]) for number, own in enumerate(operands)
    ]
    given, made = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 3, 2]) for name in ("v0", nodes[-1].output[0])
    )
    stored = [numpy_helper.from_array(np.full(3, float(name[0] == "o"), np.float32), name) for name in names]
    graph = helper.make_graph(nodes, "g", [given], [made], stored)
    module = load(helper.make_model(graph, producer_name=producer), folder)
    ones = np.ones(3, np.float32).tobytes()
    found = [one.operands[1:5] for one in module.entry.ops]
    for own, name in zip(itertools.chain(*found), itertools.chain(*operands), strict=True):
        assert (module.resources[own].data == Inline(ones)) == (name[0] == "o")
    return found


def test_running_averages_are_apart_from_weights_that_an_exporter_stored_with_them(tmp_path: Path) -> None:
    """Of all that was stored once, since none of it is then told apart; not of the averages of one module that is run twice."""
    merged = normalised(tmp_path, ("one", "zero", "zero", "one"), ("one", "zero", "zero", "one"))
    assert len({*merged[0], *merged[1]}) == 8
    assert merged[0][:2] == ("@one", "@zero")
    merged = normalised(tmp_path, ("zero", "zero", "zero", "one"), ("zero", "zero", "zero", "one"))
    assert len({*merged[0], *merged[1]}) == 8
    assert normalised(tmp_path, ("o", "z", "z2", "o2"), ("o3", "z3", "z4", "o4")) == [
        ("@o", "@z", "@z2", "@o2"),
        ("@o3", "@z3", "@z4", "@o4"),
    ]
    assert normalised(tmp_path, ("o", "z", "z2", "o2"), ("o", "z", "z2", "o2")) == [("@o", "@z", "@z2", "@o2")] * 2
    assert normalised(tmp_path, ("o", "z", "zero", "one"), ("o2", "z2", "zero", "one")) == [
        ("@o", "@z", "@zero", "@one"),
        ("@o2", "@z2", "@zero.1", "@one.1"),
    ]
    read = ("one", "zero", "zero", "one")
    assert normalised(tmp_path, read, producer="dnnc.from_torch") == [tuple(f"@{name}" for name in read)]
    (equal,) = normalised(tmp_path, ("o", "z", "o2", "o2"))
    assert equal == ("@o", "@z", "@o2", "@o2.1")
