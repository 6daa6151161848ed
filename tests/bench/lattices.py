"""Gap and seconds on lattices too large to walk: an encoder-decoder, mixtures of experts, the NASNet profile.

Run: ``python -m tests.bench.lattices [--accelerators 4 8 ..] [--cpus 0 1] [--layers 24] [--experts 64] [--training]
[--write FOLDER] [--quick]``. Each workload is written in the device-placement format and solved as ``dnnc solve`` does, with
loose and tight memory and with cheap and dear transfers. The target is a gap under 5 % within 60 s and 8 GiB. ``--write``
only writes the files.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from dnnc.workloads.solve import SolveOptions, SolveResult, solve_file
from ir.core.diagnostics import DiagnosticSink
from tests.bench.machine import header
from tests.conftest import shared_folder
from tests.passes.partition.lattices import Machines, Workload, encoder_decoder, experts, write

TARGET, SECONDS, GIB = 0.05, 60.0, 8.0
LINKS = {"cheap": 100e9, "dear": 10e9}
ROOMS: dict[str, float | None] = {"loose": None, "tight": 1.3}


def workloads(arguments: argparse.Namespace) -> Iterator[tuple[str, Workload]]:
    yield f"encoder-decoder-{arguments.layers}", encoder_decoder(arguments.layers)
    yield f"experts-{arguments.experts}", experts(arguments.experts)
    yield f"experts-{arguments.experts}-gated", experts(arguments.experts, gates=True)
    yield f"experts-{arguments.experts}-twice", experts(arguments.experts, layers=2)


def files(arguments: argparse.Namespace, folder: Path) -> Iterator[Path]:
    """Writes the documents, one after the other."""
    for name, build in workloads(arguments):
        chosen = itertools.product(arguments.accelerators, arguments.cpus, ROOMS, LINKS)
        for count, cpus, room, link in list(chosen)[:: 7 if arguments.quick else 1]:
            kind = "training" if arguments.training else "inference"
            path = folder / f"{name}-{kind}-{count}+{cpus}-{room}-{link}.json"
            write(build.document(Machines(count, cpus, LINKS[link], ROOMS[room]), arguments.training), path)
            yield path


def profiles() -> Iterator[tuple[str, SolveOptions]]:
    """NASNet at 10 GB/s: PipeDream's objective, replicated and straight, and inference."""
    shared = shared_folder()
    if shared is None:
        return
    path = str(shared / "workloads" / "pipedream" / "nasnetamobile.txt")
    for count in (4, 8, 16):
        common = SolveOptions(path, accelerators=count, bandwidth=10e9)
        yield f"nasnet replicated {count}", common
        for words, options in (
            ("straight", SolveOptions(path, accelerators=count, bandwidth=10e9, straight=True)),
            ("inference", SolveOptions(path, accelerators=count, bandwidth=10e9, objective="throughput", forward=True)),
        ):
            yield f"nasnet {words} {count}", options


def row(name: str, options: SolveOptions) -> bool:
    """Solves, prints, and says whether the target is met."""
    began = time.perf_counter()
    result: SolveResult = solve_file(options, sink=DiagnosticSink())
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    met = result.status == "infeasible" or (result.gap < TARGET and seconds < SECONDS and peak < GIB)
    values = f"{result.objective:11.4f} {result.bound:11.4f} {result.gap:8.2%}"
    print(f"{name:52} {values} {result.status:10} {seconds:6.1f} {peak:6.2f} {'yes' if met else 'NO'}", flush=True)
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accelerators", type=int, nargs="+", default=[4, 6, 8, 16])
    parser.add_argument("--cpus", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--layers", type=int, default=24, help="of the encoder, and of the decoder")
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--training", action="store_true", help="with backward nodes")
    parser.add_argument("--quick", action="store_true", help="every seventh case")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write the files, solve nothing")
    arguments = parser.parse_args()
    if arguments.write is not None:
        arguments.write.mkdir(parents=True, exist_ok=True)
        for path in files(arguments, arguments.write):
            print(path)
        return
    print(header())
    print(f"{'workload':52} {'objective':>11} {'bound':>11} {'gap':>8} {'status':10} {'s':>6} {'GiB':>6} target: {TARGET:.0%}")
    met = []
    with tempfile.TemporaryDirectory() as folder:
        for path in files(arguments, Path(folder)):
            met.append(row(path.stem, SolveOptions(str(path))))
    if not arguments.training:
        met.extend(row(name, options) for name, options in profiles())
    print(f"{sum(met)} of {len(met)} within {TARGET:.0%}, {SECONDS:.0f} s and {GIB:.0f} GiB")


if __name__ == "__main__":
    main()
