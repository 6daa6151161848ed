"""Baselines beside the exact split on the public workloads, and beside the published values of the same baselines.

Run: ``python -m tests.bench.baselines [FILE..] [--json]``. Per workload and method: the value in milliseconds, its ratio to the
contiguous optimum, the split, seconds, and the published value where there is one (``shared/spec/partition.md``), with ``same``
to its digits, ``better`` or ``WORSE``. What differs, and why:

- ``pipedream-style`` repeats the reference's contraction; for ``layer-bert24_training`` the reference seeks components among
  forward and backward nodes, and the backward mate of the mask, which it names by an id from before its renumbering, joins all
  encoder layers. Here components are sought among forward nodes.
- ``local-search``: the reference moves one node at a time, downhill, from ten random assignments to accelerators; ours anneals.
- ``expert``: the splits that the reference ships (``human-experts``, MIT licence), restated below as ranges of node ids. Their
  rule is equal numbers of the repeated layers on each device, in order: 4 of 24 encoder layers each (BERT-24, the embedding
  with the first, the head with the last); 3, 3, 3, 3, 2, 2 of 16 recurrent layers (GNMT); for ResNet-50 the stem alone, then 3,
  4, 4, 4 of 16 blocks and the last one with the head. At training, backward nodes go with their colour.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path

from dnnc.workloads.solve import Compared, SolveOptions, solve_file
from ir.core.diagnostics import DiagnosticSink
from tests.bench.machine import header
from tests.conftest import shared_folder

PUBLISHED = {
    "op-bert_l-3_inference": {"pipedream-style": 37.456, "local-search": 27.574},
    "op-bert_l-3_training": {"pipedream-style": 122.987, "local-search": 68.063},
    "op-bert_l-6_inference": {"pipedream-style": 65.565, "local-search": 39.990},
    "op-resnet50_inference": {"pipedream-style": 129.155, "local-search": 228.526},
    "layer-bert24_inference": {"pipedream-style": 17.790, "local-search": 17.778, "expert": 20.084},
    "layer-bert24_training": {"pipedream-style": 187.914, "local-search": 39.943, "expert": 49.405},
    "layer-gnmt_inference": {"pipedream-style": 33.031, "local-search": 31.783, "expert": 46.208},
    "layer-resnet50_inference": {"pipedream-style": 39.398, "local-search": 35.889, "expert": 43.918},
    "layer-resnet50_training": {"pipedream-style": 83.674, "local-search": 81.605, "expert": 112.108},
    "latency/layer-bert24_inference": {"greedy": 100.2185},
    "latency/op-bert_l-3_inference": {"greedy": 416.2044, "topological": 414.441},
}
"""By workload (of throughput or training unless it says ``latency/``) and method; under latency the topological row is compared
with the published latency of the throughput split."""
EXPERTS = {
    "layer-bert24": "1-8 9-12 13-16 17-20 21-24 25-32",
    "layer-gnmt": "1-2,4-15 16-30 3,31-50 51-69 70-83 84-96",
    "layer-resnet50": "1-5 6-37 38-79 80-121 122-163 164-177",
}
"""Ids of the forward nodes on each accelerator."""
MACHINES = 4
"""For PipeDream's profiles, which do not say how many there are."""


def expert_split(text: str) -> dict[str, object]:
    """The split in the reference's result format."""
    devices = []
    for device in text.split():
        spans = [span.partition("-") for span in device.split(",")]
        devices.append({"nodes": [id_ for low, _, high in spans for id_ in range(int(low), int(high or low) + 1)]})
    return {"fpgas": devices, "cpus": []}


def name_of(path: Path) -> str:
    """The workload, with ``latency/`` before it where that is its objective."""
    return f"latency/{path.stem}" if path.parent.name == "latency" else path.stem


def compare(path: Path) -> tuple[Compared, ...]:
    """Every method on a workload."""
    split = EXPERTS.get(path.stem.partition("_")[0]) if "expert" in PUBLISHED.get(name_of(path), {}) else None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "expert.json"
        file.write_text(json.dumps(expert_split(split or "")))
        options = SolveOptions(
            str(path),
            objective="latency" if path.parent.name == "latency" else "",
            compare=True,
            expert=str(file) if split else "",
            accelerators=MACHINES if path.suffix == ".txt" else None,
        )
        return solve_file(options, sink=DiagnosticSink()).compare


def verdict(value: float, published: float | None) -> str:
    """How a value stands to the published one, to the digits of that."""
    if published is None or not math.isfinite(value):
        return ""
    rounded = round(value, len(str(published).partition(".")[2]))
    return "same" if rounded == published else "better" if rounded < published else "WORSE"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="default: the published workloads and PipeDream's profiles")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row instead of the table")
    arguments = parser.parse_args()
    files = arguments.files
    if not files:
        shared = shared_folder()
        if shared is None:
            parser.error("no ../shared folder beside the checkout; name files")
        folder = shared / "workloads"
        files = [folder / "device-placement" / "throughput" / f"{name}.json" for name in PUBLISHED if "/" not in name]
        files += sorted((folder / "device-placement" / "latency").glob("*.json"))
        files += sorted((folder / "pipedream").glob("*.txt"))
    if not arguments.json:
        print(header())
        print(f"{'workload':30} {'method':16} {'ms':>12} {'ratio':>8} {'split':>11} {'status':>9} {'s':>8} {'published':>10}")
    compare(files[0])  # numba and its cache
    for path in files:
        for row in compare(path):
            published = PUBLISHED.get(name_of(path), {}).get(row.method)
            if arguments.json:
                fields = {
                    "workload": path.stem,
                    "method": row.method,
                    "ms": row.objective,
                    "ratio": row.ratio,
                    "split": row.split,
                }
                print(
                    json.dumps(
                        fields | {"status": row.status, "fits": row.fits, "seconds": row.seconds, "published": published}
                    )
                )
                continue
            known = "" if published is None else str(published)
            print(
                f"{name_of(path):30} {row.method:16} {row.objective:12.6f} {row.ratio:8.4f} {row.split or '-':>11} "
                f"{row.status:>9} {row.seconds:8.3f} {known:>10} {verdict(row.objective, published)}".rstrip(),
                flush=True,
            )


if __name__ == "__main__":
    main()
