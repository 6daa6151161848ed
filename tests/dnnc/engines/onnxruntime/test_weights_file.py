"""The weights file: layout, pieces that join to what the frontend reads, bounded memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dnnc.engines.onnxruntime.write import weights_file
from dnnc.engines.onnxruntime.write.weights_file import in_file, layout, pieces, write_weights
from dnnc.onnx.arrays import to_data
from dnnc.onnx.weights import read_resource
from ir.core.diagnostics import InvalidInput
from ir.core.module import Declared, External, Inline, Random, Resource, ResourceData, Splat, View
from ir.core.types import DType, TensorType


def resource(name: str, elements: int, data: ResourceData | None = None, dtype: DType = DType.F32) -> Resource:
    return Resource(name, TensorType(dtype, (elements,)), data or Splat(1))


def test_places_are_aligned_in_order_and_count_each_name_once() -> None:
    weights = [
        resource("@a", 300),
        resource("@small", 256),
        resource("@b", 2000),
        resource("@a", 300),
        resource("@c", 301),
        resource("@d", 300),
    ]
    assert layout(weights, "w.data") == {
        "@a": External("w.data", 0, 1200),
        "@b": External("w.data", 4096, 8000),  # a page and more begins at a page
        "@c": External("w.data", 12096, 1204),
        "@d": External("w.data", 13312, 1200),
    }


def test_strings_sparse_and_small_data_stay_in_the_models() -> None:
    assert not in_file(resource("@s", 1 << 20, dtype=DType.STRING))
    assert not in_file(Resource("@p", TensorType(DType.F32, (1 << 20,), sparse=True), Splat(0)))
    assert not in_file(resource("@n", 256))
    assert in_file(resource("@n", 257))


@pytest.mark.parametrize(
    "dtype", [DType.F32, DType.F64, DType.F16, DType.BF16, DType.I8, DType.BOOL, DType.I4, DType.U2, DType.F6E2M3]
)
@pytest.mark.parametrize("data", [Splat(1), Random("normal", 3, 2.0), Random("uniform", 3, 2.0)])
def test_pieces_join_to_the_whole(dtype: DType, data: ResourceData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_file, "ELEMENTS", 64)
    weight = resource("@w", 1003, data, dtype)
    found = list(pieces(weight, Path()))
    assert len(found) > 1
    assert b"".join(found) == to_data(read_resource(weight, Path()), dtype)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.I4])
def test_pieces_of_a_view_join_to_its_box(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_file, "ELEMENTS", 64)
    stored = Random("normal", 3, 2.0)
    whole = read_resource(Resource("@w", TensorType(dtype, (40, 3, 10)), stored), Path())
    part = Resource("@p", TensorType(dtype, (30, 10)), View(stored, (40, 3, 10), (5, 1, 0), (30, 1, 10)))
    assert b"".join(pieces(part, Path())) == to_data(whole[5:35, 1], dtype)
    assert read_resource(part, Path()).shape == (30, 10)


def test_a_view_of_a_file_reads_its_box(tmp_path: Path) -> None:
    (tmp_path / "w.data").write_bytes(np.arange(13, dtype=np.float32).tobytes())
    stored = External("w.data", 4, 48)
    part = Resource("@p", TensorType(DType.F32, (3, 2)), View(stored, (3, 4), (0, 1), (3, 2)))
    expected = np.arange(1, 13, dtype=np.float32).reshape(3, 4)[:, 1:3]
    assert (read_resource(part, tmp_path) == expected).all()
    assert b"".join(pieces(part, tmp_path)) == expected.tobytes()


def test_bytes_lie_at_their_places_with_zeros_between(tmp_path: Path) -> None:
    (tmp_path / "orig").write_bytes(bytes(range(256)) * 8)
    weights = {
        r.name: r
        for r in (
            Resource("@a", TensorType(DType.U8, (1030,)), External("orig", 7, 1030)),
            Resource("@b", TensorType(DType.U8, (1100,)), Inline(b"\xab" * 1100)),
        )
    }
    places = layout(weights.values(), "w.data")
    write_weights(tmp_path / "w.data", weights, places, tmp_path)
    written = (tmp_path / "w.data").read_bytes()
    assert written[:1030] == (tmp_path / "orig").read_bytes()[7:1037]
    assert written[1030:1088] == bytes(58)
    assert written[1088:] == b"\xab" * 1100


def test_data_of_the_wrong_length_is_refused(tmp_path: Path) -> None:
    (tmp_path / "orig").write_bytes(bytes(1000))
    weights = {"@a": Resource("@a", TensorType(DType.U8, (2000,)), External("orig", 0, 2000))}
    with pytest.raises(InvalidInput, match="has 1000 bytes; @a ends at byte 2000"):
        write_weights(tmp_path / "w.data", weights, layout(weights.values(), "w.data"), tmp_path)
    with pytest.raises(InvalidInput, match=r"@d: error\[E0601\]: .* without data"):
        list(pieces(resource("@d", 2000, Declared()), tmp_path))


BOUNDED = """
import resource, sys
from pathlib import Path
import dnnc.onnx.weights, dnnc.onnx.arrays
from dnnc.engines.onnxruntime.write.weights_file import layout, write_weights
from ir.core.module import External, Random, Resource, Splat
from ir.core.types import DType, TensorType
type_ = TensorType(DType.F32, (64 << 20,))
folder = Path(sys.argv[1])
with (folder / "orig").open("wb") as file:
    file.truncate(256 << 20)
data = {"random": Random("normal", 1), "splat": Splat(1), "external": External("orig", 0, 256 << 20)}[sys.argv[2]]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
weights = {"@w": Resource("@w", type_, data)}
write_weights(folder / "w.data", weights, layout(weights.values(), "w.data"), folder)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["random", "splat", "external"])
def test_memory_does_not_grow_with_the_weights(tmp_path: Path, kind: str) -> None:
    """256 MiB are written with less than 64 MiB."""
    done = subprocess.run(
        [sys.executable, "-c", BOUNDED, str(tmp_path), kind], capture_output=True, text=True, timeout=120, check=True
    )
    assert int(done.stdout) < 64 << 10
    assert (tmp_path / "w.data").stat().st_size == 256 << 20
