"""No code comes from where the user stands: modules in the current directory, called as those that the commands import, are
never run, neither by the command nor by a process that it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPO

SCRIPT = Path(sys.executable).with_name("dnnc")
COMMANDS = {
    "the script": [str(SCRIPT)],
    "python -m": [sys.executable, "-m", "dnnc"],
}
HOSTILE = (
    *("json", "select", "subprocess", "tempfile", "dataclasses", "ctypes", "selectors", "statistics", "zipfile", "fcntl"),
    *("numpy", "onnx", "onnxruntime", "onnx_ir", "numba", "highspy", "networkx", "lark", "typer", "rich", "yaml", "sympy"),
)
"""Modules that dnnc imports; not those that the interpreter itself imports for ``python -m``."""


def hostile_folder(folder: Path) -> Path:
    """``folder`` with modules in it that say that they ran, and end the process."""
    for name in HOSTILE:
        text = f"import os\nopen({str(folder / 'RAN')!r}, 'a').write('{name} ' + str(os.getpid()) + '\\n')\nos._exit(99)\n"
        (folder / f"{name}.py").write_text(text)
    return folder


def dnnc(start: list[str], folder: Path, *arguments: str) -> None:
    command = [*start, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    ran = folder / "RAN"
    assert not ran.exists(), ran.read_text()
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "start", [pytest.param("the script", marks=pytest.mark.slow), pytest.param("python -m", marks=pytest.mark.slow)]
)
def test_a_build_is_made_run_and_checked(start: str, tmp_path: Path) -> None:
    if start == "the script" and not SCRIPT.exists():
        pytest.skip("dnnc is not installed beside this interpreter")
    folder = hostile_folder(tmp_path)
    dnnc(COMMANDS[start], folder, "compile", "zoo:mlp", "-t", "preset:cpu-2", "-o", "build", "--quiet")
    dnnc(COMMANDS[start], folder, "run", "build", "--quiet")
    dnnc(COMMANDS[start], folder, "check", "build", "--quiet")


@pytest.mark.slow
@pytest.mark.parametrize("entries", ["", os.pathsep, f"{os.pathsep}/absent", "/absent"])
def test_the_solver_s_own_process_too(entries: str, tmp_path: Path) -> None:
    """What a search starts for a large programme. An empty entry of PYTHONPATH stands for the current directory."""
    folder = hostile_folder(tmp_path)
    code = f"""
import os, sys
sys.path.insert(0, {str(REPO)!r})
from passes.reference.assignment.milp_process import solve_apart
from tests.passes.partition.instances import random_problem
problem = random_problem(1)
import onnxruntime, json, numpy, subprocess  # all that this process needs, from where it belongs
sys.path.append({str(folder)!r})
os.environ["PYTHONPATH"] = {entries!r}
os.chdir({str(folder)!r})
sys.exit(solve_apart(problem, below=1e9, seconds=20, gap=0, watch=lambda value, bound: True).status != "optimal")
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert not (folder / "RAN").exists(), (folder / "RAN").read_text()
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_numba_takes_no_settings_from_there(tmp_path: Path) -> None:
    """`.numba_config.yaml` could name the folder of numba's cache, and what lies in a cache is run."""
    (tmp_path / "yaml.py").write_text("def safe_load(file): return {'cache_dir': 'poisoned'}\n")  # as if PyYAML were installed
    (tmp_path / ".numba_config.yaml").write_text("cache_dir: poisoned\n")
    code = """
import sys
sys.path.append('.')
from passes.solvers.kernels import numba
numba.njit(lambda x: x)(1)
print(numba.config.CACHE_DIR == 'poisoned', 'yaml' in sys.modules)
"""
    command = [sys.executable, "-P", "-c", code]
    environment = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "False False\n"
    assert done.stderr == ""
