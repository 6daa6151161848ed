"""Training on data as people have them: datasets and loaders of PyTorch, folders of shards; stopped and gone on with."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'train' is not installed")

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import dnnc
from dnnc.cli import main
from dnnc.data.samples import open_data
from dnnc.engines.torch.checkpoint import Checkpoint
from tests.dnnc.engines.torch.training_builds import compiled

MODEL = "zoo:mlp,layers=2,hidden=16,batch=4"
SOURCE = """
import numpy as np, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Augmented(Dataset):
    read = []
    def __len__(self): return 37
    def __getitem__(self, number):
        self.read.append(number)
        x = np.full(784, number / 37, np.float32)
        return x + np.random.rand() + torch.rand(()).item(), number % 10

class Items(IterableDataset):
    def __iter__(self):
        return iter([Augmented()[number] for number in torch.randperm(37).tolist()])

def dataset(seed): return Augmented()
def loader(seed, **options): return DataLoader(Augmented(), 16, shuffle=True, **options)
def dropping(seed): return loader(seed, drop_last=True)
def by_workers(seed): return loader(seed, num_workers=2)
def in_order(seed): return DataLoader(Augmented(), 4)
def items(seed): return DataLoader(Items(), 16)
def other_batch(seed): return DataLoader(Augmented(), 7)
def wrong(seed):
    class Wrong(Augmented):
        def __getitem__(self, number): return np.full(784, np.nan if number == 9 else 0, np.float32), number % 10
    return Wrong()
def doubles(seed):
    class Wrong(Augmented):
        def __getitem__(self, number): return np.zeros(784), number % 10
    return Wrong()
def narrow_labels(seed): return iter([(np.zeros((16, 784), np.float32), np.zeros(16, np.int32))])
def fewer_labels(seed): return iter([(np.zeros((16, 784), np.float32), np.zeros(14, np.int64))])
def more_labels(seed): return iter([(np.zeros((4, 784), np.float32), np.zeros(16, np.int64))])
class Broken(Augmented):
    def __init__(self, other=None): self.other = other
    def __getitem__(self, number):
        if number == 9 and self.other is None: raise OSError("the disk is away")
        return np.zeros(784 if number != 9 else self.other, np.float32), number % 10
def broken(seed, **options): return Broken()
def broken_workers(seed): return DataLoader(Broken(), 16, num_workers=1)
def shorter(seed): return Broken(783)
"""
CROSS_ENTROPY = "cross-entropy:y"
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stages, steps of 4 microbatches of 4 samples."""
    return compiled(tmp_path_factory.mktemp("data") / "build", model=MODEL, loss=CROSS_ENTROPY)


@pytest.fixture
def people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module ``people``."""
    (tmp_path / "people.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.delitem(sys.modules, "people", raising=False)
    import people

    return people


def opened(source: str, build: Path, **options: Any) -> Any:
    from dnnc.build.build import read_program
    from dnnc.build.snapshot import Snapshot

    return open_data(source, read_program(Snapshot.open(build)), 7, 4, **options)


def equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


SOURCES = ("dataset", "loader", "dropping", "by_workers", "in_order", "items")


@pytest.mark.parametrize("name", [one if one != "by_workers" else pytest.param(one, marks=pytest.mark.slow) for one in SOURCES])
def test_a_microbatch_is_the_same_whenever_it_is_asked_for(name: str, build: Path, people: Any) -> None:
    """Its order and what its dataset draws at random, in the middle of an epoch too; other epochs are others."""
    data = opened(f"people:{name}", build)
    epoch = 4 * (2 if name in ("dataset", "dropping") else 3)
    numbers = [0, 1, 5, epoch, epoch + 1, 2 * epoch - 1]
    first = {number: data.microbatch(number) for number in numbers}
    again = opened(f"people:{name}", build)
    assert all(equal(again.microbatch(number), first[number]) for number in (epoch + 1, 5, 2 * epoch - 1))
    assert not np.array_equal(first[0]["x"], first[epoch]["x"])  # augmented anew
    assert np.array_equal(first[0]["labels"], first[epoch]["labels"]) == (name == "in_order")
    every = np.concatenate([data.microbatch(number)["labels"] for number in range(epoch)])
    assert (every != -100).sum() == (32 if name in ("dataset", "dropping") else 37)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("broken", "E0441]: it raised OSError: the disk is away when sample 9 was read\n  note: raised at people.py:"),
        pytest.param(
            "broken_workers",
            "E0441]: it raised OSError: the disk is away\n  note: raised at people.py:",
            marks=pytest.mark.slow,
        ),
        ("shorter", "E0446]: 'x' is float32[783] in sample 9; expected float32[784]"),
    ],
)
@pytest.mark.usefixtures("people")
def test_what_a_dataset_raises_is_told_with_its_line_and_sample(name: str, told: str, build: Path) -> None:
    data = opened(f"people:{name}", build)
    with pytest.raises(dnnc.InvalidInput) as caught:
        _ = [data.microbatch(number) for number in range(9)]
    assert str(caught.value).startswith(f"people:{name}: error[{told}")


def test_random_numbers_of_the_caller_stay_its_own(build: Path, people: Any) -> None:
    torch.manual_seed(3)
    np.random.seed(3)
    expected = torch.rand(()).item(), np.random.rand()
    torch.manual_seed(3)
    np.random.seed(3)
    opened("people:loader", build).microbatch(0)
    assert (torch.rand(()).item(), np.random.rand()) == expected


def test_samples_of_other_rows_are_not_read(build: Path, people: Any) -> None:
    data = opened("people:dataset", build, parts={"x": (1, 2)})
    people.Augmented.read.clear()
    part = data.microbatch(3)["x"]
    assert len(people.Augmented.read) == 2
    whole = opened("people:dataset", build).microbatch(3)["x"]
    assert np.array_equal(part[1:3], whole[1:3])
    assert not part[[0, 3]].any()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("other_batch", r"E0458.*batches of 7; the build takes 16 in a step, in 4 microbatches of 4"),
        ("wrong", r"people:wrong: error\[E0432\]: 'x' holds nan in sample 9"),
        ("narrow_labels", r"E0446.*'labels' is int32\[16\]; expected int64\[16\]"),
        ("fewer_labels", r"E0446.*'labels' is int64\[14\]; expected int64\[16\]"),
        ("more_labels", r"E0446.*'labels' is int64\[16\]; expected int64\[4\]"),
        ("doubles", r"E0446.*'x' is float64\[4, 784\]; expected float32\[4, 784\]"),
    ],
)
def test_samples_that_do_not_fit(name: str, told: str, build: Path, people: Any) -> None:
    with pytest.raises(dnnc.InvalidInput, match=told):
        [opened(f"people:{name}", build).microbatch(number) for number in range(8)]


def samples(count: int) -> dict[str, Any]:
    numbers = np.random.default_rng(0)
    return {"x": numbers.standard_normal((count, 784)).astype(np.float32), "labels": numbers.integers(0, 10, count)}


def write_shards(folder: Path) -> Path:
    whole = samples(40)
    folder.mkdir()
    np.savez(folder / "0.npz", **{name: array[:21] for name, array in whole.items()})
    (folder / "1").mkdir()
    for name, array in whole.items():
        np.save(folder / "1" / f"{name}.npy", array[21:])
    return folder


def weights(path: Path) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in Checkpoint.open(path).tensors().items()}


@pytest.mark.slow
@pytest.mark.parametrize("source", ["shards", "people:loader", "people:items"])
def test_stopped_in_the_middle_of_an_epoch(source: str, build: Path, people: Any, tmp_path: Path) -> None:
    """Gone on with from a checkpoint, a training ends with the weights of one without a stop."""
    data = str(write_shards(tmp_path / "shards")) if source == "shards" else source
    arguments = ["train", str(build), "--data", data, "--seed", "5", "--last-batch", "use", "-q", "--checkpoint"]
    assert main([*arguments, str(tmp_path / "whole"), "--steps", "8", "--every", "5"]) == 0
    assert main([*arguments, str(tmp_path / "cut"), "--steps", "3", "--resume", str(tmp_path / "whole" / "step5")]) == 0
    assert weights(tmp_path / "cut" / "step8") == weights(tmp_path / "whole" / "step8")


@pytest.mark.slow
def test_a_loader_of_a_program(build: Path, tmp_path: Path) -> None:
    """Losses are those of PyTorch on the same batches, a smaller one among them; a resumed run goes on with its samples."""
    whole = samples(40)
    dataset = TensorDataset(*map(torch.from_numpy, whole.values()))
    loader = DataLoader(dataset, batch_size=16, shuffle=True)
    trained = dnnc.load(build)
    used: list[Any] = []

    class Seen(Dataset[Any]):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, number: int) -> Any:
            used.append(number)
            return dataset[number]

    seen = trained.train(DataLoader(Seen(), batch_size=16, shuffle=True), steps=5, seed=2, checkpoint=tmp_path / "a", every=2)
    assert sorted(used[:40]) == [*range(40)]
    again = trained.train(loader, steps=3, resume=tmp_path / "a" / "step2")
    assert again.losses == seen.losses[2:]
    model = torch.nn.Sequential(torch.nn.Linear(784, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10))
    start = Checkpoint.open(build / "weights.safetensors").tensors()
    model.load_state_dict(
        {f"{place}.{kind}": start[f"fc{1 + place // 2}.{kind}"] for place in (0, 2) for kind in ("weight", "bias")}
    )
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for step in range(5):
        epoch, place = divmod(step, 3)
        rows = used[epoch * 42 + place * 16 : epoch * 42 + min(40, place * 16 + 16)]  # two microbatches were filled up
        loss = torch.nn.functional.cross_entropy(model(dataset.tensors[0][rows]), dataset.tensors[1][rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert seen.losses == pytest.approx(losses, rel=1e-5)


@pytest.mark.slow
def test_an_endless_iterable_is_read_as_it_is_trained(build: Path) -> None:
    read = 0

    def batches() -> Any:
        nonlocal read
        while True:
            read += 1
            one = samples(16)
            yield one["x"], one["labels"]

    losses = dnnc.load(build).train(batches(), steps=6).losses
    assert losses[-1] < losses[0]
    assert 6 <= read <= 9

    class Ends(IterableDataset[Any]):
        def __iter__(self) -> Any:
            raise ArithmeticError("no samples today")

    with pytest.raises(dnnc.InvalidInput, match=r"^data: error\[E0441\].*ArithmeticError: no samples today"):
        dnnc.load(build).train(Ends(), steps=2)


TRAININGS = """
import sys
import dnnc, people
for workers in (2, 12):
    loader = people.loader(0, num_workers=workers, drop_last=True)
    assert len(dnnc.load(sys.argv[1]).train(loader, steps=3).losses) == 3
"""


@pytest.mark.slow
def test_a_loader_forks_its_workers_while_the_ranks_start(build: Path, people: Any) -> None:
    """What a worker inherits of the start must not keep it waiting."""
    done = subprocess.run([sys.executable, "-c", TRAININGS, str(build)], check=False, timeout=180)
    assert done.returncode == 0


@pytest.mark.slow
def test_a_wrong_sample_ends_with_exit_code_3(build: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_shards(tmp_path / "shards")
    wrong = samples(19)["labels"]
    wrong[3] = 10
    np.save(folder / "1" / "labels.npy", wrong)
    assert main(["train", str(build), "--data", str(folder)]) == 3
    told = "labels.npy: error[E0421]: 'labels' holds 10 in sample 3; the model takes 0 to 9, or -100, which is ignored"
    assert told in capsys.readouterr().err


@pytest.mark.slow
def test_a_loader_leaves_out_the_last_batch_that_is_to_be_used(
    build: Path, people: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """``drop_last=True`` of the loader against ``--last-batch use``: one of both is a mistake."""
    assert main(["train", str(build), "--data", "people:dropping", "--last-batch", "use"]) == 3
    assert "people:dropping: error[E0459]: the loader leaves out the last batch" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("source", ["shards", "people:loader"])
def test_steps_with_a_smaller_last_batch_are_those_of_the_unsplit_model(
    source: str, build: Path, people: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = str(write_shards(tmp_path / "shards")) if source == "shards" else source
    assert main(["train", str(build), "--data", data, "--last-batch", "use", "--steps", "4", "--check"]) == 0
    assert "passed: 4 weights after each of 4 steps" in capsys.readouterr().out
