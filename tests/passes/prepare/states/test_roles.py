"""What the inputs of a decoder are, by names, types and readers, or as a person says."""

from __future__ import annotations

import pytest

from dnnc.build.decoding import ROLES
from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.module import Func
from ir.core.ops import Op, Value
from ir.core.types import DType, TensorType
from passes.prepare.states import Role, roles_of

IDS, MASK, POSITIONS, POSITION, LENGTHS, GIVEN = Role


def func(inputs: dict[str, tuple[DType, tuple[int | str, ...]]], *ops: Op) -> Func:
    args = tuple(Value(f"%{name}", TensorType(dtype, shape)) for name, (dtype, shape) in inputs.items())
    return Func("@main", args, (), ops)


STEP, PAST = (DType.I64, ("batch", "seq")), (DType.F32, ("batch", 2, "past", 8))


def test_the_inputs_of_exporters() -> None:
    inputs = {"attention_mask": (DType.I64, ("batch", "total")), "position_ids": STEP, "input_ids": STEP, "past.key": PAST}
    assert roles_of(func(inputs), {"past.key"}) == {"attention_mask": MASK, "position_ids": POSITIONS, "input_ids": IDS}


def test_ids_are_one_input() -> None:
    assert roles_of(func({"other": STEP, "input_ids": STEP}), ()) == {"input_ids": IDS}
    assert roles_of(func({"tokens": STEP, "segments": STEP}), ()) == {"tokens": IDS}
    assert roles_of(func({"tokens": (DType.F32, ("batch", "seq"))}), ()) == {}


def test_masks_of_padding_and_of_floats_have_no_role() -> None:
    assert roles_of(func({"ids": STEP, "key_padding_mask": (DType.BOOL, (2, 8))}), ()) == {"ids": IDS}
    assert roles_of(func({"ids": STEP, "mask": (DType.F32, (2, 8))}), ()) == {"ids": IDS}
    assert roles_of(func({"ids": STEP, "mask": (DType.BOOL, (2, 8))}), ()) == {"ids": IDS, "mask": MASK}


def test_readers_tell_where_a_step_is_written() -> None:
    numbers = (DType.I64, ("batch",))
    write = Op("onnx.TensorScatter", ("%past", "%new", "%at"), ())
    attend = Op("onnx.Attention", ("%q", "%k", "%v", "", "", "", "%many"), ())
    found = roles_of(func({"ids": STEP, "at": numbers, "many": numbers, "more": numbers}, write, attend), ())
    assert found == {"ids": IDS, "at": POSITION, "many": LENGTHS}
    added = Op("onnx.Add", ("%at", "%at"), ())
    assert "at" not in roles_of(func({"ids": STEP, "at": numbers}, write, added), ())


def test_what_an_encoder_gives() -> None:
    """Keys and values that no result continues, and a mask."""
    keys = (DType.F32, ("batch", 2, "length", 8))
    inputs = {"input_ids": STEP, "encoder_attention_mask": (DType.I64, ("batch", "length")), "past.0.encoder.key": keys}
    assert roles_of(func(inputs), ()) == {"input_ids": IDS, "encoder_attention_mask": GIVEN, "past.0.encoder.key": GIVEN}
    assert roles_of(func({"input_ids": STEP, "memory": keys}), (), ["memory=given"]) == {"input_ids": IDS, "memory": GIVEN}


def test_a_person_says_more() -> None:
    inputs = {"a": STEP, "b": STEP, "c": (DType.I64, ("batch", "total"))}
    assert roles_of(func(inputs), (), ["b=ids", "a=positions", "c=mask"]) == {"a": POSITIONS, "b": IDS, "c": MASK}
    with pytest.raises(UsageError, match="expected NAME=ROLE, where ROLE is one of ids, mask, positions"):
        roles_of(func(inputs), (), ["a=x"])
    with pytest.raises(InvalidInput, match="can have this role: d=mask"):
        roles_of(func(inputs), (), ["d=mask"])
    with pytest.raises(InvalidInput, match=r"can have this role: a=lengths, tensor<batch x seq x i64>"):
        roles_of(func(inputs), (), ["a=lengths"])
    for twice in (["a=ids", "a=mask"], ["a=ids", "b=ids"]):
        with pytest.raises(UsageError, match=f"'{twice[0]}' and '{twice[1]}' exclude each other"):
            roles_of(func(inputs), (), twice)
    assert roles_of(func(inputs), (), ["b=ids", "b=ids"])["b"] is IDS


def test_builds_know_all_roles() -> None:
    assert (*Role, "branch") == ROLES  # which the importer binds, and no step sees
