"""Opens ONNX Runtime sessions: the only place that sets their options, for runs, checks and measurements.

Imports no third party but numpy and onnxruntime, because the process of a device must start fast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dnnc.engines.onnxruntime.engine import Loaded
from dnnc.engines.onnxruntime.session.external import session_on
from dnnc.onnx.ort import ProviderUnavailable, load_onnxruntime, make_session
from dnnc.onnx.providers import CPU, ON_CPU, Provider
from ir.system.host import give_back_large_blocks

_LOG_ERRORS, _LOG_FATAL = 3, 4
"""Log levels of onnxruntime: errors and worse, or fatal errors only."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to open a session. ``threads``: of onnxruntime; ``spin``: whether idle threads wait busily; ``optimize``:
    onnxruntime's graph optimisations; ``provider``: the execution provider. ``folder``: holds the external data, unless open
    files do; ``profile``: prefix of the path of a profile to write, empty for none; ``folded_bytes``: the largest constant that
    onnxruntime may compute when it loads the model, 0 for its own limit. ``packed``: whether products keep a packed copy of
    their weights, which a product of few rows needs."""

    threads: int = 1
    spin: bool = False
    optimize: bool = True
    provider: Provider = ON_CPU
    folder: str = ""
    profile: str = ""
    folded_bytes: int = 0
    packed: bool = True


def require_used(programs: Iterable[Loaded], provider: str) -> None:
    """Raises ProviderUnavailable if ``provider``, that of a device, takes no node of the device's ``programs``: the CPU would
    run all of them."""
    nodes: Counter[str] = Counter()
    for program in programs:
        nodes.update(program.ops_taken)
    if nodes and provider not in nodes:
        raise ProviderUnavailable(f"{provider} takes none of the {nodes.total()} nodes of its program, so the CPU would run it")


DEFAULT = Settings()
"""One thread on the CPU, with optimisations."""


def open_session(model: bytes, settings: Settings, weights: Mapping[str, int] | None = None) -> Any:
    """An ``InferenceSession``. ``weights``: from each location in the model to the descriptor of an open file with the external
    data; without them, external data is in the settings' folder. Raises ProviderUnavailable, what onnxruntime raises, and
    ValueError for a location that is not in ``weights``."""
    ort = load_onnxruntime()
    other_provider = settings.provider.name != CPU

    def session_options() -> Any:
        options = ort.SessionOptions()
        options.intra_op_num_threads = settings.threads
        options.inter_op_num_threads = 1
        options.enable_mem_pattern = False  # else the activations of the first run are kept beside those of all others
        # Errors come as exceptions, except for the reason why a provider did not start, which is only logged.
        options.log_severity_level = _LOG_ERRORS if other_provider else _LOG_FATAL
        options.add_session_config_entry("session.intra_op.allow_spinning", "1" if settings.spin else "0")
        if other_provider:
            options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        if not settings.optimize:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if not settings.packed:
            options.add_session_config_entry("session.disable_prepacking", "1")
        if limit := settings.folded_bytes:
            options.add_session_config_entry("optimization.constant_folding_max_output_size_in_bytes", str(limit))
        if settings.profile:
            options.enable_profiling, options.profile_file_prefix = True, settings.profile
        if settings.folder and weights is None:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", settings.folder)
        return options

    def start(model: bytes, options: Any) -> Any:
        return make_session(model, options, settings.provider)

    with _returning_memory():
        return start(model, session_options()) if weights is None else session_on(model, weights, session_options, start)


@contextmanager
def _returning_memory() -> Iterator[None]:
    """Makes freed memory go back to the system while a session is opened: onnxruntime copies weights into new layouts one by
    one, and glibc would keep the memory of the old ones. Afterwards glibc keeps blocks below 32 MiB again, because runs
    allocate and free such blocks for every microbatch."""
    give_back_large_blocks()
    try:
        yield
    finally:
        give_back_large_blocks(32 << 20)


def nodes_by_provider(session: Any) -> Counter[str]:
    """How many nodes of a session each provider took; empty for a session on the CPU alone, which does not record it."""
    assignments = getattr(session, "get_provider_graph_assignment_info", None)  # since onnxruntime 1.24
    nodes: Counter[str] = Counter()
    for assigned in assignments() if assignments is not None and session.get_providers() != [CPU] else ():
        nodes[assigned.ep_name] += len(assigned.get_nodes())
    return nodes
