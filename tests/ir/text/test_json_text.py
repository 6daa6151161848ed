"""JSON that is not what a document may hold is refused, with its file and, where it is known, its place."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.core.diagnostics import InvalidInput
from ir.text.json_text import parse_json

_plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(_plain)
@settings(max_examples=30)
def test_plain_json_reads_as_it_is(data: object) -> None:
    text = json.dumps(data)
    assert json.dumps(parse_json("\ufeff" + text, "x.json")) == text


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        ('{\n"a": [,]}', "Expecting value", 2),
        ('{"a": 1, "b": 2, "a": 1}', "'a' stands twice", None),
        ('{"a": NaN}', "NaN is no number", None),
        ("[-Infinity]", "-Infinity is no number", None),
        ("9" * 5000, "thousands of digits", None),
        ("[" * 100_000, "nest more than 100 deep", None),
        ("[" * 101 + "]" * 101, "nest more than 100 deep", None),
        ('{"a": ' * 90_000 + "1" + "}" * 90_000, "nest more than 100 deep", None),
        ('["\\ud800"]', "half of a character", None),
        ('{"\\uDC00": 1}', "half of a character", None),
        ("", "Expecting value", 1),
    ],
)
def test_what_is_refused(text: str, words: str, line: int | None) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_json(text, "x.json")
    (found,) = caught.value.diagnostics
    assert found.where == "x.json"
    assert words in found.message
    assert (found.span.line if found.span else None) == line


def test_depth_is_counted_in_objects_and_lists() -> None:
    assert parse_json("[" * 100 + "]" * 100, "x.json")
    assert parse_json("3", "x.json") == 3
