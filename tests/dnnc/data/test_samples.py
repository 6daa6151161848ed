"""Sources of microbatches: what each number gives, and how a source that does not fit the model is told."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnnc.data.repeated import Digested, Repeated
from dnnc.data.samples import POOL, open_data
from dnnc.onnx.elements import user_dtype
from ir import Module, parse_module, print_module
from ir.core.diagnostics import DnncError, InvalidInput, UsageError

MODEL = parse_module(
    """
module @m {
  func @main(%x : tensor<4x3xf32>, %mask : tensor<2x3xf32>, %labels : tensor<4xi64>, %scale : tensor<f32>) -> () {
  }
}
"""
)
INDICES = parse_module(
    """
module @m {opset.onnx = 20} {
  resource @table : tensor<6x2xf32> = splat(0.0)
  func @main(%ids : tensor<2x2xi64>, %scores : tensor<4x3xf32>, %labels : tensor<2x2xi64>) -> () {
    %rows = onnx.Gather(@table, %ids) : tensor<2x2x2xf32>
    %flat = onnx.Flatten(%labels) {axis = 0} : tensor<1x4xi64>
    %each = onnx.Squeeze(%flat) : tensor<4xi64>
    %part = onnx.Slice(%each, @rows, @rows) : tensor<0xi64>
    %some = onnx.Gather(@table, %part) : tensor<0x2xf32>
    %loss = onnx.SoftmaxCrossEntropyLoss(%scores, %each) {ignore_index = -100, reduction = "none"} : tensor<4xf32>
  }
  resource @rows : tensor<1xi64> = inline([1])
}
"""
)
SOURCE = """
import numpy as np

def good(seed, **changed):
    for number in range(1 << 20):
        yield {
            "x": np.full((4, 3), number, np.float32), "mask": np.zeros((2, 3), np.float32),
            "labels": np.full(4, seed), "scale": np.float32(1), "unused": None, **changed,
        }

def short(seed):
    for number, microbatch in zip(range(2), good(seed)):
        yield microbatch

def reused(seed):
    microbatch = next(good(seed))
    while True:
        yield microbatch
        microbatch["x"][:] += 1
        microbatch["labels"] += 1

def later(seed):
    for number, microbatch in enumerate(good(seed)):
        microbatch["mask"][1, 1] = number == 2
        yield microbatch

def unseeded(seed): return good(np.random.default_rng().integers(1 << 62))

def nothing(seed): return iter(())
def none(seed): pass
def one(seed): return next(good(seed))
def numbers(seed): yield 1
def fails(seed): raise KeyError("samples")
def fails_later(seed):
    yield from short(seed)
    raise ArithmeticError
def exits(seed): raise SystemExit(0)
def exits_later(seed):
    yield from short(seed)
    raise SystemExit("no more")
def no_seed(): yield {}
def lacks(seed): yield {"x": np.zeros((4, 3), np.float32)}
def doubles(seed): return good(seed, x=np.zeros((4, 3)))
def large(seed): return good(seed, labels=np.zeros(5, np.int64))
def ragged(seed): return good(seed, mask=[[1], [1, 2]])

def indices(seed):
    for label in (-100, 2, seed):
        yield {"ids": np.full((2, 2), -6), "scores": np.zeros((4, 3), np.float32), "labels": np.full((2, 2), label)}

constant = 7
"""


def samples(**changed: Any) -> dict[str, Any]:
    """Two microbatches; rows tell which they are."""
    arrays = {
        "x": np.repeat(np.arange(8, dtype=np.float32)[:, None], 3, axis=1),
        "mask": np.repeat(np.arange(4, dtype=np.float32)[:, None], 3, axis=1),
        "labels": np.arange(8),
        "scale": np.float32(0.5),
    }
    return {name: array for name, array in {**arrays, **changed}.items() if array is not None}


def written(folder: Path, **changed: Any) -> str:
    path = folder / "data.npz"
    np.savez(path, **samples(**changed))
    return str(path)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules ``source``, ``broken`` and ``needs``, the last two of which cannot be imported."""
    (tmp_path / "source.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("def f(seed:\n")
    (tmp_path / "needs.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "source", raising=False)


def equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_a_number_is_the_same_microbatch_whenever_it_is_asked_for(tmp_path: Path, source: None) -> None:
    for name in ("synthetic", written(tmp_path), "source:good"):
        data, again = open_data(name, MODEL, 3), open_data(name, MODEL, 3)
        first = [data.microbatch(number) for number in (0, 1, 2, 5)]
        assert [array.shape for array in first[0].values()] == [(4, 3), (2, 3), (4,), ()], name
        for number, microbatch in zip((5, 2, 0, 1), (first[3], first[2], first[0], first[1]), strict=True):
            assert equal(again.microbatch(number), microbatch), (name, number)
        assert not equal(first[0], first[1])


def test_synthetic_microbatches_come_again_and_differ_by_seed() -> None:
    data = open_data("synthetic", MODEL, 0)
    assert equal(data.microbatch(1), data.microbatch(1 + POOL))
    assert not equal(data.microbatch(1), open_data("synthetic", MODEL, 1).microbatch(1))


def test_each_epoch_has_each_sample_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    data = open_data(written(tmp_path), MODEL, 0)
    epochs = [[data.microbatch(2 * epoch + place)["labels"].tolist() for place in (0, 1)] for epoch in range(8)]
    assert all(sorted(one + other) == list(range(8)) for one, other in epochs)
    assert len({str(epoch) for epoch in epochs}) > 1
    assert len({str(open_data(written(tmp_path), MODEL, seed).microbatch(0)["labels"]) for seed in range(8)}) > 1


def test_samples_that_fill_no_microbatch_are_others_in_each_epoch(tmp_path: Path) -> None:
    rows = {"x": np.zeros((10, 3), np.float32), "mask": np.zeros((5, 3), np.float32), "labels": np.arange(10)}
    data = open_data(written(tmp_path, **rows), MODEL, 0)
    seen = [{*data.microbatch(2 * epoch)["labels"], *data.microbatch(2 * epoch + 1)["labels"]} for epoch in range(20)]
    assert {len(labels) for labels in seen} == {8}
    assert set.union(*seen) == set(range(10))


def test_rows_of_a_sample_stay_together(tmp_path: Path) -> None:
    """Two samples of ``x`` go with one row of ``mask``."""
    data = open_data(written(tmp_path), MODEL, 0)
    for number in range(6):
        microbatch = data.microbatch(number)
        assert microbatch["x"][:, 0].tolist() == microbatch["labels"].tolist()
        assert (microbatch["x"][:, 0].reshape(2, 2) // 2).tolist() == [[row, row] for row in microbatch["mask"][:, 0].tolist()]
        assert microbatch["scale"] == np.float32(0.5)


def test_a_model_whose_inputs_have_no_dimensions(tmp_path: Path) -> None:
    model = parse_module("module @m {\n  func @main(%scale : tensor<f32>) -> () {\n  }\n}\n")
    assert open_data(written(tmp_path), model, 0).microbatch(3) == {"scale": np.float32(0.5)}


def test_elements_that_a_file_of_numpy_has_no_name_for(tmp_path: Path) -> None:
    model = parse_module("module @m {\n  func @main(%x : tensor<2xbf16>) -> () {\n  }\n}\n")
    path = tmp_path / "data.npz"
    np.savez(path, x=np.arange(2).astype(user_dtype("bfloat16")))
    found = open_data(str(path), model, 0).microbatch(0)["x"]
    assert found.dtype == user_dtype("bfloat16")
    assert sorted(found.tolist()) == [0, 1]


def refused(name: str, asked: int = 0, model: Module = MODEL) -> DnncError:
    """The error of a source, or of its microbatch of this number."""
    with pytest.raises(DnncError) as caught:
        open_data(name, model, 0).microbatch(asked)
    return caught.value


def uncoded(error: DnncError) -> str:
    """The text of an error without its code, which is one of this room."""
    code = error.diagnostics[0].code
    assert code.startswith("E04")
    return str(error).replace(f"[{code}]", "", 1)


def test_seeds_of_dropouts_are_no_samples(tmp_path: Path, source: None) -> None:
    """No source has them: they are of the seed and the number, each microbatch has its own."""
    mask = "    %m = grad.mask(%dropout) {number = 0, ratio = 0.5} : tensor<4x3xf32>\n"
    text = print_module(MODEL).replace(") -> () {\n", f", %dropout : tensor<i64>) -> () {{\n{mask}")
    module = parse_module(text)
    seeds: dict[str, list[int]] = {}
    for name in ("synthetic", written(tmp_path), "source:good"):
        data, plain = open_data(name, module, 3), open_data(name, MODEL, 3)
        drawn = [data.microbatch(number) for number in range(20)]
        seeds[name] = [int(microbatch["dropout"]) for microbatch in drawn]
        assert all(microbatch["dropout"].dtype == np.int64 and not microbatch["dropout"].shape for microbatch in drawn)
        assert equal({key: value for key, value in drawn[1].items() if key != "dropout"}, plain.microbatch(1))
    first, *others = seeds.values()
    assert others == [first, first]
    assert len(set(first)) == 20
    assert all(0 <= seed < 2**63 for seed in first)
    assert int(open_data("synthetic", module, 4).microbatch(0)["dropout"]) not in first
    read = parse_module(text.replace(mask, f"{mask}    %n = onnx.Neg(%dropout) : tensor<i64>\n"))
    assert "it has no array 'dropout'" in str(refused(written(tmp_path), model=read))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"mask": None}, "it has no array 'mask'\n  hint: the model reads x, mask, labels, scale"),
        ({"x": np.zeros((8, 3))}, "array 'x' holds float64; expected float32"),
        ({"labels": np.arange(8, dtype=np.int32)}, "array 'labels' holds int32; expected int64"),
        (
            {"x": np.zeros((8, 4), np.float32)},
            "array 'x' has the shape [8, 4]; expected [samples, 3]",
        ),
        ({"labels": np.zeros((8, 1), int)}, "array 'labels' has the shape [8, 1]; expected [samples]"),
        (
            {"labels": np.arange(3)},
            "the arrays hold different numbers of samples: x 8, mask 4, labels 3\n"
            "  hint: rows of the same number belong together",
        ),
        ({"scale": np.zeros(1, np.float32)}, "array 'scale' has the shape [1]; expected no dimensions"),
        (
            {"labels": np.arange(9)},
            "the arrays hold different numbers of samples: x 8, mask 4, labels 9\n"
            "  hint: rows of the same number belong together",
        ),
    ],
)
def test_arrays_that_do_not_fit_the_model(changed: dict[str, Any], told: str, tmp_path: Path) -> None:
    path = written(tmp_path, **changed)
    error = refused(path)
    assert (type(error), uncoded(error)) == (InvalidInput, f"{path}: error: {told}")


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("labels", 3, "'labels' holds 3 in sample 3; the model takes 0 to 2, or -100, which is ignored"),
        ("labels", -1, "'labels' holds -1 in sample 3; the model takes 0 to 2, or -100, which is ignored"),
        ("ids", 6, "'ids' holds 6 in sample 3; the model takes -6 to 5"),
        ("ids", -100, "'ids' holds -100 in sample 3; the model takes -6 to 5"),
    ],
)
def test_indices_that_are_out_of_range(name: str, value: int, told: str, tmp_path: Path) -> None:
    """In a file and in what a function yields; what is in range, ends and the ignored label included, passes."""
    arrays = {
        "ids": np.array([[-6, 5]] * 4),
        "scores": np.zeros((8, 3), np.float32),
        "labels": np.array([[0, 2], [-100, 1]] * 2),
    }
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    assert open_data(str(path), INDICES, 0).microbatch(0)["labels"].shape == (2, 2)
    arrays[name][3, 1] = value
    np.savez(path, **arrays)
    with pytest.raises(InvalidInput) as caught:
        open_data(str(path), INDICES, 0).verify(0, 1)
    assert uncoded(caught.value) == f"{path}: error: {told}"


@pytest.mark.usefixtures("source")
def test_a_label_of_a_function_that_is_out_of_range() -> None:
    data = open_data("source:indices", INDICES, 7)
    assert data.microbatch(1)["labels"].tolist() == [[2, 2], [2, 2]]
    with pytest.raises(
        InvalidInput,
        match=r"^source:indices: error\[E0421\]: 'labels' holds 7 in row 0 of microbatch 2; the model takes 0 to 2, or -100",
    ):
        data.microbatch(2)


def test_synthetic_labels_are_all_classes() -> None:
    drawn = [open_data("synthetic", INDICES, 0).microbatch(number) for number in range(POOL)]
    assert {label for one in drawn for label in one["labels"].ravel().tolist()} == {0, 1, 2}
    assert {row for one in drawn for row in one["ids"].ravel().tolist()} == set(range(6))


def test_files_that_are_no_samples(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    error = refused(str(path))
    assert (type(error), error.diagnostics[0].where) == (InvalidInput, str(path))
    path.write_bytes(Path(written(tmp_path)).read_bytes()[:-100])
    assert uncoded(refused(str(path))).startswith(
        f"{path}: error: the arrays cannot be read: it is not an .npz file, or damaged"
    )


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("none", "it returned None; expected an iterable of microbatches"),
        ("one", "it returned a value of type dict; expected an iterable of microbatches"),
        (
            "numbers",
            "it yielded a value of type int; expected a dict of arrays by input name, or a tuple of them",
        ),
        ("nothing", "it ended after 0 microbatches; training wants more"),
        ("short", "it ended after 2 microbatches; training wants more"),
        ("fails", "it raised KeyError: 'samples'"),
        ("fails_later", "it raised ArithmeticError"),
        ("exits", "it raised SystemExit: 0"),
        ("exits_later", "it raised SystemExit: no more"),
        ("no_seed", "it raised TypeError: no_seed() takes 0 positional arguments but 1 was given"),
        ("lacks", "a microbatch lacks 'mask'"),
        ("doubles", "'x' is float64[4, 3]; expected float32[4, 3]"),
        ("large", "'labels' is int64[5]; expected int64[4]"),
        ("ragged", "'mask' is no array: setting an array element with a sequence"),
    ],
)
def test_functions_that_do_not_fit_the_model(name: str, told: str) -> None:
    error = refused(f"source:{name}", asked=2)
    assert type(error) is InvalidInput
    assert uncoded(error).split("\n")[0].startswith(f"source:{name}: error: {told}")


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("source:missing", UsageError, "--data source:missing: error: module 'source' has no function 'missing'"),
        ("source:constant", UsageError, "--data source:constant: error: module 'source' has no function 'constant'"),
        ("source:", UsageError, "--data source:: error: module 'source' has no function ''"),
        ("nowhere:good", UsageError, "--data nowhere:good: error: No module named 'nowhere'"),
        ("nowhere.at_all:good", UsageError, "--data nowhere.at_all:good: error: No module named 'nowhere'"),
        ("source.part:good", UsageError, "--data source.part:good: error: No module named 'source.part'"),
        (":good", UsageError, "--data :good: error: '' names no module"),
        (".source:good", UsageError, "--data .source:good: error: '.source' names no module"),
        ("broken:f", InvalidInput, "broken:f: error: it raised SyntaxError: "),
        ("needs:f", InvalidInput, "needs:f: error: it raised ModuleNotFoundError: No module named 'no_such_module'"),
        (
            "data.csv",
            UsageError,
            "--data data.csv: error: expected synthetic, FILE.npz, FILE.npy, a folder of such files, or module:function",
        ),
    ],
)
def test_functions_that_are_not_there(name: str, kind: type[DnncError], told: str) -> None:
    error = refused(name)
    assert type(error) is kind
    assert uncoded(error).startswith(told)


@pytest.mark.usefixtures("source")
def test_microbatches_are_kept_no_longer_than_a_step_wants_them() -> None:
    data: Any = open_data("source:good", MODEL, 0, microbatches=4)
    data.microbatch(17)
    assert sorted(data.recent) == [*range(12, 20)]
    assert data.microbatch(12)["x"][0, 0] == 12
    assert data.yielded == 20
    assert data.microbatch(5)["x"][0, 0] == 5  # from its start again
    assert data.yielded == 8


@pytest.mark.usefixtures("source")
def test_a_function_that_fills_the_same_arrays_anew_gives_other_samples() -> None:
    """All microbatches of a step are kept: they hold what was yielded, not what the arrays hold later."""
    data = open_data("source:reused", MODEL, 3, microbatches=3)
    data.microbatch(2)
    step = [data.microbatch(number) for number in range(3)]
    assert [microbatch["x"][3, 2] for microbatch in step] == [0, 1, 2]
    assert [microbatch["labels"].tolist() for microbatch in step] == [[3] * 4, [4] * 4, [5] * 4]


@pytest.mark.usefixtures("source")
def test_a_function_that_draws_without_its_seed_is_found_when_it_is_called_again() -> None:
    for name in ("source:good", "source:unseeded"):
        data = Repeated(open_data(name, MODEL, 3), name)
        first = data.microbatch(0)["x"]
        data.microbatch(2)
        if name == "source:good":
            assert np.array_equal(data.microbatch(0)["x"], first)
            continue
        with pytest.raises(
            InvalidInput, match=r"^source:unseeded: error\[E0447\]: it gave other samples when it was called again\n"
        ):
            data.microbatch(0)


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize("read", [(0, 1, 2, 3), (0, 3), (2, 0, 3), ()], ids=str)
def test_a_running_digest_is_of_all_samples_whichever_are_read(read: tuple[int, ...]) -> None:
    def digests(name: str, *numbers: int) -> list[bytes]:
        data = Digested(open_data(name, MODEL, 3, microbatches=2), 2, 0)
        for number in numbers:
            assert data.microbatch(number)["x"][0, 0] == number
        return [data.through(step) for step in range(3)]

    first = digests("source:good")
    assert digests("source:good", *read) == first
    assert len({*first, *digests("source:later")}) == 5  # the first step is the same
