"""Decoding on this machine: ``python -m tests.bench.decode [--weights int4] [--tokens 48] [--context 1024] [--cache inplace]``.

A llama of about 270 MB (f32; a fifth of that with int4 weights) in two stages, each on one core, with two groups of eight
sequences, is asked for as many answers at once. Beside it, in the same run: two independent processes of onnxruntime, each
with one core, the whole model, a batch of eight and caches in place; and one with two threads and a batch of 16. Printed are
tokens a second of answers, without prompts; seconds of a step; and the share of a core that the driving process takes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import dnnc
from tests.bench.machine import header

LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, VOCABULARY = 4, 1024, 16, 8, 2816, 8000
BATCH, GROUPS, PROMPT = 8, 2, 16


def spec(arguments: argparse.Namespace, batch: int) -> str:
    sizes = f"layers={LAYERS},hidden={HIDDEN},heads={HEADS},kv_heads={KV_HEADS},ffn={FFN},vocab={VOCABULARY}"
    return f"zoo:llama-7b,{sizes},cache={arguments.cache},context={arguments.context},batch={batch},weights={arguments.weights}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="auto", choices=["auto", "int4"])
    parser.add_argument("--cache", default="inplace", choices=["inplace", "concat"])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--whole", nargs=4, metavar=("MODEL", "CORES", "BATCH", "TOKENS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.whole:
        model, cores, batch, tokens = arguments.whole
        print(json.dumps(whole(Path(model), [int(core) for core in cores.split(",")], int(batch), int(tokens))))
        return
    print(header(), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stages = compiled(arguments, folder / "stages", BATCH, machines="preset:cpu-2", stages=2, groups=GROUPS)
        alone = compiled(arguments, folder / "alone", 2 * BATCH, machines="preset:cpu-1", groups=1)
        ours, pace, share = decoded(stages, arguments.tokens)
        two = others(stages.folder / "annotated.onnx", ["0", "1"], BATCH, arguments.tokens)
        one = others(alone.folder / "annotated.onnx", ["0,1"], 2 * BATCH, arguments.tokens)
    print(f"two stages of one core, {GROUPS} groups of {BATCH}     {ours:8.1f} tokens/s")
    print(f"two sessions of one core, batch {BATCH}          {two:8.1f} tokens/s; the stages make {ours / two:.2f} of it")
    print(f"one session of two threads, batch {2 * BATCH}       {one:8.1f} tokens/s; the stages make {ours / one:.2f} of it")
    print(f"step of a group                          {pace * 1e3:8.1f} ms")
    print(f"the driving process takes                {share:8.1%} of a core")


def compiled(arguments: argparse.Namespace, folder: Path, batch: int, **options: Any) -> dnnc.Build:
    plan = dnnc.plan(spec(arguments, batch), batch=batch, context=arguments.context, report=False, **options)
    return plan.write(folder)


def decoded(build: dnnc.Build, tokens: int) -> tuple[float, float, float]:
    """Tokens a second of all sequences together, seconds of a step of a group, and the processor share of this process; while
    every sequence generates, and none reads its prompt."""
    generator = np.random.default_rng(0)
    with build.start() as session:
        prompts = generator.integers(0, VOCABULARY, (BATCH * GROUPS, PROMPT)).tolist()
        answers = [session.generate(prompt, max_tokens=tokens) for prompt in prompts]
        for answer in answers:
            next(answer)
        began, cpu, count = time.perf_counter(), time.process_time(), 0
        for answer in answers:
            count += sum(1 for _ in answer)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return count / seconds, seconds / (count / BATCH), cpu / seconds


def others(model: Path, cores: list[str], batch: int, tokens: int) -> float:
    """Tokens a second of processes on these cores together, each with the whole model."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.bench.decode", "--whole", str(model), own, str(batch), str(tokens)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for own in cores
    ]
    return sum(float(json.loads(process.communicate()[0])) for process in started)


def whole(model: Path, cores: list[int], batch: int, tokens: int) -> float:
    """Tokens a second of one session of onnxruntime on ``cores``, with caches that it writes in place."""
    import os

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
    for place in range(PROMPT, PROMPT + tokens):
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
