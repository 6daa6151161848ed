"""``-v``: the loggers ``dnnc.*`` to standard error, each named like its module (``dnnc.passes`` and ``dnnc.kernels`` for
``passes``). They state what is done and how long it takes; what a user must know is printed without ``-v``
(``dnnc.cli.console``)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

Verbose = Annotated[
    bool, typer.Option("-v", "--verbose", help="Log each step, with its time, to standard error (loggers dnnc.*).")
]


def with_verbose(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the option ``-v``, which it does not see itself."""

    @functools.wraps(command)
    def logged(*arguments: Any, verbose: bool = False, **options: Any) -> None:
        if not verbose:
            return command(*arguments, **options)
        with _log_to_stderr():
            return command(*arguments, **options)

    own = inspect.signature(command, eval_str=True).parameters.values()
    option = inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Verbose)
    changed: Any = logged
    changed.__signature__ = inspect.Signature([*own, option])
    changed.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, option)}
    return logged


@contextmanager
def _log_to_stderr() -> Iterator[None]:
    import logging

    from dnnc.cli.console import talk

    class Talk(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            talk(self.format(record))

    handler = Talk()
    handler.setFormatter(logging.Formatter("%(relativeCreated)7.0f ms  %(name)s: %(message)s"))
    logger = logging.getLogger("dnnc")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
