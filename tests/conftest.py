"""Options and fixtures that every test may use: ``--update-golden``, the folder of shared models, hypothesis profiles."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests import compiled_kernels

REPO = Path(__file__).resolve().parent.parent

# Arrays of tests are small: threads of OpenMP and OpenBLAS only wait for each other, busily, beside those of the other worker.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# Tests start thousands of processes: each would compile the package anew, and each worker all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A slow machine is no fault of the code under test, and CI must give one answer to one commit.
settings.register_profile("default", deadline=None, max_examples=40)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write what the code prints into golden/ (never under CI=true)"
    )


def pytest_configure(config: pytest.Config) -> None:
    # Background jobs of a shell ignore Ctrl-C, those of nohup SIGHUP, and so does what they start: no test could end it.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    if config.getoption("--update-golden") and in_ci():
        raise pytest.UsageError("--update-golden is refused under CI=true: golden files are updated and reviewed by a person")
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):  # once, before workers start
        compiled_kernels.fill()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Half of the tests in a row for each of two workers, so that what the tests of a file share is made once, not in each."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """What collecting makes lives as long as the process: the garbage collector need not walk over it, now or in any test."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where slow tests alone are asked for, files that name none are not imported: 38 s of a processor in each worker."""
    if config.option.markexpr != "slow" or not collection_path.name.startswith("test_") or collection_path.is_dir():
        return None
    text = collection_path.read_text(encoding="utf-8")
    return None if "mark.slow" in text or "slow_but" in text else True


def in_ci() -> bool:
    """Whether the environment says that this is an unattended run."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


@pytest.fixture(scope="session")
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether expected outputs are to be written instead of compared."""
    return bool(request.config.getoption("--update-golden"))


def shared_folder() -> Path | None:
    """The folder of models and workloads beside the checkout, or None: it is no part of the repository."""
    folder = REPO.parent / "shared"
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """``../shared``; the test is skipped where it is absent."""
    folder = shared_folder()
    if folder is None:
        pytest.skip("no ../shared folder beside the checkout: its models are not part of the repository")
    return folder


@pytest.fixture(autouse=True, scope="session")
def counted_twice() -> Iterator[None]:
    """Every plan that is compiled in this process is counted again from its programs (``tests/counted_twice.py``)."""
    from passes.differentiate import DifferentiatePass
    from passes.programs.localize import LocalizePass
    from tests.counted_twice import differentiated_and_counted, localized_and_counted

    localize, LocalizePass.run = LocalizePass.run, localized_and_counted  # type: ignore[method-assign]
    differentiate, DifferentiatePass.run = DifferentiatePass.run, differentiated_and_counted  # type: ignore[method-assign]
    yield
    LocalizePass.run = localize  # type: ignore[method-assign]
    DifferentiatePass.run = differentiate  # type: ignore[method-assign]


@pytest.fixture(autouse=True, scope="session")
def inference_here() -> Iterator[Callable[..., bytes]]:
    """The import of ONNX infers in this process, without bounds, as where there is no fork: to fork a process that has run many
    tests takes 0.1 s, an inference a millisecond. Gives the call in a child process, which has bounds."""
    from dnnc.onnx.importer.inference import process
    from ir.system.forked import _made, _opened

    in_child = process.call_in_child
    process.call_in_child = lambda call, **_: _opened(*_made(call))  # type: ignore[attr-defined]
    yield in_child
    process.call_in_child = in_child  # type: ignore[attr-defined]


@pytest.fixture
def inference_in_a_child(inference_here: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """The import of ONNX keeps its bounds, for tests of these and of models that might end the process."""
    monkeypatch.setattr("dnnc.onnx.importer.inference.process.call_in_child", inference_here)
