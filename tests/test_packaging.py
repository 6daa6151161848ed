"""The wheel holds all that runs: packages, grammars, presets; and nothing of the rest of the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("grammars", "ir", "passes", "dnnc")


def files(root: Path, suffixes: tuple[str, ...]) -> set[str]:
    """Files of the packages under ``root``, relative."""
    return {
        path.relative_to(root).as_posix()
        for package in PACKAGES
        for path in (root / package).rglob("*")
        if path.suffix in suffixes and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy, so that building leaves nothing in the checkout."""
    folder = tmp_path_factory.mktemp("packaging")
    source = folder / "source"
    source.mkdir()
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder / "out"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No matching distribution found for setuptools" in done.stderr:
        pytest.skip("pip cannot fetch setuptools, which builds the wheel: there is no network")
    assert done.returncode == 0, done.stderr
    (found,) = (folder / "out").iterdir()
    return found


@pytest.mark.slow
def test_the_wheel_holds_every_file_that_runs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = files(ROOT, (".py", ".lark", ".toml", ".md", ".typed", ".html", ".css", ".js", ".LICENSE"))
    assert sorted(expected - held) == []
    assert sorted(name for name in held - expected if name.split("/")[0] not in PACKAGES) == []
    with zipfile.ZipFile(wheel) as archive:
        licences = [name for name in archive.namelist() if ".dist-info/licenses/" in name]
        assert [archive.read(name) for name in licences] == [(ROOT / "dnnc" / "LICENSE").read_bytes()]
    assert any(name.endswith(".lark") for name in held)
    assert any(name.startswith("dnnc/machines/presets/") and name.endswith(".toml") for name in held)


@pytest.mark.slow
def test_the_installed_command_runs_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """Grammar, preset and zoo are found where pip put them."""
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    where = "import dnnc, ir; print(dnnc.__file__); print(ir.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", where], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert all(Path(line).is_relative_to(site) for line in found.stdout.split())
    text = "module @m {\n}\n"
    (tmp_path / "m.ir").write_text(text)
    for arguments, words in ((["topology", "show", "preset:a100x8"], "a100"), (["opt", "m.ir", "--passes", ""], "module @m")):
        command = [sys.executable, "-m", "dnnc", *arguments]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert words in done.stdout
