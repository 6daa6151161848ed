"""Runs every golden case, and the harness itself on made-up cases: it must see a difference, a stale file, a wrong line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import golden
from tests.golden import Case, GoldenMismatch


@pytest.mark.parametrize("case", golden.cases(), ids=lambda case: case.name)
def test_golden(case: Case, update_golden: bool) -> None:
    golden.check(case, update=update_golden)


def test_no_output_is_stale(update_golden: bool) -> None:
    """An output without a case is a leftover of a case that was renamed or removed."""
    stale = golden.stale_outputs()
    if update_golden:
        for path in stale:
            path.unlink()
        return
    assert not stale, f"no case makes {', '.join(map(str, stale))}; to remove them: pytest --update-golden -k stale"


MODULE = """module @m {
  func @main(%x: tensor<4xf32>) -> (%y: tensor<4xf32>) {
    %y = onnx.Relu(%x) : tensor<4xf32>
  }
}
"""


def write_case(folder: Path, text: str, run: str = "// RUN: dnnc opt %s --passes cost") -> Case:
    path = folder / "case.ir"
    path.write_text(f"{run}\n{text}")
    case = golden.read_case(path, folder)
    assert case is not None
    return case


def test_a_missing_output_is_shown_with_the_command_that_accepts_it(tmp_path: Path) -> None:
    case = write_case(tmp_path, MODULE)
    with pytest.raises(GoldenMismatch, match=r"(?s)\+.*onnx\.Relu.*cost<.*pytest --update-golden -k case"):
        golden.check(case)


def test_an_update_writes_only_what_differs(tmp_path: Path) -> None:
    case = write_case(tmp_path, MODULE)
    golden.check(case, update=True)
    output = tmp_path / "case.out.ir"
    assert "cost<" in output.read_text()
    stamp = output.stat().st_mtime_ns
    golden.check(case, update=True)
    assert output.stat().st_mtime_ns == stamp
    golden.check(case)
    output.write_text(output.read_text().replace("Relu", "Rely"))
    with pytest.raises(GoldenMismatch, match=r"(?s)-.*Rely.*\+.*Relu"):
        golden.check(case)


def test_a_pipeline_case_keeps_one_file_per_pass_and_removes_stale_ones(tmp_path: Path) -> None:
    case = write_case(tmp_path, MODULE, "// RUN: dnnc opt %s --passes canonicalize,cost --print-folder %d")
    golden.check(case, update=True)
    assert sorted(path.name for path in (tmp_path / "case").iterdir()) == ["00-input.ir", "10-canonicalize.ir", "20-cost.ir"]
    (tmp_path / "case" / "30-gone.ir").write_text(MODULE)
    with pytest.raises(GoldenMismatch, match="30-gone"):
        golden.check(case)
    golden.check(case, update=True)
    assert not (tmp_path / "case" / "30-gone.ir").exists()


def test_an_output_without_a_case_is_stale(tmp_path: Path) -> None:
    golden.check(write_case(tmp_path, MODULE), update=True)
    assert golden.stale_outputs(tmp_path) == []
    (tmp_path / "case.ir").unlink()
    assert golden.stale_outputs(tmp_path) == [tmp_path / "case.out.ir"]


def test_an_error_must_be_on_its_line(tmp_path: Path) -> None:
    bad = MODULE.replace("onnx.Relu(%x)", "onnx.Relu(%nowhere)")
    wrong = bad.replace("module @m {", "module @m { // error: nowhere")
    with pytest.raises(GoldenMismatch, match="expected at line 2"):
        golden.check(write_case(tmp_path, wrong))
    right = bad.replace(": tensor<4xf32>\n  }", ": tensor<4xf32> // error: nowhere\n  }")
    golden.check(write_case(tmp_path, right))
    with pytest.raises(GoldenMismatch, match="no comment expects"):
        golden.check(write_case(tmp_path, bad))


def test_a_line_may_expect_several_errors(tmp_path: Path) -> None:
    twice = "    %y = onnx.Add(%nowhere, %missing) : tensor<4xf32> // error: nowhere // error: missing\n"
    line = "    %y = onnx.Relu(%x) : tensor<4xf32>\n"
    golden.check(write_case(tmp_path, MODULE.replace(line, twice)))
    with pytest.raises(GoldenMismatch, match="expected at line 4: error: absent"):
        golden.check(write_case(tmp_path, MODULE.replace(line, twice.replace("error: missing", "error: absent"))))


def test_ci_never_updates(tmp_path: Path) -> None:
    """In a process of its own: the option is refused before any test runs."""
    root = Path(__file__).resolve().parent.parent
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--update-golden",
        "-k",
        "stale",
        "tests/test_golden.py",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    result = subprocess.run(command, cwd=root, env={"CI": "true", "PATH": ""}, capture_output=True, text=True, check=False)
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "refused under CI" in result.stderr
