"""What the page of a plan costs: its bytes, the seconds to write it, and the seconds until a headless Chromium has drawn it.

    python -m tests.bench.page [--runs 5] [--small]

Plans a small MLP, and GPT-3 with 96 layers on 64 devices. Seconds are the least of several runs, for writing of the processor,
for opening on the clock. The page of GPT-3 must be there within 2 seconds; without a Chromium only writing is measured.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.report.page import page
from ir.core.module import Module
from tests.bench.machine import header
from tests.dnnc.report.page.browser import browser, chromium

CASES = {
    "mlp": CompileOptions("zoo:mlp", "preset:cpu-2,cores=2", Path()),
    "gpt3-175b": CompileOptions("zoo:gpt3-175b,dtype=f16", "preset:8xh100x8", Path(), mesh="8x8"),
}
MOST = 2.0
"""Seconds within which the page of GPT-3 is there."""


def planned(name: str, folder: Path) -> Module:
    return compile_model(replace(CASES[name], out=folder / name, plan_only=True, report=False)).module


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="the MLP alone")
    options = parser.parse_args()
    print(header())
    slow = False
    with TemporaryDirectory() as scratch:
        for name in list(CASES)[: 1 if options.small else None]:
            module = planned(name, Path(scratch))
            writing = []
            for _ in range(options.runs + 1):  # the first one loads libraries
                start = time.process_time()
                text = page(module)
                writing.append(time.process_time() - start)
            (Path(scratch) / "page.html").write_text(text, encoding="utf-8")
            line = f"{name:10}  {len(text.encode()):7} bytes  written in {1e3 * min(writing[1:]):5.0f} ms of the processor"
            if chromium():
                with browser() as window:
                    window.size(1300, 900)
                    opening = [window.open(Path(scratch) / "page.html") for _ in range(options.runs)]
                line += f"  opened in {1e3 * min(opening):5.0f} ms ({1e3 * opening[0]:.0f} ms at first)"
                slow |= min(opening) > MOST
            print(line)
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
