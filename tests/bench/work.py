"""Counted work beside a clock: whether the rates of ``passes.solvers.work`` are those of a common core.

Run: ``python -m tests.bench.work [compile|solve ARGUMENT ..]``. Runs the command (without one, each of ``COMMANDS``) twice in
this process, the first time to compile the kernels, and prints of the second run, by kind of work: units, CPU seconds that
passed until they were counted, what one unit took, and the rate; then the ratio of all counted seconds to all CPU seconds of
the searches. Far from 1, a search of so many counted seconds takes another time than that; which plan it finds stays the same.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from passes.solvers import work

COMMANDS = (
    "compile zoo:inception-v3,batch=32 -t preset:tag-testbed --objective training --plan-only",
    "compile zoo:whisper-base -t preset:2xa100x4 --mesh auto --plan-only",
    "compile zoo:t5-base -t preset:2xa100x4 --mesh 8 --objective training --plan-only",
    "compile zoo:gpt2,layers=12 -t preset:2xa100x4 --stages 4 --mesh auto --plan-only",
    "compile zoo:bert-base -t preset:2xa100x4 --objective latency --pieces 2 --plan-only",
)
OUTSIDE = "outside"


class _Meter:
    """CPU seconds between two counts, by the kind of the second."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.units: Counter[str] = Counter()
        self.at = time.process_time()

    def did(self, kind: str, units: float) -> None:
        self.passed(kind)
        self.units[kind] += units

    def passed(self, kind: str) -> None:
        now = time.process_time()
        self.seconds[kind] += now - self.at
        self.at = now


@contextlib.contextmanager
def _metered(meter: _Meter) -> Iterator[None]:
    """Lets the meter see each count, wherever ``did`` was imported, and where searches begin and end."""
    from dnnc.workloads.solve import METHODS
    from passes.partition.bridge.lattice_search import LatticeSearch
    from passes.partition.on_meshes import MeshesSearch

    plain = work.did

    def did(kind: str, units: float) -> None:
        meter.did(kind, units)
        plain(kind, units)

    def between(search: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            meter.passed(OUTSIDE)
            try:
                return search(*arguments, **options)
            finally:
                meter.passed("rest")

        return run

    holders = [module for module in list(sys.modules.values()) if getattr(module, "did", None) is plain]
    searches, methods = (LatticeSearch.searched, MeshesSearch.run), dict(METHODS)
    for module in holders:
        module.did = did  # type: ignore[attr-defined]
    LatticeSearch.searched = between(LatticeSearch.searched)  # type: ignore[method-assign]
    MeshesSearch.run = between(MeshesSearch.run)  # type: ignore[method-assign]
    METHODS.update({key: between(method) for key, method in methods.items()})
    try:
        yield
    finally:
        METHODS.update(methods)
        LatticeSearch.searched, MeshesSearch.run = searches  # type: ignore[method-assign]
        for module in holders:
            module.did = plain  # type: ignore[attr-defined]


def measure(arguments: Sequence[str]) -> None:
    """Runs one command and prints its table."""
    from dnnc.cli.entry import _dispatch

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"

        def once() -> None:
            _dispatch([*arguments, "-o", str(out), "-q"])
            shutil.rmtree(out) if out.is_dir() else out.unlink()

        once()
        meter = _Meter()
        with _metered(meter):
            once()
    print(f"\n{' '.join(arguments)}")
    print(f"{'kind':12} {'units':>15} {'cpu s':>8} {'a unit':>10} {'rate':>10}")
    counted = inside = 0.0
    for kind, seconds in meter.seconds.most_common():
        units, rate = meter.units[kind], work.RATES.get(kind, 0.0)
        if kind != OUTSIDE:
            inside += seconds
            counted += rate * units
            print(f"{kind:12} {units:15.0f} {seconds:8.3f} {seconds / units if units else 0.0:10.3g} {rate:10.3g}")
    print(f"counted {counted:.2f} s, of {inside:.2f} CPU seconds: {counted / inside if inside else 0.0:.2f}")


def main() -> int:
    from tests.bench.machine import header

    print(header())
    for command in [sys.argv[1:]] if len(sys.argv) > 1 else [command.split() for command in COMMANDS]:
        measure(command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
