"""Ctrl-C while a compiled kernel runs: numba tells it as a SystemError, which the KeyboardInterrupt caused, perhaps by way of
other SystemErrors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it an interrupt from the keyboard is a KeyboardInterrupt wherever it falls."""
    try:
        yield
    except SystemError as error:
        cause: BaseException | None = error
        while isinstance(cause, SystemError):
            cause = cause.__cause__
        if isinstance(cause, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
