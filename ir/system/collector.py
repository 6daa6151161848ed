"""Work that makes many objects and no garbage cycles, without the cycle collector: that would walk all of them again and again,
which makes the time per op grow with the program."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """The collector rests meanwhile, and works afterwards if it did before. Also a decorator: ``@collector_paused()``."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
