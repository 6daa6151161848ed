"""Decoding on this machine: ``python -m tests.bench.decode [--weights int4] [--tokens 48] [--prompt 16] [--context 1024]``.

A llama of about 270 MB (f32; a fifth of that with int4 weights) in two stages, each on one core, with two groups of eight
sequences, is asked for as many answers at once. Beside it, in the same run: two independent processes of onnxruntime, each
with one core, the whole model, a batch of eight and caches in place; and one with two threads and a batch of 16. Printed are
medians of rounds: tokens a second of answers, without prompts; seconds of a step, and over the processor seconds of the slowest
stage; the share of a core that the driving process takes. Then, as root, bytes on a cable between two hosts of one stage
each, over those of the tensors of the cut and of two integers (position, token) for each sequence. The plan's own prediction
stands beside what the stages make: ``preset:cpu-2`` describes another machine, ``--machines preset:local,devices=2``
measures this one. It counts attention over the whole context, so the two are of one thing where prompts fill most of the
context (``--prompt 944 --tokens 64``). Hosts are network namespaces (``tests.bench.hosts``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import dnnc
from dnnc.build.build import Build
from dnnc.engines.cluster.agents import LocalAgents
from dnnc.engines.cluster.starting import FarProcesses, Hosts
from dnnc.engines.onnxruntime import RunOptions
from dnnc.engines.onnxruntime.decoding.answers import Request
from dnnc.engines.onnxruntime.decoding.decoder import Decoder
from dnnc.engines.onnxruntime.decoding.wiring import decoding_build
from tests.bench.hosts import ADDRESSES, SPACES, crossed, entering, namespaces
from tests.bench.machine import header

LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, VOCABULARY = 4, 1024, 16, 8, 2816, 8000
BATCH, GROUPS = 8, 2


class Decoded(NamedTuple):
    """``rate``: tokens a second of all sequences together; ``pace``: seconds of a step of a group, ``slowest``: processor
    seconds that the stage takes for it which takes the most; ``share``: of a core, that this process takes."""

    rate: float
    pace: float
    slowest: float
    share: float


def spec(arguments: argparse.Namespace, batch: int) -> str:
    sizes = f"layers={LAYERS},hidden={HIDDEN},heads={HEADS},kv_heads={KV_HEADS},ffn={FFN},vocab={VOCABULARY}"
    return f"zoo:llama-7b,{sizes},cache={arguments.cache},context={arguments.context},batch={batch},weights={arguments.weights}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="auto", choices=["auto", "int4"])
    parser.add_argument("--cache", default="inplace", choices=["inplace", "concat"])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--prompt", type=int, default=16, help="tokens of each prompt")
    parser.add_argument("--machines", default="preset:cpu-2", help="of the two stages, whose speed the plan predicts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--whole", nargs=4, metavar=("MODEL", "CORES", "BATCH", "TOKENS"), help=argparse.SUPPRESS)
    parser.add_argument("--wire", metavar="BUILD", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.wire:
        print(json.dumps(between_hosts(arguments.wire, arguments.prompt, arguments.tokens)))
        return
    if arguments.whole:
        model, cores, batch, tokens = arguments.whole
        print(
            json.dumps(whole(Path(model), [int(core) for core in cores.split(",")], int(batch), arguments.prompt, int(tokens)))
        )
        return
    print(header(), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asked = {"machines": arguments.machines, "stages": 2, "groups": GROUPS, "objective": "tokens"}
        stages = compiled(arguments, folder / "stages", BATCH, **asked)
        predicted = stages.plan.value
        alone = compiled(arguments, folder / "alone", 2 * BATCH, machines="preset:cpu-1", groups=1)
        lengths = arguments.prompt, arguments.tokens
        rounds = [
            (
                decoded(stages, *lengths),
                others(stages.folder / "annotated.onnx", ["0", "1"], BATCH, *lengths),
                others(alone.folder / "annotated.onnx", ["0,1"], 2 * BATCH, *lengths),
            )
            for _ in range(arguments.rounds)
        ]
        wire = None if os.geteuid() else on_the_wire(stages.folder, *lengths)
        needed = sum(channel.nbytes or 0 for channel in Build.open(stages.folder).channels) / BATCH + 16
    rate, two, one = (median(figures) for figures in zip(*((ours.rate, two, one) for ours, two, one in rounds), strict=True))
    of_two, of_one = median(ours.rate / two for ours, two, _ in rounds), median(ours.rate / one for ours, _, one in rounds)
    pace, over = median(ours.pace for ours, *_ in rounds), median(ours.pace / ours.slowest for ours, *_ in rounds)
    print(f"two stages of one core, {GROUPS} groups of {BATCH}     {rate:8.1f} tokens/s")
    print(
        f"as many as the plan predicts             {1 / predicted:8.1f} tokens/s; the stages make {rate * predicted:.2f} of it"
    )
    print(f"two sessions of one core, batch {BATCH}          {two:8.1f} tokens/s; the stages make {of_two:.2f} of it")
    print(f"one session of two threads, batch {2 * BATCH}       {one:8.1f} tokens/s; the stages make {of_one:.2f} of it")
    print(f"step of a group                          {pace * 1e3:8.1f} ms, {over:.2f} times what the slowest stage computes")
    print(f"the driving process takes                {median(ours.share for ours, *_ in rounds):8.1%} of a core")
    if wire is not None:
        print(f"bytes per token between two hosts        {wire:8.0f}, {wire / needed:.3f} times those of the cut and integers")


def compiled(arguments: argparse.Namespace, folder: Path, batch: int, **options: Any) -> dnnc.Build:
    plan = dnnc.plan(spec(arguments, batch), batch=batch, context=arguments.context, report=False, **options)
    return plan.write(folder)


def prompts(length: int) -> list[list[int]]:
    found: list[list[int]] = np.random.default_rng(0).integers(0, VOCABULARY, (BATCH * GROUPS, length)).tolist()
    return found


def decoded(build: dnnc.Build, prompt: int, tokens: int) -> Decoded:
    """What is measured while every sequence generates, and none reads its prompt."""
    with build.start() as session:
        answers = [session.generate(ids, max_tokens=tokens) for ids in prompts(prompt)]
        for answer in answers:
            next(answer)
        before, count = [processor_seconds(one) for one in session.processes], 0
        began, cpu = time.perf_counter(), time.process_time()
        for answer in answers:
            count += sum(1 for _ in answer)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        after = [processor_seconds(one) for one in session.processes]
    steps = count / BATCH
    slowest = max(late - early for early, late in zip(before, after, strict=True)) / steps
    return Decoded(count / seconds, seconds / steps, slowest, cpu / seconds)


def processor_seconds(process: int) -> float:
    """Of the threads of a process so far."""
    threads = Path(f"/proc/{process}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) * 1e-9


def on_the_wire(build: Path, prompt: int, tokens: int) -> float:
    """Bytes that cross the cable between two hosts for each token."""
    with namespaces(gigabit=False):
        lengths = ["--prompt", str(prompt), "--tokens", str(tokens)]
        command = [sys.executable, "-m", "tests.bench.decode", "--wire", str(build), *lengths]
        done = subprocess.run([*entering("a"), *command], stdout=subprocess.PIPE, check=True)
        return float(json.loads(done.stdout))


def between_hosts(folder: str, prompt: int, tokens: int) -> float:
    """The same, on host a, which has the first stage and the driving process."""
    build = Build.open(folder)
    with tempfile.TemporaryDirectory() as cache:
        hosts = Hosts(dict(zip(build.devices, SPACES, strict=True)), ADDRESSES, ADDRESSES["a"], cache=cache)
        agents = LocalAgents(before={host: entering(host) for host in SPACES})
        processes = FarProcesses(decoding_build(build), RunOptions(pin=False), hosts, agents)
        with Decoder(build, processes=processes) as decoder:
            answers = [decoder.ask(Request(tuple(ids), tokens)) for ids in prompts(prompt)]
            for answer in answers:
                next(answer)
            before = crossed()
            count = sum(1 for answer in answers for _ in answer)
            return (crossed() - before) / count


def others(model: Path, cores: list[str], batch: int, prompt: int, tokens: int) -> float:
    """Tokens a second of processes on these cores together, each with the whole model."""
    command = [sys.executable, "-m", "tests.bench.decode", "--prompt", str(prompt), "--whole"]
    started = [
        subprocess.Popen(
            [*command, str(model), own, str(batch), str(tokens)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for own in cores
    ]
    return sum(float(json.loads(process.communicate()[0])) for process in started)


def whole(model: Path, cores: list[int], batch: int, prompt: int, tokens: int) -> float:
    """Tokens a second of one session of onnxruntime on ``cores``, with caches that it writes in place."""

    import onnxruntime

    os.sched_setaffinity(0, cores)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = len(cores), 3
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    shapes = {value.name: value.shape for value in session.get_inputs()}
    (ids, position), caches = list(shapes)[:2], list(shapes)[2:]
    held = {name: onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(shapes[name], np.float32)) for name in caches}
    logits, *results = [value.name for value in session.get_outputs()]
    token, times = np.zeros((batch, 1), np.int64), []
    for place in range(prompt, prompt + tokens):
        began = time.perf_counter()
        binding = session.io_binding()
        binding.bind_cpu_input(ids, token)
        binding.bind_cpu_input(position, np.full(batch, place, np.int64))
        for cache, result in zip(caches, results, strict=True):
            binding.bind_ortvalue_input(cache, held[cache])
            binding.bind_ortvalue_output(result, held[cache])
        binding.bind_output(logits, "cpu")
        session.run_with_iobinding(binding)
        token = binding.get_outputs()[-1].numpy().argmax(-1)
        times.append(time.perf_counter() - began)
    return batch * (tokens - 4) / sum(times[4:])


if __name__ == "__main__":
    main()
