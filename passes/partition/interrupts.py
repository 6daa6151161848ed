"""Ctrl-C while a compiled kernel runs: numba tells it as a SystemError, caused by the KeyboardInterrupt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it an interrupt from the keyboard is a KeyboardInterrupt wherever it falls."""
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise


__all__ = ["interruptible"]
