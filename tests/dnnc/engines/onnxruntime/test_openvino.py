"""A build whose devices name a provider that computes: OpenVINO's, on the CPU, from its package on PyPI.

The package is imported as ``onnxruntime`` too, so it lies in an environment of its own, which finds everything else (this
project, numpy, onnx ...) behind it in the environment of the tests. ``DNNC_OPENVINO`` names the Python of such an environment;
without it the test makes one, and is skipped where the package cannot be installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from dnnc.compile.driver import CompileOptions, compile_model
from tests.dnnc.engines.onnxruntime.test_providers import MACHINES

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[4]
PROVIDER = 'provider = "OpenVINOExecutionProvider"\nprovider_options = {{ device_type = "{}" }}'
ASK = """
import onnxruntime
assert "OpenVINOExecutionProvider" in onnxruntime.get_available_providers(), onnxruntime.get_available_providers()
"""
WHO_RAN = """
import sys
from dnnc.build.build import Build
from dnnc.engines.onnxruntime.session.program import Program
from dnnc.engines.onnxruntime.session.session import Settings, nodes_by_provider
build = Build.open(sys.argv[1])
for stage in build.stages:
    for number, name in enumerate(stage.models):
        device = stage.members[0].device if stage.members else stage.device
        model, weights = build.model(name)
        session = Program(model, (), Settings(provider=build.provider(device)), weights).session
        print(stage.index, device, session.get_providers()[0], dict(nodes_by_provider(session)))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python whose onnxruntime has OpenVINO's provider."""
    if named := os.environ.get("DNNC_OPENVINO"):
        return named
    folder = tmp_path_factory.mktemp("openvino")
    made = str(folder / "bin" / "python")
    install = [made, "-m", "pip", "install", "-q", "--retries", "1", "--timeout", "20", "--no-deps", "onnxruntime-openvino"]
    try:
        venv.create(folder, with_pip=True)
        subprocess.run(install, capture_output=True, text=True, timeout=600, check=True)
    except (subprocess.SubprocessError, OSError) as error:
        said = str(getattr(error, "stderr", "") or error).strip().splitlines()
        pytest.skip(f"onnxruntime-openvino cannot be installed here: {said[-1]}")
    paths = [made, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = Path(subprocess.run(paths, capture_output=True, text=True, check=True).stdout.strip())
    (own / "behind.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
    if (done := subprocess.run([made, "-c", ASK], capture_output=True, text=True)).returncode:
        pytest.skip(f"onnxruntime-openvino does not load here: {done.stderr.strip().splitlines()[-1]}")
    return made


def dnnc(python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, "-m", "dnnc", *arguments], capture_output=True, text=True, cwd=ROOT, timeout=300)


def built(folder: Path, device_type: str = "CPU", mesh: str = "") -> Path:
    """A net in two stages, on a device without a provider and on one of OpenVINO's; or split over two of OpenVINO's."""
    text = MACHINES.format(provider=PROVIDER.format(device_type))
    if mesh:
        text = text.replace('type = "plain"\n', 'type = "other"\n')
    (folder / "machines.toml").write_text(text)
    net = "zoo:gpt2,layers=2,hidden=64,seq=8,vocab=128,positions=16,weights=random"
    compile_model(CompileOptions(net, str(folder / "machines.toml"), folder / "build", stages=None if mesh else 2, mesh=mesh))
    return folder / "build"


def test_openvino_runs_the_stage_whose_type_names_it(python: str, tmp_path: Path) -> None:
    build = str(built(tmp_path))
    for command in (["run", build, "-m", "4"], ["check", build]):
        done = dnnc(python, *command)
        assert done.returncode == 0, done.stderr
        assert "runs on this machine's CPU" not in done.stderr
    asked = subprocess.run([python, "-c", WHO_RAN, build], capture_output=True, text=True, cwd=ROOT)
    assert asked.returncode == 0, asked.stderr
    by_device = {
        device: (first, nodes) for _, device, first, nodes in (line.split(" ", 3) for line in asked.stdout.splitlines())
    }
    assert by_device["a"] == ("CPUExecutionProvider", "{}")
    first, nodes = by_device["b"]
    assert first == "OpenVINOExecutionProvider"
    assert "OpenVINOExecutionProvider" in nodes
    assert "CPUExecutionProvider" not in nodes


def test_openvino_runs_the_members_of_a_mesh(python: str, tmp_path: Path) -> None:
    build = str(built(tmp_path, mesh="2"))
    for command in (["run", build], ["check", build]):
        done = dnnc(python, *command)
        assert done.returncode == 0, done.stderr


def test_a_provider_that_cannot_start_is_an_error_with_its_reason(python: str, tmp_path: Path) -> None:
    build = str(built(tmp_path, device_type="NPU"))
    for command in ("run", "check"):
        done = dnnc(python, command, build)
        assert done.returncode == 3, done.stderr
        assert "onnxruntime has OpenVINOExecutionProvider and could not start it" in done.stderr
        assert "Device NPU is not available" in done.stderr
        assert "are its drivers and libraries installed" in done.stderr


def test_another_onnxruntime_has_not_the_provider(tmp_path: Path) -> None:
    done = dnnc(sys.executable, "run", str(built(tmp_path)))
    assert done.returncode == 3
    assert "pip install onnxruntime-openvino" in done.stderr
