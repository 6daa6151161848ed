"""The door to numba: ``compiled`` and ``part`` are how files of loops take it, and this file alone imports it.

Compiled code is cached beside the package, or in the user's cache directory when that is read-only, or, when neither can be
written, in a private folder of the temporary directory (numba itself would stop there). ``NUMBA_CACHE_DIR`` overrides all
three.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from passes.solvers.work import compiled_for

_LOG = logging.getLogger("dnnc.kernels")


def _ensure_cache_folder() -> None:
    """Points numba at a fresh private folder when it could write its cache nowhere. Never at a folder of a guessable name:
    a cache holds code that is run."""
    if "NUMBA_CACHE_DIR" in os.environ:
        return
    package = Path(__file__).parent
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    candidates = [package / "__pycache__", package, user, *user.parents]
    for folder in candidates[:2] if package.is_dir() else []:
        if folder.is_dir() and os.access(folder, os.W_OK):
            return
    nearest = next((folder for folder in candidates[2:] if folder.is_dir()), None)
    if nearest is None or not os.access(nearest, os.W_OK):
        os.environ["NUMBA_CACHE_DIR"] = private = tempfile.mkdtemp(prefix="dnnc-numba-")
        atexit.register(shutil.rmtree, private, ignore_errors=True)


@contextlib.contextmanager
def _no_settings_from_here() -> Iterator[None]:
    """numba reads settings from `.numba_config.yaml` in the current directory, among them the folder of its cache, whose code
    it runs; not while the package ``yaml`` cannot be imported. It looks again at each compilation, as decided at its import."""
    absent = object()
    before = sys.modules.get("yaml", absent)
    sys.modules["yaml"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["yaml"]
        if before is not absent:
            sys.modules["yaml"] = before  # type: ignore[assignment]


_ensure_cache_folder()
warnings.filterwarnings("ignore", "A Numba config file is found")

with _no_settings_from_here():
    numba: Any = import_module("numba")
    events: Any = import_module("numba.core.event")
    caching: Any = import_module("numba.core.caching")
    runtime: Any = import_module("numba.core.runtime")


def _compiled_in(function: Callable[..., Any]) -> tuple[tuple[object, ...], ...]:
    """What tells whether compiled code is that of a function, of the kernels that it calls and of the numbers that they name:
    time of the last change and size of each file, name and value of each number. Raises OSError without such a file."""
    files, numbers, seen = dict[str, tuple[int, int]](), dict[str, complex](), set[Any]()
    waiting = [function]
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            about = Path(one.__code__.co_filename).stat()
            files[one.__code__.co_filename] = about.st_mtime_ns, about.st_size
            named: dict[str, Any] = {name: one.__globals__.get(name) for name in one.__code__.co_names}
            waiting += [kernel.py_func for kernel in named.values() if hasattr(kernel, "py_func")]
            numbers |= {name: value for name, value in named.items() if isinstance(value, (int, float))}
    return *(files[name] for name in sorted(files)), *sorted(numbers.items())


class _Cache(caching.FunctionCache):  # type: ignore[misc]
    """The cache of one function. It is made anew where anything changed that was compiled into the function; numba's own looks
    at the function's file alone. And before it loads, numba's own fills the tables of all that numba can compile, which takes
    half of the time of loading: a kernel that is compiled already needs only the functions that allocate arrays."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        with contextlib.suppress(OSError):
            self._cache_file._source_stamp = _compiled_in(function)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What numba compiled for the signature before, None when it did not."""
        runtime.rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            try:
                return self._load_overload(sig, target_context)
            except (AttributeError, ImportError):
                self.flush()  # the index names a tuple that the package had, and has no more: it is of an older version
        return None


F = TypeVar("F", bound=Callable[..., Any])


_LONG = 0.1
"""Seconds of a compilation that is logged."""


class _Compiling(events.Listener):  # type: ignore[misc]
    """Tells how long kernels are compiled, or read from the cache, which is no part of a search."""

    def __init__(self) -> None:
        self.depth, self.began = 0, 0.0

    def on_start(self, event: Any) -> None:
        if not self.depth:
            self.began = time.perf_counter()
        self.depth += 1

    def on_end(self, event: Any) -> None:
        self.depth -= 1
        if not self.depth:
            seconds = time.perf_counter() - self.began
            compiled_for(seconds)
            if seconds >= _LONG:
                _LOG.debug("kernels compiled, or read from the cache, in %.1f s", seconds)


events.register("numba:compiler_lock", _Compiling())


def compiled(function: F) -> F:
    """The function compiled when it is first called, by ``numba.njit``, and kept in a cache. A division by zero is not an error
    but infinite or 0, so a kernel divides by no number that may be 0: code that raises takes longer to compile."""
    return _compiled(function)


def part(function: F) -> F:
    """As ``compiled``, of a function that kernels alone call: it has no code that reads arguments from Python objects, which
    takes long to compile. Called from Python it raises TypeError."""
    kernel: Any = _compiled(function, no_cpython_wrapper=True)
    if not numba.config.DISABLE_JIT:

        def refuse(*_arguments: Any, **_named: Any) -> None:
            raise TypeError(f"{function.__name__} is a part of kernels and has no call from Python: use its py_func")

        def add(result: Any) -> None:  # numba's own also lets calls from Python reach it
            kernel.overloads[tuple(result.signature.args)] = result

        kernel._compile_for_args, kernel.add_overload = refuse, add
    return kernel  # type: ignore[no-any-return]


def _compiled(function: F, **options: bool) -> F:
    jit: Any = numba.njit(nogil=True, no_cfunc_wrapper=True, error_model="numpy", **options)
    result: Any = jit(function)
    if not numba.config.DISABLE_JIT:
        result._cache = _Cache(function)
    kernel: F = result
    return kernel


def inlined(function: F) -> F:
    """The function as a part of every compiled one that calls it: for inner loops, where a call that hands on arrays costs more
    than the work. Pass it arrays and numbers: a tuple of arrays is counted in and out of use at every call."""
    kernel: F = numba.njit(inline="always")(function)
    return kernel


@inlined
def nested(inner: Any, j: int, outer: Any, i: int) -> bool:
    """Whether the bit set that is row j of ``inner`` lies in row i of ``outer``."""
    lies = True
    for k in range(inner.shape[1]):
        if inner[j, k] & ~outer[i, k]:
            lies = False
            break
    return lies
