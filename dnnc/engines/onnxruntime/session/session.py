"""How an ONNX Runtime session is opened: the one place where its options are set, for runs, checks and measurements alike.

Imports onnxruntime and the standard library only: a stage process must start fast.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dnnc.engines.onnxruntime.engine import Loaded
from dnnc.engines.onnxruntime.session.external import session_on
from dnnc.onnx.ort import ProviderUnavailable, load_onnxruntime, make_session
from dnnc.onnx.providers import CPU, ON_CPU, Provider

_ERRORS, _NOTHING = 3, 4
"""What onnxruntime writes to standard error."""
_MMAP_THRESHOLD = -3
"""M_MMAP_THRESHOLD of malloc.h: from which size on a block is a mapping of its own, that goes back when it is freed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """``threads``: of onnxruntime; ``spin``: whether they wait busily; ``optimize``: onnxruntime's graph optimisations.
    ``provider``: what computes. ``folder``: where external data lies that no open file holds; ``profile``: begin of the path of
    a profile to write; ``folded_bytes``: the largest constant that onnxruntime may compute when it loads the model, 0 leaves
    that to it."""

    threads: int = 1
    spin: bool = False
    optimize: bool = True
    provider: Provider = ON_CPU
    folder: str = ""
    profile: str = ""
    folded_bytes: int = 0


def refuse_idle(programs: Iterable[Loaded], provider: str) -> None:
    """Raises ProviderUnavailable where the CPU takes every op of these programs. They are those of one device, which names
    ``provider``."""
    taken: Counter[str] = Counter()
    for program in programs:
        taken.update(program.ops_taken)
    if taken and provider not in taken:
        raise ProviderUnavailable(f"{provider} takes none of the {taken.total()} nodes of its program, so the CPU would run it")


DEFAULT = Settings()
"""One thread of the CPU, optimised."""


def open_session(model: bytes, settings: Settings, weights: Mapping[str, int] | None = None) -> Any:
    """An ``InferenceSession``. ``weights``: open files that hold the external data, by the locations that the model names;
    without them it lies in the settings' folder. Raises ProviderUnavailable, what onnxruntime raises, and ValueError for a
    location that is not among ``weights``."""
    ort = load_onnxruntime()
    elsewhere = settings.provider.name != CPU

    def options() -> Any:
        made = ort.SessionOptions()
        made.intra_op_num_threads = settings.threads
        made.inter_op_num_threads = 1
        made.enable_mem_pattern = False  # else the activations of the first run are held beside those of all others
        made.log_severity_level = _ERRORS if elsewhere else _NOTHING  # errors come as exceptions, but why a provider failed
        made.add_session_config_entry("session.intra_op.allow_spinning", "1" if settings.spin else "0")
        if elsewhere:
            made.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        if not settings.optimize:
            made.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if settings.folded_bytes:
            made.add_session_config_entry("optimization.constant_folding_max_output_size_in_bytes", str(settings.folded_bytes))
        if settings.profile:
            made.enable_profiling, made.profile_file_prefix = True, settings.profile
        if settings.folder and weights is None:
            made.add_session_config_entry("session.model_external_initializers_file_folder_path", settings.folder)
        return made

    def start(model: bytes, options: Any) -> Any:
        return make_session(model, options, settings.provider)

    with _returning_memory():
        return start(model, options()) if weights is None else session_on(model, weights, options, start)


@contextmanager
def _returning_memory() -> Iterator[None]:
    """While a session is made, what is freed goes back to the system: weights are copied and laid out anew one by one, and
    glibc would keep the first copies. Behind it, large blocks are kept again, for those of microbatches come and go."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another allocator
        yield
        return
    mallopt(_MMAP_THRESHOLD, 1 << 20)
    try:
        yield
    finally:
        mallopt(_MMAP_THRESHOLD, 32 << 20)


def nodes_by_provider(session: Any) -> Counter[str]:
    """How many nodes of a session each provider took; empty for a session on the CPU alone, which keeps no account of it."""
    ask = getattr(session, "get_provider_graph_assignment_info", None)  # onnxruntime 1.24 is the first to tell
    taken: Counter[str] = Counter()
    for part in ask() if ask is not None and session.get_providers() != [CPU] else ():
        taken[part.ep_name] += len(part.get_nodes())
    return taken


__all__ = ["DEFAULT", "Settings", "nodes_by_provider", "open_session", "refuse_idle"]
