"""Every test here leaves no process, descriptor or shared memory behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from tests.dnnc.engines.onnxruntime.processes import nothing_left


@pytest.fixture(scope="session")
def zeromq() -> None:
    """Lets pyzmq start the thread by which it frees what is sent without a copy; it stays until the process ends."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as a, context.socket(zmq.PAIR) as b:
        a.bind("inproc://once")
        b.connect("inproc://once")
        a.send(bytearray(1 << 20), copy=False)
        b.recv()


@pytest.fixture(autouse=True)
def _nothing_left(zeromq: None) -> Iterator[None]:
    with nothing_left():
        yield
