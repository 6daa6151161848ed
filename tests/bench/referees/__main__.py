"""Predictions against what others measured: ``python -m tests.bench.referees [--folder FOLDER] [NAME ..]``.

Each referee is a table of public measurements (its README says whose). Printed per device type: the mean relative error of the
cost model as it was before sizes counted (a roofline with one efficiency, the preset's), of the shipped preset, and of the
model fitted to four fifths of the rows and judged on the others, and fitted to 20 rows and judged on the rest. ``helix``, a
folder of tables, is told plan by plan.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.bench.machine import header
from tests.bench.referees import gemm, helix, nccl, neusight, vtrain

REFEREES = {
    "gemm": gemm.judge,
    "nccl": nccl.judge,
    "neusight": neusight.judge,
    "vtrain_single": vtrain.judge,
    "vtrain_multi": vtrain.judge,
    "helix": helix.judge,
}
FOLDER = Path(__file__).resolve().parents[4] / "shared" / "referees"


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(REFEREES)}; all unless given")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the tables are")
    options = parser.parse_args()
    if not options.folder.is_dir():
        print(f"skipped: there are no tables in {options.folder}")
        return 0
    print(header())
    for name in options.names or REFEREES:
        found = [path for path in (options.folder / f"{name}.csv", options.folder / name) if path.exists()]
        if not found:
            print(f"skipped {name}: there is no {name}.csv and no folder {name} in {options.folder}")
            continue
        print(f"\n{name}: mean relative error")
        for line in REFEREES[name](found[0]):
            print("  " + line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
