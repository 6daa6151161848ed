"""Device types that name their execution provider: what a build records of it; nothing falls back to the CPU in silence.

onnxruntime's package on PyPI has, besides the CPU's, one provider that takes no op of a plain model (Azure's): a session on it
is what a fallback would be. Providers that compute are tried in ``test_openvino.py`` and
``test_cuda.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from dnnc.build.build import Build
from dnnc.check.check import check_build
from dnnc.cli import main
from dnnc.compile.driver import CompileOptions, compile_model
from dnnc.data.generate import random_inputs
from dnnc.engines.onnxruntime import Pipeline, run_build
from dnnc.engines.onnxruntime.errors import StageStopped
from dnnc.engines.onnxruntime.run import foreign_types
from dnnc.engines.onnxruntime.session.program import Program
from dnnc.engines.onnxruntime.session.session import Settings
from dnnc.machines.topology import read_topology
from dnnc.onnx.ort import ProviderUnavailable
from dnnc.onnx.providers import PACKAGES, Provider
from ir.core.diagnostics import ExitCode, InvalidInput
from tests.dnnc import sealing
from tests.dnnc.onnx.models import model

MACHINES = """version = 1
types.plain = "preset:cpu-1"

[types.other]
like = "plain"
kind = "gpu"
{provider}

[[devices]]
name = "a"
type = "plain"

[[devices]]
name = "b"
type = "other"

[[links]]
ends = ["a", "b"]
bandwidth = "20 GB/s"
latency = "10 us"
"""
NET = "zoo:mlp,layers=2,hidden=16,batch=4"


def built(folder: Path, provider: str = "", source: str = NET, stages: int = 2) -> Build:
    """A net in so many stages, on a device of a type without a provider and on one of a type that says ``provider``."""
    folder.mkdir(exist_ok=True)
    (folder / "machines.toml").write_text(MACHINES.format(provider=provider))
    compile_model(CompileOptions(source, str(folder / "machines.toml"), folder / "build", stages=stages))
    return Build.open(folder / "build")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return built(tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("use", [run_build, lambda build, batch: check_build(build)], ids=["run", "check"])
@pytest.mark.parametrize(
    ("provider", "package"),
    [
        ("MIGraphXExecutionProvider", "onnxruntime-migraphx"),
        ("OddExecutionProvider", "the package of onnxruntime that brings Odd"),
    ],
)
def test_a_missing_provider_is_an_error_that_says_what_to_install(
    tmp_path: Path, provider: str, package: str, use: Callable[[Build, Any], object]
) -> None:
    """A build may be made where the provider is missing; to run it there is refused before a process starts."""
    build = built(tmp_path, f'provider = "{provider}"')
    with pytest.raises(InvalidInput) as raised:
        use(build, random_inputs(build))
    assert raised.value.exit_code is ExitCode.INVALID_INPUT
    (told,) = raised.value.diagnostics
    assert f"device type 'other' runs on {provider}" in told.message
    assert "has only" in told.message
    assert "CPUExecutionProvider" in told.message
    assert package in told.hint
    with pytest.raises(InvalidInput):
        Pipeline(build)


@pytest.mark.slow
def test_the_cpu_by_name_gives_the_bits_of_no_name(tmp_path: Path, plain: Build) -> None:
    named = built(tmp_path, 'provider = "CPUExecutionProvider"')
    assert named.providers == {"b": Provider()}
    assert plain.providers == {}
    batch = random_inputs(plain)
    for one, other in zip(plain.stages, named.stages, strict=True):
        assert [plain.model(name)[0] for name in one.models] == [named.model(name)[0] for name in other.models]
    found = [run_build(build, batch).outputs[0] for build in (plain, named)]
    np.testing.assert_array_equal(found[0]["y"], found[1]["y"])
    assert check_build(named).passed


@pytest.mark.skipif("AzureExecutionProvider" not in onnxruntime.get_available_providers(), reason="no such provider here")
@pytest.mark.parametrize("use", [run_build, lambda build, batch: check_build(build)], ids=["run", "check"])
def test_a_provider_that_takes_no_op_is_an_error(tmp_path: Path, use: Callable[[Build, Any], object]) -> None:
    build = built(tmp_path, 'provider = "AzureExecutionProvider"')
    with pytest.raises(Exception, match=r"stage \d on b: .*AzureExecutionProvider takes none of the \d nodes") as raised:
        use(build, random_inputs(build))
    assert getattr(raised.value, "exit_code", None) is ExitCode.INVALID_INPUT
    assert "names another provider" in str(raised.value)


@pytest.mark.skipif("AzureExecutionProvider" not in onnxruntime.get_available_providers(), reason="no such provider here")
def test_a_stage_is_checked_with_each_provider_of_its_devices(tmp_path: Path) -> None:
    """Unlike devices take turns at the whole net."""
    build = built(tmp_path, 'provider = "AzureExecutionProvider"', "zoo:mlp,layers=2,hidden=512,batch=64", stages=1)
    assert build.stages[0].devices == ("a", "b")
    with pytest.raises(StageStopped, match=r"stage 0 on b: .*AzureExecutionProvider takes none of the \d nodes"):
        check_build(build)


def test_a_session_without_its_provider_is_refused() -> None:
    proto = model("g (float[4] x) => (float[4] y) { y = Relu(x) }").SerializeToString()
    for name in ("MIGraphXExecutionProvider", "OddExecutionProvider"):
        with pytest.raises(ProviderUnavailable, match=f"this onnxruntime has no {name}"):
            Program(proto, (), Settings(provider=Provider(name)))


def test_a_kernel_that_the_cpu_lacks_is_no_fault_of_a_program_for_another_provider(tmp_path: Path) -> None:
    proto = model("g (bfloat16[4,4] x) => (bfloat16[4,4] y) { h = Relu(x) y = Neg(h) }")
    onnx.save(proto, tmp_path / "m.onnx")
    machines = MACHINES.split("[[devices]]")[0] + '[[devices]]\nname = "b"\ntype = "other"\n'
    for provider, refused in (("", True), ('provider = "CUDAExecutionProvider"', False)):
        (tmp_path / "machines.toml").write_text(machines.format(provider=provider))
        options = CompileOptions(str(tmp_path / "m.onnx"), str(tmp_path / "machines.toml"), tmp_path / "build")
        if refused:
            with pytest.raises(InvalidInput, match="no CPU kernel for"):
                compile_model(options)
        else:
            assert "load-test" in compile_model(options).seconds


def test_each_device_of_a_numbered_provider_has_its_own_number() -> None:
    text = """version = 1
types.gpu = { like = "preset:t4", provider = "CUDAExecutionProvider", provider_options = { gpu_mem_limit = "1" } }
types.npu = { like = "preset:t4", provider = "OpenVINOExecutionProvider" }
devices = [{ name = "g{0..1}", type = "gpu" }, { name = "h", type = "gpu", device_id = 7 }, { name = "n", type = "npu" }]
links = [{ ends = ["host", "devices of host"], bandwidth = "1 GB/s" }]
"""
    topology = read_topology(text, name="t")
    found = {device.name: Provider.of(topology, device.name) for device in topology.devices}
    cuda = {
        name: Provider("CUDAExecutionProvider", (("device_id", number), ("gpu_mem_limit", "1")))
        for name, number in (("g0", "0"), ("g1", "1"), ("h", "7"))
    }
    assert found == {**cuda, "n": Provider("OpenVINOExecutionProvider")}
    assert all(Provider.from_json(json.loads(json.dumps(one.to_json()))) == one for one in cuda.values())


def test_inspect_tells_what_a_build_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = built(tmp_path, 'provider = "CUDAExecutionProvider"')
    assert main(["inspect", str(build.folder)]) == 0
    assert "provider  CUDAExecutionProvider on b" in capsys.readouterr().out


def test_each_replica_of_a_stage_is_of_its_own_type(tmp_path: Path, plain: Build) -> None:
    """A stage on devices of unlike types names none; what is told is of the devices."""

    def mixed(build: Build) -> Build:
        return replace(build, stages=tuple(replace(stage, devices=("a", "b"), device_type="") for stage in build.stages))

    assert foreign_types(mixed(plain)) == ("other",)
    with pytest.raises(InvalidInput, match="device type 'other' runs on OddExecutionProvider"):
        Pipeline(mixed(built(tmp_path, 'provider = "OddExecutionProvider"')))


def test_only_what_runs_on_the_cpu_for_want_of_a_provider_is_foreign(tmp_path: Path, plain: Build) -> None:
    assert foreign_types(plain) == ("other",)
    assert foreign_types(built(tmp_path, 'provider = "CUDAExecutionProvider"')) == ()


@pytest.mark.parametrize(
    ("provider", "words"),
    [
        ("cuda", "INV14"),
        ('"/x.so"', "INV14"),
        ('CPUExecutionProvider, provider_options = {a = "/x.so"}', "INV14"),
    ],
)
def test_what_a_plan_says_of_providers_is_checked(tmp_path: Path, provider: str, words: str) -> None:
    folder = built(tmp_path, 'provider = "CPUExecutionProvider"').folder
    with pytest.raises(InvalidInput, match=words):
        Build.open(sealing.edit(folder, ("provider = CPUExecutionProvider", f"provider = {provider}")))


def test_the_table_of_packages_knows_this_one() -> None:
    assert PACKAGES["CPUExecutionProvider"] == "onnxruntime"
