"""What the devices of a build need on this machine: their execution providers, and an executor for each."""

from __future__ import annotations

from dnnc.build.build import Build
from dnnc.engines.onnxruntime.engine import Executor
from dnnc.engines.onnxruntime.faults import ProviderMissing
from dnnc.engines.onnxruntime.session.program import OnnxRuntime
from dnnc.engines.onnxruntime.session.session import Settings
from dnnc.onnx.ort import load_onnxruntime
from dnnc.onnx.providers import CPU, what_to_install
from ir.core.diagnostics import InvalidInput


def require_providers(build: Build) -> None:
    """Raises InvalidInput for each device type of the build whose provider this machine's onnxruntime lacks."""
    types_by_provider: dict[str, set[str]] = {}
    for stage in build.stages:
        for device in stage.devices:
            types_by_provider.setdefault(build.provider(device).name, set()).add(stage.device_type)
    if types_by_provider.keys() <= {CPU}:
        return  # every onnxruntime has the CPU's, so there is no need to load onnxruntime here
    available = load_onnxruntime().get_available_providers()
    faults = []
    for provider in sorted(types_by_provider.keys() - set(available)):
        types = tuple(sorted(types_by_provider[provider]))
        missing = ProviderMissing(types, provider, tuple(available), what_to_install(provider))
        faults.append(missing.at(str(build.folder)))
    if faults:
        raise InvalidInput(faults)


def executor_of(build: Build, device: str, threads: int, optimize: bool = True) -> Executor:
    """The executor that runs the programs of ``device`` in this process, in full precision, to be compared."""
    return OnnxRuntime(Settings(threads, optimize=optimize, provider=build.provider(device).in_full_precision))
