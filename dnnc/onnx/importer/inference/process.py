"""Shape inference by onnx, in bounded memory and time.

onnx computes integer tensors element by element, and shapes with one dimension per element of a tensor, so a model of 200
bytes can need any amount of memory. Its C++ code holds Python's lock meanwhile and can overflow its stack. The cost is unknown
before inference ends, so inference runs in a child process with limits. Where it exceeds the memory limit it runs again
without values of tensors; where it exceeds the limit again, the model is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError
from onnx import ModelProto

from dnnc.onnx import schemas
from dnnc.onnx.importer.graphs import all_nodes, graphs
from dnnc.onnx.importer.inference.faults import InferenceCrashed, InferenceOutOfMemory, InferenceTooSlow, TooManyDimensions
from dnnc.onnx.ort import plain_words
from dnnc.onnx.types import RANK_LIMIT
from ir.core.diagnostics import InvalidInput
from ir.core.limits import Limits
from ir.system.forked import CallFailedError, CallKilledError, call_in_child

_PER_BYTE = 32
"""Bytes of memory per byte of a serialised graph that inference may take beside its limit: messages, copies, results."""


class InferenceFailed(Exception):
    """onnx refuses the model; the text is its first reason, ``whole`` all that it said."""

    def __init__(self, whole: str) -> None:
        super().__init__(_first_line(whole))
        self.whole = whole


@dataclass(slots=True)
class Inference:
    """The inference of one model. ``follow``: whether values of integers are followed; once that took too much memory, they
    are not any more. ``end``: when its time is over."""

    where: str
    limits: Limits
    follow: bool = True
    end: float = field(init=False)

    def __post_init__(self) -> None:
        self.end = time.monotonic() + self.limits.inference_seconds

    def infer(self, model: ModelProto, *, strict: bool) -> ModelProto:
        """A copy of the model with the types that onnx infers. ``strict``: the first node that cannot be inferred is a fault;
        else it is passed over.

        Raises InferenceFailed, and InvalidInput where inference takes more memory or time than the limits say, or crashes."""
        data = model.SerializeToString()
        operators = {(node.domain, node.op_type) for node in all_nodes(model.graph)}
        versions = {entry.domain: entry.version for entry in model.opset_import}
        while True:
            try:
                with schemas.registered(operators, versions):
                    inferred = self._run(data, strict)
            except MemoryError:
                if not self.follow:
                    raise InvalidInput(InferenceOutOfMemory(self.limits.inference_bytes), where=self.where) from None
                self.follow = False
                continue
            self._check_ranks(inferred)
            return inferred

    def _check_ranks(self, model: ModelProto) -> None:
        """Raises InvalidInput for a value of more dimensions than any tool handles: each later step writes all of them out."""
        for graph in graphs(model.graph):
            for value in (*graph.value_info, *graph.output):
                if (rank := len(value.type.tensor_type.shape.dim)) > RANK_LIMIT:
                    raise InvalidInput(TooManyDimensions(value.name, rank, RANK_LIMIT), where=self.where)

    def _run(self, data: bytes, strict: bool) -> ModelProto:
        from onnx.onnx_cpp2py_export import shape_inference

        inferred = ModelProto()
        try:
            # What `onnx.shape_inference.infer_shapes` calls, without what that does in Python.
            result = self.bounded(lambda: bytes(shape_inference.infer_shapes(data, False, strict, self.follow)), len(data))
            inferred.ParseFromString(result)
        except CallKilledError as error:
            raise InvalidInput(InferenceCrashed(str(error)), where=self.where) from None
        except (CallFailedError, DecodeError) as error:  # its InferenceError, and whatever else C++ throws on a broken model
            raise InferenceFailed(str(error)) from None
        return inferred

    def bounded(self, call: Callable[[], bytes], size: int) -> bytes:
        """What the call on a model of ``size`` bytes returns. Raises InvalidInput for one that takes too long, MemoryError,
        CallFailedError, CallKilledError."""
        try:
            memory = self.limits.inference_bytes + _PER_BYTE * size
            return call_in_child(call, seconds=self.end - time.monotonic(), memory=memory)
        except TimeoutError:
            raise InvalidInput(InferenceTooSlow(self.limits.inference_seconds), where=self.where) from None


def _first_line(said: str) -> str:
    text = next((line for line in map(str.strip, said.splitlines()) if line), "no reason is given")
    return plain_words(text.replace("[ShapeInferenceError] ", "").replace("Inference error(s): ", ""))
