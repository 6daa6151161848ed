"""Starts a measuring process on the cores of each device (``dnnc.engines.onnxruntime.probe``, ``dnnc.engines.torch.probe``),
sends it orders and reads the seconds that it measured."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dnnc.engines.onnxruntime.transport.edges import Edge, ValueSpec, anonymous_memory
from dnnc.engines.torch.launch.starting import rank_environment
from dnnc.machines.faults import ProbeEnded
from dnnc.onnx.ort import silence
from ir.core.diagnostics import InvalidInput
from ir.system.child import forks_wait, module_command, module_environment

_BYTE = 2
"""ONNX's number of u8."""
_MODULE = "dnnc.engines.onnxruntime.probe"
_TORCH_MODULE = "dnnc.engines.torch.probe"


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds of some runs: their median, and half of the distance between the quartiles."""

    median: float
    spread: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Sample:
        low, middle, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [seconds[0]] * 3
        return cls(middle, (high - low) / 2)

    @property
    def relative(self) -> float:
        """The spread as a fraction of the median."""
        return self.spread / self.median if self.median else 0.0


class NotRun(Exception):
    """onnxruntime does not run the model here, or torch the function, or the processes cannot exchange tensors."""


class Probes:
    """A measuring process for each set of cores, numbered in their order. ``shares``: of each answer of ``ask``, which part of
    its time a process had a core."""

    def __init__(
        self, processes: Sequence[subprocess.Popen[str]], cores: Sequence[Sequence[int]], scratch: Path, seed: int
    ) -> None:
        self.processes = processes
        self.cores = cores
        self.scratch = scratch
        self.seed = seed
        self.shares: list[float] = []
        self._models = 0

    def model(self, content: bytes, suffix: str = "onnx") -> Path:
        """A new file in the scratch folder with this content, for the processes to read."""
        self._models += 1
        path = self.scratch / f"{self._models}.{suffix}"
        path.write_bytes(content)
        return path

    def ask(self, order: Mapping[str, Any], asked: Iterable[int], *, rounds: int, warm: int = 3) -> dict[int, list[float]]:
        """The seconds of each run, by the processes ``asked``, which measure at the same time. Raises NotRun."""
        asked = list(asked)
        for number in asked:
            profile = str(self.scratch / f"profile{number}")
            settings = {"rounds": rounds, "warm": warm, "seed": self.seed, "profile": profile}
            self._send(self.processes[number], {**order, **settings})
        answers = {number: self._answer(self.processes[number]) for number in asked}
        for answer in answers.values():
            if isinstance(answer, str):
                raise NotRun(answer)
        found = {number: answer for number, answer in answers.items() if not isinstance(answer, str)}
        self.shares += [answer.share for answer in found.values()]
        return {number: answer.seconds for number, answer in found.items()}

    def exchanges(self, pair: tuple[int, int], asked: Sequence[tuple[int, Mapping[str, Any]]]) -> list[Sample]:
        """A sample of each of ``asked``, bytes and an order, by two processes that send so many bytes over the edges of ``dnnc
        run``: ``exchange``, seconds from one device to another and back; ``meet``, seconds of a meeting of two devices that
        both ran a model, as the members of a mesh meet in a collective, the mean of both."""
        with ExitStack() as open_files:
            ends: list[dict[int, list[Any]]] = []
            for size, _ in asked:
                ends.append({number: [] for number in pair})
                for producer, consumer in (pair, pair[::-1]):
                    edge = Edge(producer, consumer, (ValueSpec("x", _BYTE, (size,)),))
                    memory, data, free = anonymous_memory(edge.nbytes), os.pipe(), os.pipe()
                    for descriptor in (memory, *data, *free):
                        open_files.callback(os.close, descriptor)
                    ends[-1][producer].append([edge.to_json(), (memory, free[0], data[1])])
                    ends[-1][consumer].append([edge.to_json(), (memory, data[0], free[1])])
            inherited = {one for each in ends for side in each.values() for _, descriptors in side for one in descriptors}
            samples = []
            with _started([self.cores[number] for number in pair], 1, sorted(inherited)) as both:
                for (_, order), each in zip(asked, ends, strict=True):
                    for number, process in zip(pair, both, strict=True):
                        own, begins = each[number], number == pair[0]
                        told = {"seed": self.seed, **order, "edges": own if begins else own[::-1], "begins": begins}
                        self._send(process, told)
                    one, other = self._of_both(both)
                    other = other if order["do"] == "meet" else one
                    samples.append(Sample.of([(first + second) / 2 for first, second in zip(one, other, strict=True)]))
            return samples

    def gloo(self, pair: tuple[int, int], asked: Sequence[tuple[str, int]], *, rounds: int, warm: int = 10) -> list[Sample]:
        """Of each of ``asked``, what to do and a size, a sample by two ranks, as in ``dnnc train``; needs torch. ``gloo``: as
        ``exchange``, of so many bytes; ``reduced``: seconds of an all-reduce of so many; ``sums``: of a small one between
        products of matrices of so many rows. Raises NotRun."""
        samples = []
        cores = sorted(core for number in pair for core in self.cores[number])
        with _started([self.cores[number] for number in pair], 1, (), _TORCH_MODULE) as both:
            for do, size in asked:
                self._models += 1
                store = str(self.scratch / f"store{self._models}")
                for place, process in enumerate(both):
                    order = {"do": do, "size": size, "rounds": rounds, "warm": warm, "store": store, "begins": place == 0}
                    self._send(process, {**order, "cores": cores})
                samples.append(Sample.of(self._of_both(both)[0]))
        return samples

    def _of_both(self, both: Sequence[subprocess.Popen[str]]) -> list[list[float]]:
        """The seconds of two processes that exchange. Raises NotRun."""
        answers = [self._answer(process) for process in both]
        for answer in answers:
            if isinstance(answer, str):
                raise NotRun(answer)
        return [answer.seconds for answer in answers if not isinstance(answer, str)]

    def _send(self, process: subprocess.Popen[str], order: Mapping[str, Any]) -> None:
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()

    def _answer(self, process: subprocess.Popen[str]) -> _Answer | str:
        """The seconds, or the reason that there are none. Raises InvalidInput if the process has ended."""
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise InvalidInput(ProbeEnded(), where="topology measure")
        answer = json.loads(line)
        if "error" in answer:
            return str(answer["error"])
        return _Answer([float(seconds) for seconds in answer["seconds"]], float(answer["share"]))


@dataclass(frozen=True, slots=True)
class _Answer:
    """The seconds of an order, and which part of its time the process had a core."""

    seconds: list[float]
    share: float


@contextmanager
def probes(cores: Sequence[Sequence[int]], scratch: Path, seed: int, torch: int = 0) -> Iterator[Probes]:
    """A process on each set of cores, with a thread of onnxruntime per core, or with ``torch`` threads of torch. They end with
    the block."""
    with _started(cores, torch, (), _TORCH_MODULE if torch else _MODULE) as processes:
        yield Probes(processes, cores, scratch, seed)


@contextmanager
def _started(
    cores: Sequence[Sequence[int]], threads: int, inherited: Sequence[int], module: str = _MODULE
) -> Iterator[list[subprocess.Popen[str]]]:
    """``threads`` of each process, 0: one per core; ``inherited``: file descriptors that the processes get."""
    silence()
    processes: list[subprocess.Popen[str]] = []
    try:
        for own in cores:
            command = [*module_command(module), ",".join(map(str, own)), str(threads or len(own))]
            with forks_wait():
                processes.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        text=True,
                        env=rank_environment() if module == _TORCH_MODULE else module_environment(),
                        pass_fds=inherited,
                    )
                )
        yield processes
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()
