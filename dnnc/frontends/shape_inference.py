"""Shape inference by onnx and by onnxruntime, in bounded memory and time.

Both follow the values of integer tensors, element by element, and build shapes as long as a tensor has elements: a model of 200
bytes can ask for any amount of memory; onnx's C++ holds Python's lock while it works, however long that takes, and can
overflow its stack. What a model will ask for is only known once it was inferred, so both run in a child process with limits.
What would take more memory is inferred without following values; where even that takes more, the model is refused.
"""

from __future__ import annotations

import contextlib
import io
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto, TypeProto

from dnnc.frontends import schemas
from dnnc.frontends.model_dims import graphs, model_symbols
from dnnc.frontends.onnx_types import RANK_LIMIT
from dnnc.ort import load_symbolic_shape_inference, plain_words
from ir.diagnostics import InvalidInput
from ir.forked import CallFailedError, CallKilledError, call_in_child
from ir.limits import Limits

_PER_BYTE = 32
"""Bytes of memory per byte of a serialised graph that inference may take beside its limit: messages, copies, results."""

_LONG_VECTOR = 1 << 16
"""Integers of a vector; Python's protobuf does not survive running out of memory, as C++ and numpy do."""

_TERMS = 200
"""Terms of a dimension as onnxruntime computes it; those of real models have about ten."""

_SYMBOLS = 1_000
"""Names of dimensions in a model; to add up so many takes onnxruntime a second, and four times that for twice as many."""

_ALL_TERMS = 1_000_000
"""Terms of all dimensions and elements that onnxruntime computes; they take some seconds."""

_ROUNDS = 32
"""Rounds of onnxruntime's inference: on models that it does not understand it may never come to an end."""


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
        operators = {(node.domain, node.op_type) for graph in graphs(model.graph) for node in graph.node}
        versions = {entry.domain: entry.version for entry in model.opset_import}
        while True:
            try:
                with schemas.registered(operators, versions):
                    inferred = self._run(data, strict)
            except MemoryError:
                if not self.follow:
                    message = f"shape inference would take more than {self.limits.inference_bytes} bytes of memory"
                    hint = "does a shape come from a tensor of very many elements? --limit inference-bytes=NUMBER allows more"
                    raise InvalidInput(message, where=self.where, hint=hint) from None
                self.follow = False
                continue
            self._check_ranks(inferred)
            return inferred

    def _check_ranks(self, model: ModelProto) -> None:
        """Raises InvalidInput for a value of more dimensions than any tool handles: each later step writes all of them out."""
        for graph in graphs(model.graph):
            for value in (*graph.value_info, *graph.output):
                if (rank := len(value.type.tensor_type.shape.dim)) > RANK_LIMIT:
                    message = f"the shape of '{value.name}' has {rank} dimensions; at most {RANK_LIMIT} are supported"
                    raise InvalidInput(message, where=self.where)

    def _run(self, data: bytes, strict: bool) -> ModelProto:
        from onnx.onnx_cpp2py_export import shape_inference

        inferred = ModelProto()
        try:
            # What `onnx.shape_inference.infer_shapes` calls, without what that does in Python.
            result = self.bounded(lambda: bytes(shape_inference.infer_shapes(data, False, strict, self.follow)), len(data))
            inferred.ParseFromString(result)
        except CallKilledError as error:
            message = f"onnx's shape inference of this model was ended by {error}"
            hint = "are its graphs or types nested very deep? If not, please report it to onnx"
            raise InvalidInput(message, where=self.where, hint=hint) from None
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
            message = f"shape inference took more than {self.limits.inference_seconds} s"
            hint = "real models take a few seconds; --limit inference-seconds=NUMBER allows more"
            raise InvalidInput(message, where=self.where, hint=hint) from None

    def infer_symbolic(self, model: ModelProto) -> ModelProto | None:
        """A copy of the model with the types that onnxruntime's inference finds; None where it gives up, where a vector of
        integers is so long that it would not survive writing it out as a shape, and where names of dimensions are too many."""
        if len(model_symbols(model)) > _SYMBOLS or any(
            _is_long_vector(value.type) for graph in graphs(model.graph) for value in (*graph.input, *graph.value_info)
        ):
            return None
        try:
            symbolic_shape_inference = _of_small_expressions(load_symbolic_shape_inference())
        except ImportError:
            return None

        def infer() -> bytes:
            logging.getLogger("onnxruntime.tools.symbolic_shape_infer").setLevel(logging.CRITICAL)
            copy = ModelProto()
            copy.CopyFrom(model)
            with contextlib.redirect_stdout(io.StringIO()):
                # What its static `infer_shapes` does, which however writes a file into the working directory when it gives up.
                inference = symbolic_shape_inference(2**31 - 1, True, False, 0)
                inference._preprocess(copy)
                complete = False
                for _ in range(_ROUNDS):
                    if not inference.run_:
                        break
                    complete = inference._infer_impl()
                inference._update_output_from_vi()
            result = inference.out_mp_
            return bytes(result.SerializeToString()) if complete and isinstance(result, ModelProto) else b""

        try:
            result = self.bounded(infer, model.ByteSize())
        except (CallFailedError, CallKilledError, MemoryError):  # it raises anything on models that it does not understand
            return None
        return ModelProto.FromString(result) if result else None


def _of_small_expressions(inference: Any) -> Any:
    """The class ``inference`` of onnxruntime, made to give up at a dimension of more than ``_TERMS`` terms or 64 bits and
    after ``_ALL_TERMS``: products of sums double with each op, and so do the digits of a number that is squared."""

    class Bounded(inference):  # type: ignore[misc]
        terms = 0

        def _compute_on_sympy_data(self, node: Any, op_func: Any) -> None:
            super()._compute_on_sympy_data(node, op_func)
            found = self.sympy_data_.get(node.output[0], ())
            self._spend(found if isinstance(found, list | tuple) else [found])

        def _update_computed_dims(self, new_sympy_shape: Any) -> None:
            self._spend(new_sympy_shape)
            super()._update_computed_dims(new_sympy_shape)

        def _spend(self, dims: Any) -> None:
            self.terms += sum(map(_terms, dims))
            if self.terms > _ALL_TERMS:
                raise OverflowError("dimensions take too many terms")

    return Bounded


def _terms(dim: Any) -> int:
    """The terms of a dimension. Raises OverflowError for one that is too large an expression or number."""
    count, todo = 0, [dim]
    while todo:
        term = todo.pop()
        count += 1
        number = term if isinstance(term, int) else term.p if getattr(term, "is_Integer", False) else 0
        if count > _TERMS or abs(number) >= 1 << 64:
            raise OverflowError("a dimension grows without an end")
        todo += getattr(term, "args", ())
    return count


def _is_long_vector(type_: TypeProto) -> bool:
    tensor = type_.tensor_type
    return (
        tensor.elem_type in (TensorProto.INT64, TensorProto.INT32)
        and len(tensor.shape.dim) == 1
        and tensor.shape.dim[0].dim_value > _LONG_VECTOR
    )


def _first_line(said: str) -> str:
    text = next((line for line in map(str.strip, said.splitlines()) if line), "no reason is given")
    return plain_words(text.replace("[ShapeInferenceError] ", "").replace("Inference error(s): ", ""))


__all__ = ["Inference", "InferenceFailed"]
