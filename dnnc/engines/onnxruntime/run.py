"""``dnnc run``: runs microbatches from a file, or random ones, through the stages of a build; reports outputs and times."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnnc.build.build import Build, outline
from dnnc.build.elsewhere import require_here, require_row
from dnnc.data.generate import drawn_ahead
from dnnc.data.inputs import (
    Microbatches,
    check_writable,
    drawn,
    join_outputs,
    read_inputs,
    split_microbatches,
    write_outputs,
)
from dnnc.engines.onnxruntime.faults import (
    CoresShared,
    CountsTooSmall,
    MachineWasBusy,
    MicrobatchNotAlone,
    OtherThreads,
    PipelineNotFull,
    PlannedForOthers,
    StepsAtRandom,
)
from dnnc.engines.onnxruntime.session.needs import types_with
from dnnc.engines.onnxruntime.starter.pipeline import Pipeline
from dnnc.engines.onnxruntime.starter.results import RunResult
from dnnc.engines.onnxruntime.starter.starting import RunOptions
from dnnc.onnx.providers import CPU
from ir.core.diagnostics import Diagnostic, UsageError
from ir.core.topology import Topology
from ir.system.host import local_cores
from ir.text.units import percent_text
from passes.stages.load import median_compute

QUIET = 0.9
"""Of a core's time: where the processes had less while they computed, the machine was busy."""

if TYPE_CHECKING:
    from dnnc.engines.cluster.starting import FarProcesses
    from dnnc.engines.hosts.options import ClusterOptions


def run_build(
    build: Build | Path | str,
    microbatches: Sequence[Mapping[str, Any]] | Mapping[str, Any],
    options: RunOptions | None = None,
) -> RunResult:
    """Runs the stages of a build on microbatches, each from input name to array. A mapping, alone or in a list, is one
    microbatch, or several if its arrays are stacked.

    Raises InvalidInput for inputs that the model does not accept, RuntimeFailure when a stage dies, hangs or raises."""
    build = build if isinstance(build, Build) else Build.open(build)
    if isinstance(microbatches, Mapping):
        items = split_microbatches(build.inputs, microbatches, where="inputs", constants=build.constants).items
    else:
        parts = [
            split_microbatches(build.inputs, one, where=f"microbatch {i}", constants=build.constants).items
            for i, one in enumerate(microbatches)
        ]
        items = tuple(item for part in parts for item in part)
    with Pipeline(build, options) as pipeline:
        return pipeline.run(items)


@contextmanager
def processes_on(
    build: Build, options: RunOptions, cluster: ClusterOptions | None, warn: Callable[[Diagnostic], None]
) -> Iterator[FarProcesses | None]:
    """The processes of a build on the hosts of a cluster, not started yet; None without a cluster. Raises as ``on_cluster``."""
    if cluster is None:
        yield None
        return
    from dnnc.engines.hosts.options import require_packages

    require_packages()
    from dnnc.engines.cluster.nodes.ray_cluster import on_cluster

    with on_cluster(build, options, cluster, warn) as processes:
        yield processes


@contextmanager
def running(
    build: Build, options: RunOptions, cluster: ClusterOptions | None, warn: Callable[[Diagnostic], None]
) -> Iterator[Pipeline]:
    """A build that runs here, or on a cluster. ``warn`` gets what was lost there, too."""
    with processes_on(build, options, cluster, warn) as processes:
        pipeline = Pipeline(build, options, processes)
        pipeline.recovery.tell = warn
        with pipeline:
            yield pipeline


@dataclass(frozen=True, slots=True)
class RunCommand:
    """The options of ``dnnc run``. Without ``inputs``, a run takes those that the build was compiled with; random ones if there
    are none or a ``seed`` is given. ``microbatches``: how many to make, or to split the first axis of the inputs into.
    ``repeat``: how often to run all of them in the same processes, after ``warmup`` rounds; outputs and times are those of the
    last round. ``measures``: the run measures the plan's value (``--runs``). ``emulate``: run here a build for other
    machines. ``cluster``: run it on the hosts of a cluster."""

    build: Path
    inputs: Path | None = None
    outputs: Path | None = None
    microbatches: int | None = None
    repeat: int = 1
    warmup: int = 0
    seed: int | None = None
    options: RunOptions = field(default_factory=RunOptions)
    measures: bool = False
    emulate: bool = False
    cluster: ClusterOptions | None = None


@dataclass(frozen=True, slots=True)
class RunReport:
    """The report of a run. ``result``: of the last repetition; ``throughputs``: microbatches per second of each repetition;
    ``random``: whether the inputs were random."""

    build: Build
    result: RunResult
    outputs: dict[str, Any]
    microbatches: int
    throughputs: tuple[float, ...]
    random: bool

    @property
    def throughput(self) -> float:
        return statistics.median(self.throughputs)

    @property
    def measured(self) -> float:
        """Measured seconds of what the plan's value predicts: per microbatch, or the latency of one for a latency plan."""
        return self.result.latency if self.build.plan.minimises.alone else 1 / self.throughput

    @property
    def predicted(self) -> float:
        """Predicted seconds per microbatch: the plan's value, or the seconds of the busiest device for a latency plan."""
        plan = self.build.plan
        if not plan.minimises.alone:
            return plan.value
        busy: dict[tuple[str, ...], float] = {}
        for stage in plan.stages:
            busy[stage.devices] = busy.get(stage.devices, 0.0) + stage.working + stage.receive + stage.send
        return max(busy.values())

    def to_json(self) -> dict[str, Any]:
        measured, met = self.result.stage_seconds, self.result.collective_seconds
        return {
            "schema": "dnnc.run/1",
            "build": str(self.build.folder),
            "microbatches": self.microbatches,
            "inputs": "random" if self.random else "given",
            "seconds": self.result.seconds,
            "predicted_for": list(foreign_types(self.build)),
            "throughput": self.throughput,
            "latency": self.result.latency,
            "cores": self.result.share,
            "seconds_per_microbatch": {"measured": 1 / self.throughput, "predicted": self.predicted},
            "stages": [
                {
                    "index": stage.index,
                    "device": stage.device,
                    "devices": list(stage.devices),
                    "measured": measured[stage.index],
                    "predicted": median_compute(planned),
                    "cpu": self.result.cpu[stage.index],
                    **(
                        {
                            "members": [member.device for member in stage.members],
                            "collectives": {"measured": met[stage.index], "predicted": planned.collectives},
                        }
                        if stage.members
                        else {}
                    ),
                }
                for stage, planned in zip(self.build.stages, self.build.plan.stages, strict=True)
            ],
            "outputs": {
                name: {"dtype": value.dtype.name, "shape": list(value.shape)}
                for name, value in self.outputs.items()
                if hasattr(value, "dtype")
            },
        }


def foreign_types(build: Build) -> tuple[str, ...]:
    """Device types of the build that are no CPUs but run on this machine's CPU, sorted. The plan's seconds are not those of the
    run."""
    topology, on_cpu = outline(build.files).first(Topology), types_with(build, CPU)
    return tuple(name for name in on_cpu if topology.type(name).kind != "cpu") if topology is not None else ()


def require_measures(build: Build, microbatches: int, threads: int) -> None:
    """Raises UsageError where a run with these numbers of microbatches and threads does not measure the plan's value."""
    if other := [device for device in build.devices if build.threads(device, threads) != build.threads(device)]:
        raise UsageError(OtherThreads(threads, build.threads(other[0]), other[0]), where="--runs")
    require_row(build.files, emulate=True)
    if build.plan.minimises.alone and microbatches > 1:
        raise UsageError(MicrobatchNotAlone(microbatches), where="--runs")
    if not build.plan.minimises.alone and len(build.stages) > 1 and microbatches < 2 * len(build.stages):
        raise UsageError(PipelineNotFull(microbatches, 2 * len(build.stages)), where="--runs")


def crowding(build: Build, threads: int, cores: int) -> Diagnostic | None:
    """The warning that the devices need more than ``cores`` cores at once; None where they do not. ``threads``: of each device,
    0 for as many as its type has."""
    counts = [build.threads(device, threads) for device in build.devices]
    if sum(counts) <= cores:
        return None
    meshes = sum(bool(stage.collectives) for stage in build.stages)
    crowded = CoresShared(len(counts), sum(counts), min(counts), max(counts), cores, meshes, threads)
    return crowded.at(str(build.folder))


def run_command(
    command: RunCommand,
    warn: Callable[[Diagnostic], None] = lambda diagnostic: None,
    progress: Callable[[str, float | None], None] = lambda label, fraction: None,
) -> RunReport:
    """Verifies the build, reads the inputs, runs, and writes the outputs. ``warn`` is called before the run with what is known
    then, and after it where the machine was busy. Raises DnncError."""
    if command.repeat < 1 or command.warmup < 0 or (command.microbatches is not None and command.microbatches < 1):
        raise UsageError(CountsTooSmall())
    build = Build.open(command.build, progress)
    require_here(build.files, hosts=1 if command.cluster is None else None, emulate=command.emulate)
    progress("run", None)
    if command.outputs is not None:
        check_writable(command.outputs)
    random = False
    if command.inputs is not None:
        batches = read_inputs(command.inputs, build.inputs, microbatches=command.microbatches, constants=build.constants)
    else:
        count = command.microbatches or 1
        items, random = drawn(build, count, command.seed)
        batches = Microbatches(drawn_ahead(items) if random else items, "stacked" if count > 1 else "single")
    if command.measures:
        require_measures(build, len(batches.items), command.options.threads)
    crowded = crowding(build, command.options.threads, local_cores()) if command.cluster is None else None
    if crowded is not None:
        warn(crowded)
    if random and build.decoding is not None and build.decoding.generates:
        warn(StepsAtRandom().at(str(build.folder)))
    if foreign := foreign_types(build):
        warn(PlannedForOthers(foreign).at(str(build.folder)))
    with running(build, command.options, command.cluster, warn) as pipeline:
        for _ in range(command.warmup):
            pipeline.run(batches.items, events=False)
        throughputs = []
        for _ in range(command.repeat):
            result = pipeline.run(batches.items)
            throughputs.append(result.throughput)
    if result.share < QUIET and crowded is None:
        warn(MachineWasBusy(percent_text(result.share)).at(str(build.folder)))
    outputs = join_outputs(result.outputs, batches.mode)
    if command.outputs is not None:
        write_outputs(command.outputs, result.outputs, batches.mode, build.outputs)
    return RunReport(build, result, outputs, len(batches.items), tuple(throughputs), random)
