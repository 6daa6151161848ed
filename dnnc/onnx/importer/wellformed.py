"""Checks right after a model was read, on which every later step relies.

Every text must be UTF-8, and the versions of the IR and of the opsets must fit into 32 signed bits, as in onnx. InvalidInput
names the wrong field by its path.

ONNX's schema is in protobuf's second syntax, which accepts any bytes as text. The third syntax demands UTF-8. So the model is
parsed once more, in C, by the same schema in the third syntax.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from onnx import ModelProto

from dnnc.onnx.importer.faults import NoSuchIrVersion, NoSuchOpset, TextNotUtf8
from ir.core.diagnostics import InvalidInput

_VERSIONS = 1 << 31


def check_form(model: ModelProto, where: str) -> None:
    """Raises InvalidInput unless the model is well formed."""
    try:
        _strict_model().FromString(model.SerializeToString())
    except DecodeError:
        place, found = _first_not_utf8(model)
        raise InvalidInput(TextNotUtf8(repr(found[:40])), where=f"{where}: {place}") from None
    if not 0 <= model.ir_version < _VERSIONS:
        raise InvalidInput(NoSuchIrVersion(model.ir_version), where=where)
    for entry in (*model.opset_import, *(entry for function in model.functions for entry in function.opset_import)):
        if not -_VERSIONS <= entry.version < _VERSIONS:
            raise InvalidInput(NoSuchOpset(entry.version, entry.domain or "ai.onnx"), where=where)


@cache
def _strict_model() -> Any:
    """ONNX's ModelProto in protobuf's third syntax."""
    schema = descriptor_pb2.FileDescriptorProto()
    ModelProto.DESCRIPTOR.file.CopyToProto(schema)
    schema.syntax, schema.package, schema.name = "proto3", "strict", "strict.proto"
    messages = list(schema.message_type)
    while messages:
        message = messages.pop()
        messages.extend(message.nested_type)
        for field in message.field:
            if field.type_name:
                field.type_name = field.type_name.replace(".onnx.", ".strict.", 1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(schema)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("strict.ModelProto"))


def _first_not_utf8(message: Any) -> tuple[str, bytes]:
    """The path of the first text that is not UTF-8 (``graph.node[3].output[0]``), and its bytes; none gives empty ones."""
    for field, value in message.ListFields():
        if field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
            continue
        single = isinstance(value, str | bytes) or hasattr(value, "ListFields")
        for index, item in enumerate((value,) if single else value):
            path = field.name if single else f"{field.name}[{index}]"
            if isinstance(item, bytes):
                return path, item
            if not isinstance(item, str):
                inner, found = _first_not_utf8(item)
                if inner:
                    return f"{path}.{inner}", found
    return "", b""
