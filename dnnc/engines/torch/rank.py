"""One process of training, from its arguments to its exit: ``python -P -m dnnc.engines.torch.rank BUILD``.

Rank r of the job is the device of that number (``Step.devices``). Rank 0 tells of each step, and writes losses and the measured
timeline. A rank that fails tells why, and ends with the exit code of its fault; who started the ranks ends the
others.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from dnnc.build.snapshot import Snapshot
from dnnc.build.training import Step, tensor_type
from dnnc.data.repeated import Digested, Identified
from dnnc.data.samples import SYNTHETIC, Data, open_data
from dnnc.engines.torch.checkpoint import Checkpoint, Part, Position
from dnnc.engines.torch.checkpoint.saving import Saver, changed, require_finite
from dnnc.engines.torch.exchange import Network, torch_dtype
from dnnc.engines.torch.faults import (
    OtherNumberOfRanks,
    RankInterrupted,
    RankRaised,
    SlowDeviceUnknown,
    TrainedWeightMissing,
    WeightNotInPlan,
)
from dnnc.engines.torch.files import TrainingFiles
from dnnc.engines.torch.launch.failures import is_lost
from dnnc.engines.torch.launch.job import Job, by_hand, join_by_hand
from dnnc.engines.torch.launch.telling import DONE, STARTING, Telling
from dnnc.engines.torch.slowed import Slowed, slow_devices
from dnnc.engines.torch.trainer import Trainer
from dnnc.engines.torch.watch.best import BEST
from dnnc.engines.torch.watch.record import Curve, Losses, write_trace
from dnnc.engines.torch.watch.watching import Watching
from ir.core.diagnostics import Diagnostic, DnncError, ExitCode, InvalidInput, UsageError
from ir.core.facets import OptimizerState
from ir.core.module import Plan, Splat
from ir.core.topology import Topology
from ir.ops.optimizers import is_state
from ir.system.host import device_cores, give_back_freed_memory, local_cores, not_preempting
from ir.system.signals import Terminated
from passes.graph.graph import listing

START = 300.0
"""Seconds that ranks at least have to begin: imports take long on loaded machines."""


ROOM = 2.0
"""Ranks keep freed memory where their device has so many times what the plan counts. A step of a GPT-2 takes 428 ms of the
processor then, and half more where freed memory goes back to the system; but a rank holds up to 1.6 times what the plan counts,
for the heap of glibc gets holes in which no tensor of the same size fits again."""


def arguments() -> argparse.ArgumentParser:
    """The options of a rank, which are those of ``dnnc train``."""
    parser = argparse.ArgumentParser(description="Train a build, one process per device.", prog="dnnc.engines.torch.rank")
    parser.add_argument("build", type=Path, metavar="BUILD", help="a directory that 'dnnc compile --objective training' wrote")
    parser.add_argument("--handed", type=int, help=argparse.SUPPRESS)  # what was opened of it, which is then not
    parser.add_argument("--steps", type=int, default=1, help="steps to train, counted from the first or from --resume")
    parser.add_argument("--data", default=SYNTHETIC, help="synthetic, FILE.npz, FILE.npy, a folder, or module:function")
    parser.add_argument("--last-batch", default="", help="drop or use the last batch of an epoch that samples do not fill")
    parser.add_argument("--seed", type=int, default=0, help="of the data")
    parser.add_argument("--checkpoint", type=Path, help="the folder for checkpoints, which are folders stepN")
    parser.add_argument("--apart", action="store_true", help=argparse.SUPPRESS)  # hosts share no folder for checkpoints
    parser.add_argument("--every", type=int, default=0, help="steps between checkpoints; 0: the last step alone")
    parser.add_argument("--resume", type=Path, help="a checkpoint to go on from, of this or another plan of the model")
    parser.add_argument("--out", type=Path, help="a folder for losses.json and trace.json")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds that a rank waits for another")
    parser.add_argument("--threads", type=int, default=0, help="threads of each rank; 0: as many as its device has cores")
    parser.add_argument(
        "--slow", action="append", default=[], help="DEVICE=K: it waits K seconds for each one that it computes"
    )
    parser.add_argument("--eval-data", default="", help="what to evaluate the model on, as --data")
    parser.add_argument("--eval-every", type=int, default=0, help="steps between evaluations; 0: after the last step alone")
    parser.add_argument("--patience", type=int, default=0, help="evaluations without a better loss before it stops; 0: never")
    parser.add_argument("--emulate", action="store_true", help=argparse.SUPPRESS)  # devices are not those of the plan
    parser.add_argument("--compared", action="store_true", help=argparse.SUPPRESS)  # go on with what is no finite number
    parser.add_argument("--job", type=Job.read, help=argparse.SUPPRESS)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Train as one rank; the exit code."""
    options = arguments().parse_args(argv)
    files: TrainingFiles | None = None
    job: Job | None = options.job
    telling = Telling(job)
    threading.excepthook = _of_thread
    if job is not None:
        job.end_with_starter()
    try:
        files = _files(options)
        return _train(files, options, telling)
    except DnncError as error:
        return _failed(telling, error.exit_code, error.diagnostics)
    except Terminated as request:  # what this rank was writing is removed
        signal.signal(request.number, signal.SIG_DFL)
        os.kill(os.getpid(), request.number)
        raise
    except KeyboardInterrupt:
        return _failed(telling, ExitCode.INTERRUPTED, [RankInterrupted().at()])
    except Exception as error:
        where = files.place(error.__traceback__) if files is not None else ""
        raised = RankRaised(f"{type(error).__name__}: {error}".rstrip(": ")).at(where)
        return _failed(telling, ExitCode.INTERNAL, [raised], lost=is_lost(error))


def _of_thread(error: threading.ExceptHookArgs) -> None:
    """What a thread raised, but for a lost connection: where a worker of a loader dies, threads of Python that serve it lose
    theirs, and the rank itself tells of the worker."""
    if not issubclass(error.exc_type, ConnectionError | EOFError):
        threading.__excepthook__(error)


def _files(options: argparse.Namespace) -> TrainingFiles:
    """What ``dnnc train`` opened and verified; of a rank that was started by hand, what it opens itself."""
    if options.handed is not None:
        return TrainingFiles.received(options.handed)
    return TrainingFiles(Snapshot.open(options.build), Checkpoint.open(options.resume) if options.resume else None)


def _failed(telling: Telling, code: int, diagnostics: Sequence[Diagnostic], *, lost: bool = False) -> int:
    """Say why this rank ends."""
    telling.failed(code, diagnostics, lost=lost)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # gloo's threads may still wait for others


def keep_to_cores(step: Step, job: Job, asked: int) -> None:
    """Binds the rank to the cores of its device, if there are enough for the ranks of its host. ``asked``: threads of a rank, 0
    for as many as its device has cores. Unbound, the system often wakes a rank, for which a message came, on the core of its
    sender: a step of an MLP on a mesh of two took 2.4 times as long. The only rank of a host is bound too: on its device's
    cores its seconds were measured. Cores beyond the threads are shared out, for processes that a data function starts are
    bound as their rank."""
    devices = [step.devices[rank] for rank in job.beside]
    threads = {device: asked or count for device, count in step.cpus_beside(devices).items()}
    if sum(threads.values()) > local_cores():
        threads = {device: threads[device] for device in devices}
    room = local_cores() // len(threads)
    if max(threads.values()) <= room:
        threads = dict.fromkeys(threads, room)
    own = device_cores(devices, threads)[0][job.local_rank]
    if own:
        os.sched_setaffinity(0, own)


def has_room(step: Step, rank: int) -> bool:
    """Whether the device of a rank has memory for ``ROOM`` times what the plan counts."""
    plan, topology, device = step.module.first(Plan), step.module.first(Topology), step.devices[rank]
    limit = topology.memory(topology.device(device)) if topology is not None else None
    needed = sum(row.memory for row in plan.stages if device in row.devices) if plan is not None else 0
    return limit is None or limit >= ROOM * needed


def _join(network: Network, job: Job | None, limit: timedelta, patience: timedelta, threads: int) -> None:
    """Joins the other ranks, and binds this one to its cores.

    Gloo's threads do not preempt a rank (``not_preempting``). Without that, a collective on a mesh now and then took as long
    as a tick of the system's clock (4 ms), and gloo's threads four times their processor time: as if a thread that wakes on
    the core of its rank asked for a lock that the rank holds until its turn ends. Of a rank that is idle while it exchanges
    (``Network.meets``) they have the same cores, which are free then, and disturb no other rank. Of others any: they are at
    work while their rank computes. On a mesh of two on two cores, a step of GPT-2 took 283 ms, with threads that do not
    preempt 250, that have its core too 225."""

    def keep() -> None:
        if job is not None:
            keep_to_cores(network.step, job, threads)

    if network.meets:
        keep()
    with not_preempting():
        if job is not None:
            job.join(limit, patience)
        else:
            join_by_hand(limit, patience)
        network.connect()
    if not network.meets:
        keep()


def _train(files: TrainingFiles, options: argparse.Namespace, telling: Telling) -> int:
    step, resumed = files.step, files.resumed
    job: Job | None = options.job
    rank, world = (job.rank, job.world) if job is not None else by_hand()
    if world != len(step.devices):
        other = OtherNumberOfRanks(len(step.devices), world, str(options.build))
        raise InvalidInput(other, where=str(files.build.folder))
    mark = telling.doing
    mark(STARTING)
    if not has_room(step, rank):
        give_back_freed_memory()
    torch.set_num_threads(options.threads or step.cores(rank))
    device = torch.device("cpu")
    limit, patience = timedelta(seconds=max(options.timeout, START)), timedelta(seconds=options.timeout)
    network = Network(step, rank, device, slowed=Slowed(slowness(step, rank, options.slow)))
    _join(network, job, limit, patience, options.threads)
    mark("loading weights")
    if resumed is not None and job is None:  # else whoever started the ranks has verified it
        resumed.verify()
    begin = resumed.position if resumed is not None else Position(0, options.seed)
    weights = load_weights(step, rank, files.initial, resumed)
    data, digested = _data(step, rank, options, begin)
    trainer = Trainer(step, rank, files.functions, weights, network, mark, finite=not options.compared)
    losses = Losses.open(options.out, begin.step) if options.out is not None and rank == 0 else None
    watching = Watching.of(trainer, options, telling, begin.step)
    curve = Curve(step, rank, options.data, digested, losses, watching.told, finite=not options.compared)
    with ExitStack() as stack:
        saver = None
        if options.checkpoint:
            saver = Saver(step, rank, options.checkpoint, mark, resumed=resumed, apart=options.apart, hopeless=is_lost)
            stack.enter_context(saver)
        number, end = begin.step, begin.step + options.steps
        while number < end:
            every = options.every if options.checkpoint else 0
            until = watching.until(number, min(end, number + every - number % every) if every else end)
            single = options.checkpoint is not None and trainer.flush  # it may be asked to end with any step
            for done, part in trainer.run(number, 1 if single else until - number, data):
                curve.add(done, part, trainer.scale.decided)
                if saver is not None:
                    saver.look()
            number = number + 1 if single else until
            end = min(end, last_step(telling, number) or end)
            if number not in (until, end):
                continue
            curve.settle()
            at = Position(number, begin.seed)
            saved = number == end or bool(every and not number % every)
            if saver is not None and saved:  # before an evaluation, which may fail
                saver.save(trainer.weights, at, finite=not options.compared)
                if options.compared:
                    saver.wait()
            if watching.due(number):
                better, stops = watching.evaluate(number, mark)
                end = number if stops else end
                if better and saver is not None:
                    saver.save(trainer.weights, at, name=BEST)
                if stops and saver is not None and not saved:
                    saver.save(trainer.weights, at)
    if options.out:
        write_trace(step, options.out, trainer.spans, rank, world)
    dist.barrier()
    dist.destroy_process_group()
    mark(DONE)
    return 0


def _data(step: Step, rank: int, options: argparse.Namespace, begin: Position) -> tuple[Data, Digested | Identified | None]:
    """The microbatches that a rank reads, and by what it is seen that all ranks read the same: by all that was read where
    samples come as a stream or are compared with those of the unsplit model, else by the identity of the source. None where
    nobody compares."""
    world, whole = len(step.devices), options.compared
    parts = None if whole else step.rows_read(rank)
    data = open_data(options.data, step.module, begin.seed, step.microbatches, last=options.last_batch, parts=parts)
    data.verify(rank, world)
    if options.data == SYNTHETIC or (world == 1 and not whole):
        return data, None
    identity = None if whole else data.identity
    if identity is not None:
        return data, Identified(identity)
    digested = Digested(data, step.microbatches, begin.step * step.microbatches)
    return digested, digested


def last_step(telling: Telling, done: int) -> int:
    """The step with which a rank that has done ``done`` steps was asked to end; 0 where it was not. Raises KeyboardInterrupt
    where it was told too late."""
    last = telling.last()
    if 0 < last < done:
        raise KeyboardInterrupt
    return last


def slowness(step: Step, rank: int, slow: Sequence[str]) -> float:
    """The factor K of a rank's device among texts ``DEVICE=K`` (seconds waited per second computed), 0 where none names it.
    Raises UsageError for a device that the topology lacks."""
    topology, factors = step.module.first(Topology), slow_devices(slow)
    there = [device.name for device in topology.devices] if topology is not None else list(step.devices)
    for device in factors:
        if device not in there:
            raise UsageError(SlowDeviceUnknown(device, listing(there)), where="--slow")
    return factors.get(step.devices[rank], 0.0)


def load_weights(step: Step, rank: int, initial: Checkpoint, resumed: Checkpoint | None) -> dict[str, torch.Tensor]:
    """What this rank has of each resource (``Step.loaded``): from the checkpoint that training goes on from, or else from the
    build. Raises InvalidInput for a checkpoint that lacks a trained weight, or holds one that the plan lacks."""
    parts, states = dict[str, Part](), dict[str, float]()
    for name, box in step.loaded(rank).items():
        resource = step.resources[name]
        parts[name[1:]] = Part(tensor_type(resource.type).dtype, _shape(step, name), box)
        if isinstance(resource.data, Splat):
            states[name[1:]] = float(resource.data.value)
    weights = _resumed(step, parts, resumed) if resumed is not None else {}
    rest = {name: part for name, part in parts.items() if name not in weights}
    weights.update(initial.parts(rest, states))
    if resumed is not None and resumed.position.step:
        weights.update(_averages_begun(step, parts, weights.keys(), resumed))
    for name, value in states.items():
        if name not in weights:
            weights[name] = torch.full([length for _, length in parts[name].box], value, dtype=torch_dtype(parts[name].dtype))
    return weights


def _averages_begun(
    step: Step, parts: Mapping[str, Part], there: Collection[str], resumed: Checkpoint
) -> dict[str, torch.Tensor]:
    """The moving averages that a checkpoint lacks: they begin as its weights, since no first step is to come."""
    lacking = {average[1:]: weight[1:] for average, weight in step.averages.items() if average[1:] in parts}
    lacking = {average: weight for average, weight in lacking.items() if average not in there}
    found = resumed.parts({weight: parts[average] for average, weight in lacking.items()}, {})
    return {average: found[weight].clone() for average, weight in lacking.items() if weight in found}


def _resumed(step: Step, parts: Mapping[str, Part], checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """The ``parts`` that a checkpoint holds. It may lack weights that this plan does not train, and may hold the state of
    another optimizer."""
    names = {name[1:] for name in step.resources}
    for name in checkpoint.names:
        if name not in names and not is_state(name, names):
            raise InvalidInput(WeightNotInPlan(name), where=checkpoint.where)
    weights = checkpoint.parts(parts, parts)
    for name in sorted(weights.keys() & {name[1:] for name in changed(step)}):
        require_finite(name, weights[name], checkpoint.where)
    for name in parts:
        trained = any(isinstance(facet, OptimizerState) for facet in step.resources[f"@{name}"].facets)
        if trained and name not in weights:
            raise InvalidInput(TrainedWeightMissing(name), where=checkpoint.where)
    return weights


def _shape(step: Step, name: str) -> tuple[int, ...]:
    return tuple(int(dim) for dim in tensor_type(step.resources[name].type).shape or ())  # type: ignore[arg-type]


if __name__ == "__main__":
    raise SystemExit(main())
