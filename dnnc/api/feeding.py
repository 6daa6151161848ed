"""Training data of a Python program as ranks read them, who are other processes: a source of ``dnnc.data.samples``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from dnnc.api.faults import DataNotReadable, TooFewMicrobatches
from ir.core.diagnostics import InvalidInput, UsageError

if TYPE_CHECKING:
    from dnnc.engines.torch.launch.training import TrainOptions
    from ir.core.module import Module

Data = str | os.PathLike[str] | Mapping[str, Any] | Iterable[Any]


def source_of(
    stack: ExitStack, data: Data, module: Module, options: TrainOptions, *, whole: bool, kept: bool
) -> tuple[str, Callable[[int], None]]:
    """The source that ranks read, and what is to be called with the number of each step that is done. What is in memory is
    written to a folder that goes with ``stack``: microbatches of an iterable while ranks train, ``whole`` before, where others
    than these ranks read them too. ``kept``: until the end, since training may begin again. Raises InvalidInput, UsageError."""
    from dnnc.data.npz import write_npz
    from dnnc.data.samples import MICROBATCHES, Feed, data_inputs, given_data
    from ir.core.module import Schedule, Stage
    from ir.system.scratch import scratch_folder

    def nothing(step: int) -> None:
        """Nobody waits for it."""

    if isinstance(data, str | os.PathLike):
        return os.fspath(data), nothing
    by_number = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if not (isinstance(data, Iterable) or by_number) or hasattr(data, "dtype"):  # an array says not of which input it is
        raise UsageError(DataNotReadable(type(data).__name__), where="data")
    folder = stack.enter_context(scratch_folder())
    if isinstance(data, Mapping):
        write_npz(folder / "samples.npz", _arrays(data))
        return str(folder / "samples.npz"), nothing
    schedule = module.first(Schedule)
    each = schedule.microbatches if schedule is not None else 1
    first, end = options.begin * each, (options.begin + options.steps) * each
    read = given_data(data, module, options.seed, each, options.last_batch, first)
    names = [port.name for port in data_inputs(module)]

    def microbatch(number: int) -> Mapping[str, Any]:
        try:
            arrays = read(number)
        except InvalidInput as error:
            if (diagnostic := error.diagnostics[0]).code != "E0437":  # it ended
                raise
            count = str(dict(diagnostic.values)["count"])
            raise InvalidInput(TooFewMicrobatches(int(count), options.steps, end - first), where="data") from None
        return {name: arrays[name] for name in names}

    if whole:
        for number in range(first, end):
            write_npz(folder / f"{number}.npz", microbatch(number))
        return f"{MICROBATCHES}{folder}", nothing
    feed = stack.enter_context(Feed(folder, microbatch, first, end, each, kept))
    behind = len(list(module.of_type(Stage)))  # steps that the last stage may be late
    return f"{MICROBATCHES}{folder}", lambda step: feed.done(step, step - behind)


def evaluation_source(stack: ExitStack, data: Data | None, module: Module) -> str:
    """The source of data to evaluate on, which are read again and again: what a program has becomes files that go
    with ``stack``, of which few samples are in memory at a time. Empty for None. Raises InvalidInput, UsageError."""
    from dnnc.data.npz import write_npz
    from dnnc.data.samples import write_samples
    from ir.system.scratch import scratch_folder

    if data is None or isinstance(data, str | os.PathLike):
        return os.fspath(data) if data is not None else ""
    if (not isinstance(data, Iterable) and not hasattr(data, "__getitem__")) or hasattr(data, "dtype"):
        raise UsageError(DataNotReadable(type(data).__name__), where="eval_data")
    folder = stack.enter_context(scratch_folder())
    if isinstance(data, Mapping):
        write_npz(folder / "eval_data.npz", _arrays(data))
        return str(folder / "eval_data.npz")
    write_samples(data, module, folder)
    return str(folder)


def scratch_of(data: Data | None, source: str) -> str:
    """The path that no message should name, since a person did not write it; empty for data of a person's files."""
    return "" if isinstance(data, str | os.PathLike) else source


def _arrays(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values by name as arrays of numpy; tensors of PyTorch are copied to the CPU. Raises InvalidInput for what is no
    array."""
    import numpy as np

    from dnnc.data.faults import YieldedNoArray

    arrays = {}
    for name, value in values.items():
        try:
            arrays[name] = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        except Exception as error:  # lists of unequal length
            raise InvalidInput(YieldedNoArray(name, str(error)), where="data") from error
    return arrays
