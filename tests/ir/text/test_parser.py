"""The parser as a person meets it: places, limits, noise. One golden case per message stands in ``golden/ir/parse``."""

from __future__ import annotations

import gc
import random
import re
import subprocess
import sys
import tracemalloc
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir import (
    Diagnostic,
    DType,
    Func,
    InvalidInput,
    Link,
    Module,
    Op,
    TensorType,
    Topology,
    parse,
    parse_module,
    print_module,
    read_text,
)
from ir.text.parser import MAX_ERRORS
from tests.bench.ir_text import large_module
from tests.calls import calls_of

TEXT = """// a comment
module @m {
  func @main(%x: tensor<4xf32>) -> (%y: tensor<4xf32>) {
    %y = onnx.If(%x) : tensor<4xf32>
      region then_branch() {
        // another
        %z = onnx.Relu(%x) : tensor<4xf32>
        yield %z
      }
  }
  topology @t {
    type cpu {}
    link bus {ends = [a, b], bandwidth = 1.0}
  }
}
"""


def test_source_map() -> None:
    result = parse(TEXT, "m.ir")
    func, topology = result.module.symbols
    assert isinstance(func, Func)
    assert isinstance(topology, Topology)
    inner = func.ops[0].regions[0][1].ops[0]
    assert [result.source_map.line(item) for item in (func, func.ops[0], inner, topology, topology.links[0])] == [
        3,
        4,
        7,
        11,
        13,
    ]
    assert result.source_map.line(Op("onnx.Relu")) is None
    assert result.source_map.line(Link("l", (), 1.0)) is None
    span = result.source_map.span(inner)
    assert span is not None
    assert (span.line, span.column, span.source_line) == (7, 9, "        %z = onnx.Relu(%x) : tensor<4xf32>")


def test_equal_ops_have_places_of_their_own() -> None:
    text = "module @m {\n  func @f() -> () {\n    comm.x()\n    comm.x()\n  }\n}\n"
    result = parse(text)
    first, second = result.module.entry.ops
    assert first == second
    assert (result.source_map.line(first), result.source_map.line(second)) == (3, 4)


def test_the_caret_stands_under_the_fault() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_module(TEXT.replace("onnx.Relu(%x)", "onnx.Relu(%x, +)"), "m.ir")
    assert str(caught.value) == (
        "m.ir:7:28: error[E2105]: expected an operand such as %x, @w or _ but found '+'\n"
        "          %z = onnx.Relu(%x, +) : tensor<4xf32>\n"
        "                             ^"
    )


def test_one_fault_hides_no_other_line() -> None:
    """Each of twelve broken ops among good ones is told, and nothing else."""
    lines = [f"    %v{i} = onnx.Relu(%x{' %x' if i % 3 == 0 else ''}) : tensor<4xf32>" for i in range(36)]
    text = "module @m {\n  func @f(%x : tensor<4xf32>) -> () {\n" + "\n".join(lines) + "\n  }\n}\n"
    with pytest.raises(InvalidInput) as caught:
        parse_module(text)
    assert [d.span.line for d in caught.value.diagnostics if d.span] == [3 + i for i in range(0, 36, 3)]


def test_a_broken_region_hides_no_line_behind_it() -> None:
    """The braces inside what is dropped close what they opened, and nothing more."""
    inside = "      {\n        {\n        }\n      }\n      %z = onnx.Relu(%x %x) : tensor<4xf32>\n    }\n"
    body = "    broken {\n" + inside + "    %w = onnx.Relu(%x %x) : tensor<4xf32>\n"
    text = "module @m {\n  func @f(%x : tensor<4xf32>) -> () {\n" + body + "  }\n}\n"
    with pytest.raises(InvalidInput) as caught:
        parse_module(text)
    assert [d.span.line for d in caught.value.diagnostics if d.span] == [3, 10]


def test_the_number_of_faults_is_limited() -> None:
    body = "    %v = onnx.Relu(\n" * 1000
    with pytest.raises(InvalidInput) as caught:
        parse_module("module @m {\n  func @f() -> () {\n" + body + "  }\n}\n")
    assert 2 <= len(caught.value.diagnostics) <= MAX_ERRORS + 1


@settings(max_examples=150)
@given(st.integers(0, len(TEXT) - 1), st.integers(0, 12), st.text(alphabet='{}()<>[]%@"=:,. \nax0_/', max_size=6))
def test_damaged_text_is_refused_with_a_place_or_reads_back(start: int, length: int, put: str) -> None:
    text = TEXT[:start] + put + TEXT[start + length :]
    found: tuple[Diagnostic, ...] = ()
    try:
        module = parse_module(text)
    except InvalidInput as error:
        found = error.diagnostics
    else:
        assert parse_module(print_module(module)) == module
    assert all(d.span is not None for d in found)
    assert not any(re.search("ANON|LBRACE|OPNAME|_FUNC", d.message) for d in found)


@settings(max_examples=100)
@given(st.text())
def test_noise_behind_a_good_start(noise: str) -> None:
    with pytest.raises(InvalidInput):
        parse_module("module @m {\n  func @f(" + noise)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "expected 'module @name {'"),
        (b"  // only a comment\n", "expected 'module @name {'"),
        (b"\x08\x07\x12\x00onnx", "binary data (a zero byte at offset 3)"),
        (b"hello world", "expected 'module @name {'"),
        (b"module @m {\n// \xff\n}", "found byte 0xff at offset 15"),
        (random.Random(0).randbytes(1 << 16), "binary data"),
    ],
)
def test_files_that_are_no_text(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "noise.ir"
    path.write_bytes(data)
    with pytest.raises(InvalidInput, match=words.replace("(", r"\(").replace(")", r"\)")) as caught:
        read_text(path)
    assert caught.value.exit_code == 3
    assert caught.value.diagnostics[0].where == str(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such file; expected IR text"):
        read_text(tmp_path / "none.ir")


@pytest.mark.parametrize("head", [b"", b"module @m {\n", b"\x00"])
def test_a_gigabyte_is_refused_at_once(tmp_path: Path, head: bytes) -> None:
    """Sparse, so that the test writes nothing; refused after its first block, the rest is not read."""
    path = tmp_path / "huge.ir"
    with path.open("wb") as file:
        file.write(head.ljust(1 << 17, b" "))
        file.truncate(1 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput):
            read_text(path)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "noise",
    [
        "x" * 1_000_000,
        "%" * 300_000,
        '"' * 300_001,
        "{" * 300_000,
        "(%a," * 100_000,
        "a<" * 150_000,
        "\n" * 60_000 + "?",
        "(" + "\n" * 60_000 + "?",
    ],
    ids=["letters", "sigils", "quotes", "braces", "names", "angles", "lines", "operands"],
)
def test_long_noise_takes_linear_work(noise: str) -> None:
    """In calls of functions; what one built-in function does with all of it in its square would take minutes."""

    def refused(text: str) -> None:
        with pytest.raises(InvalidInput):
            parse_module(text)

    for head in ("", "module @m {\n", "module @m {\n func @f(%x : tensor<4xf32>) -> () {\n  %y = onnx.A", "module @m {a = "):
        assert calls_of(partial(refused, head + noise)) < 10 * len(noise) + 50_000


def test_deep_nesting_is_refused() -> None:
    depth = 3000
    seq = "seq<" * depth + "tensor<f32>" + ">" * depth
    with pytest.raises(InvalidInput, match="nested more than 64 deep"):
        parse_module(f"module @m {{\n  func @f(%x : {seq}) -> () {{\n  }}\n}}\n")
    maps = "map<i64, " * depth + "tensor<f32>" + ">" * depth  # commas do not make it flat
    for text in (f"module @m {{\n  func @f(%x : {maps}) -> () {{\n  }}\n}}\n", f"module @m {{t = {maps}}} {{\n}}\n"):
        with pytest.raises(InvalidInput, match="nested more than 64 deep"):
            parse_module(text)
    regions = "onnx.If() region a() {\n" * depth + "}\n" * depth
    with pytest.raises(InvalidInput, match="nested more than 64 deep"):
        parse_module("module @m {\n  func @f() -> () {\n" + regions + "  }\n}\n")


def test_the_cycle_collector_runs_again_after_a_parse() -> None:
    parse_module("module @m {}")
    assert gc.isenabled()
    with pytest.raises(InvalidInput):
        parse_module("module @m {")
    assert gc.isenabled()


def test_hand_written_forms() -> None:
    """Spaces, line breaks inside lists, unsorted keys and a missing location are read; printing gives the one form."""
    text = """module @m {b = 1, a = 2} { func @f(%x: tensor<batch x 4xf32>)->() {
      %y=onnx.Add( %x ,
        %x ) {axis=1,
        mode="a"} : tensor<? x 4 x f32>
    } }"""
    module = parse_module(text)
    assert print_module(module) == (
        "module @m {a = 2, b = 1} {\n"
        "  func @f(%x : tensor<batch x 4 x f32>) -> () {\n"
        '    %y = onnx.Add(%x, %x) {axis = 1, mode = "a"} : tensor<? x 4 x f32> loc(?)\n'
        "  }\n"
        "}\n"
    )
    assert module.entry.args[0].type == TensorType(DType.F32, ("batch", 4))


def test_tabs_and_carriage_returns_are_spaces() -> None:
    text = (
        "module @m {\n  func @f(%x : tensor<4xf32>) -> () {\n    %y, %z = onnx.Op(%x, _) {axis = 1} : tensor<4xf32>, "
        'tensor<4xf32> color<1> stage<0> loc("a", "b")\n  }\n  schedule @s {\n    kind = "periodic"\n  }\n}\n'
    )
    module = parse_module(text)
    spaced = text.replace(", ", " \t,\t ").replace(" =", "\t =\t").replace("> ", ">\t").replace('("', '( \t"')
    assert parse_module(spaced) == module
    broken = text.replace("(%x, _)", "(\n%x,\n_\n)").replace("\n", "\r\n")
    assert parse_module(broken) == module


@pytest.mark.parametrize("text", ["tensor<{}xf32>", "bytes<{}>"])
def test_numbers_of_too_many_digits(text: str) -> None:
    digits = "9" * 10_000
    with pytest.raises(InvalidInput, match="a number of 10000 digits is too large") as caught:
        parse_module(f"module @m {{\n  func @f(%x : {text.format(digits)}) -> () {{\n  }}\n}}\n")
    assert caught.value.diagnostics[0].span is not None
    assert caught.value.diagnostics[0].span.line == 2


def test_parse_and_print_are_linear() -> None:
    """Four times the ops take about four times the calls of functions; the bench prints the seconds."""
    parse_module("module @m {}")

    def there_and_back(module: Module) -> None:
        assert parse_module(print_module(module)) == module

    few, many = (calls_of(partial(there_and_back, large_module(ops))) for ops in (500, 2000))
    assert few < many < 4.5 * few


def test_lark_is_imported_by_a_parse_only() -> None:
    code = "import ir, sys; ir.print_module(ir.Module('@m')); ir.verify(ir.Module('@m')); print('lark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
