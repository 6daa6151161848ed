"""What the devices of a build need on this machine: their execution providers, and an executor for each."""

from __future__ import annotations

from dnnc.build.build import Build, outline
from dnnc.engines.onnxruntime.engine import Executor
from dnnc.engines.onnxruntime.faults import ProviderMissing
from dnnc.engines.onnxruntime.session.program import OnnxRuntime
from dnnc.engines.onnxruntime.session.session import Settings
from dnnc.onnx.ort import load_onnxruntime
from dnnc.onnx.providers import CPU, what_to_install
from ir.core.diagnostics import InvalidInput
from ir.core.topology import Topology


def require_providers(build: Build) -> None:
    """Raises InvalidInput for each provider of a device of the build that this machine's onnxruntime lacks, with the types of
    these devices."""
    wanted = {build.provider(device).name for device in build.devices}
    if wanted <= {CPU}:
        return  # every onnxruntime has the CPU's, so there is no need to load onnxruntime here
    available = load_onnxruntime().get_available_providers()
    faults = []
    for provider in sorted(wanted - set(available)):
        types = types_with(build, provider)
        missing = ProviderMissing(types, provider, tuple(available), what_to_install(provider))
        faults.append(missing.at(str(build.folder)))
    if faults:
        raise InvalidInput(faults)


def types_with(build: Build, provider: str) -> tuple[str, ...]:
    """Types of the devices of the build that run on an execution provider, sorted; none where it has no topology. Replicas of
    one stage may be of several types."""
    topology = outline(build.files).first(Topology)
    running = {device for device in build.devices if build.provider(device).name == provider}
    return tuple(sorted({device.type for device in topology.devices if device.name in running})) if topology is not None else ()


def executor_of(build: Build, device: str, threads: int, optimize: bool = True) -> Executor:
    """The executor that runs the programs of ``device`` in this process, in full precision, to be compared."""
    return OnnxRuntime(Settings(threads, optimize=optimize, provider=build.provider(device).in_full_precision))
