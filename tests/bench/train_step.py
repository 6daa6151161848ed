"""One rank's explicit training step against torch's autograd: ``python -m tests.bench.train_step [MODEL ..] [--rounds N]``.
With ``--whole``: whole steps of ``dnnc train`` against plain PyTorch, of GPT-2, BERT, ResNet-20 and ViT (``train_whole``).

A model (a small cnn, bert and gpt2 unless named) is differentiated and written as the file of a program on one device. Its
step, with an update by adam, runs against the forward program under torch's autograd with ``torch.optim.Adam``: one microbatch,
one thread. Each side has a process of its own; they take turns. Seconds are medians of processor time, memory is the peak,
weights and state included, above what a process holds before it has them. Targets: at most 1.1 times either.

Saved are the bytes that the forward pass of a microbatch keeps for its backward pass: as the planner counts them, against the
storages that autograd holds (weights are not counted). Target: within 10 %.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dnnc.compile.context import pass_context
from dnnc.compile.load import load_model
from dnnc.onnx.model import free_symbols
from dnnc.onnx.weights import read_resource
from ir import DiagnosticSink, Module, OptimizerState, Program, Resource, Splat, TensorType
from passes.costs.learning import learning, saved_values
from passes.differentiate import DifferentiatePass
from passes.prepare.canonicalize import CanonicalizePass
from passes.prepare.cost import CostPass
from passes.training import TrainingPass
from tests.bench.machine import header
from tests.bench.train_whole import whole

MODELS = {
    "cnn": "zoo:resnet50,batch=8,image=64,classes=10",
    "bert": "zoo:bert-base,batch=8,layers=4,hidden=256,heads=4,vocab=1000",
    "gpt2": "zoo:gpt2,batch=8,layers=4,hidden=256,heads=4,vocab=1000",
}
"""What is run where no model is named."""
WHOLE = ["gpt2", "bert", "resnet20", "vit"]
"""Of ``--whole``, where no model is named."""
BATCH, ROWS = 8, 128
"""Of a model with symbolic dimensions: what ``batch`` is, and every other."""
WORST = 1.1
APART = 0.1


def step_of(spec: str) -> tuple[Module, Module, dict[str, Any]]:
    """The forward program with its loss, the differentiated one, and weights, state and arguments by name."""
    import torch

    sink = DiagnosticSink()
    free = sorted(free_symbols(load_model(spec, {}, sink).module.entry))
    loaded = load_model(spec, {name: BATCH if name == "batch" else ROWS for name in free}, sink)
    context = pass_context(sink)
    output = next(value for value in loaded.module.entry.results if isinstance(value.type, TensorType))
    forward = TrainingPass(loss=f"mse:{output.name[1:]}").run(loaded.module, context)
    forward = CanonicalizePass().run(forward, context)
    after = DifferentiatePass().run(forward, context)
    random, values = np.random.default_rng(0), {}
    for one in after.of_type(Resource):
        array = read_resource(one, loaded.files) if not isinstance(one.data, Splat) else None
        assert isinstance(one.type, TensorType)
        shape = tuple(int(str(dim)) for dim in one.type.shape or ())
        values[one.name] = torch.from_numpy(np.array(read_resource(one, loaded.files) if array is None else array))
        assert tuple(values[one.name].shape) == shape
    for argument in after.entry.args:
        assert isinstance(argument.type, TensorType)
        shape = tuple(int(str(dim)) for dim in argument.type.shape or ())
        made: Any = random.normal(size=shape).astype(np.float32)
        if not argument.type.dtype.is_float:
            masks, few = "mask" in argument.name, "mask" in argument.name or "type" in argument.name
            made = random.integers(1 if masks else 0, 2 if few else 40, shape)
        values[argument.name] = torch.from_numpy(made)
    return forward, after, values


def explicit(after: Module, values: dict[str, Any]) -> Callable[[], None]:
    """A step by the functions of the file that is written for a rank."""
    from dnnc.engines.torch.write.stage_file import program_source

    entry = after.entry
    program = Program("@p", "@s", ("d",), entry.args, entry.results, entry.ops)
    scope: dict[str, Any] = {}
    exec(program_source(after, program, "The step."), scope)
    weights = {name[1:]: value for name, value in values.items() if name[:1] == "@"}
    inputs = {name[1:]: value for name, value in values.items() if name[:1] == "%"}
    counts = iter(range(1, 1 << 30))

    def step() -> None:
        gradients, saved = {}, {}
        for name in ("forward", "backward", "backward_input", "backward_weight"):
            if name in scope:
                given = inputs if name == "forward" else {}
                _, found, saved = scope[name](weights, given, saved, None)
                gradients.update(found)
                found = None
        scope["update"](weights, gradients, next(counts), None)

    import torch

    return torch.no_grad()(step)  # type: ignore[no-any-return,no-untyped-call]


def eager(forward: Module, values: dict[str, Any]) -> Callable[[], None]:
    """A step of the forward program by autograd and torch.optim."""
    import torch

    from dnnc.engines.torch.statements.run import function_source

    trained = [one.name for one in forward.of_type(Resource) if any(isinstance(f, OptimizerState) for f in one.facets)]
    for name in trained:
        values[name].requires_grad_()
    source, _ = function_source(forward, forward.entry)
    scope: dict[str, Any] = {}
    exec(source, scope)
    optimizer = torch.optim.Adam([values[name] for name in trained])

    def step() -> None:
        optimizer.zero_grad()
        (loss,) = scope["run"](values, "cpu")
        loss.backward()
        optimizer.step()

    return step


def planned(forward: Module) -> int:
    """Bytes saved of a microbatch, as a plan counts them."""
    costed = CostPass().run(forward, pass_context(DiagnosticSink()))
    learned = learning(costed)
    return sum({name: size for op in costed.entry.ops for name, size in saved_values(op, learned).items()}.values())


def held(forward: Module, values: dict[str, Any]) -> int:
    """Bytes of the storages that autograd saves in the forward pass, but for those of ``values`` that are weights."""
    import torch

    from dnnc.engines.torch.statements.run import function_source

    weights = {value.untyped_storage().data_ptr() for name, value in values.items() if name[:1] == "@"}
    found: dict[int, int] = {}
    kept = []  # or the next tensor may have the place of one that was freed

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)
        return tensor

    source, _ = function_source(forward, forward.entry)
    scope: dict[str, Any] = {}
    exec(source, scope)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = scope["run"](values, "cpu")
    assert loss
    return sum(found.values())


def child(side: str, spec: str, rounds: int, clock: bool) -> None:
    """Runs one side and prints its figures: a line before the first step, then one per line that it reads. Seconds are the
    processor's, or with ``clock`` the clock's."""
    import torch

    torch.set_num_threads(1)
    forward, after, values = step_of(spec)
    if side == "eager":
        used = {name for op in forward.entry.ops for name in op.operands} | {arg.name for arg in forward.entry.args}
        values = {name: value for name, value in values.items() if name in used}
    step = explicit(after, values) if side == "explicit" else eager(forward, values)
    resident = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * resource.getpagesize()
    resident -= sum(value.nbytes for value in values.values())
    saved = held(forward, values) if side == "eager" else planned(forward)
    step()
    print(json.dumps({"saved": saved}), flush=True)
    for _ in range(rounds):
        sys.stdin.readline()
        now = time.perf_counter if clock else time.process_time
        began = now()
        step()
        seconds = now() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - resident
        print(json.dumps({"seconds": seconds, "peak": peak}), flush=True)


def compare(name: str, spec: str, rounds: int) -> bool:
    """Prints a line of figures; whether both are within the target."""
    sides = {}
    for side in ("explicit", "eager"):
        command = [sys.executable, "-m", "tests.bench.train_step", "--child", side, spec, "--rounds", str(rounds)]
        sides[side] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    saved = {}
    for side, process in sides.items():
        assert process.stdout is not None
        saved[side] = json.loads(process.stdout.readline())["saved"]
    for _ in range(rounds):
        for side, process in sides.items():
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            found[side].append(json.loads(process.stdout.readline()))
    for process in sides.values():
        process.wait()
    ratios = [one["seconds"] / other["seconds"] for one, other in zip(found["explicit"], found["eager"], strict=True)]
    seconds = {side: statistics.median(row["seconds"] for row in rows) for side, rows in found.items()}
    peaks = {side: rows[-1]["peak"] for side, rows in found.items()}
    kept = saved["explicit"] / saved["eager"]
    faster, smaller = statistics.median(ratios), peaks["explicit"] / peaks["eager"]
    print(
        f"{name:6} {seconds['explicit'] * 1e3:8.1f} ms {seconds['eager'] * 1e3:8.1f} ms  {faster:5.2f}x   "
        f"{peaks['explicit'] / 1e6:7.0f} MB {peaks['eager'] / 1e6:7.0f} MB  {smaller:5.2f}x   "
        f"{saved['explicit'] / 1e6:6.1f} MB {saved['eager'] / 1e6:6.1f} MB  {kept:6.3f}"
    )
    return max(faster, smaller) <= WORST and abs(kept - 1) <= APART


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--rounds", type=int, default=0, help="default: 9, with --whole 3")
    parser.add_argument("--whole", action="store_true", help=f"of {', '.join(WHOLE)}")
    parser.add_argument("--steps", type=int, default=10, help="with --whole: of a turn")
    parser.add_argument("--child", action="store_true")
    parser.add_argument("--clock", action="store_true", help="of a child: seconds on the clock")
    options = parser.parse_args()
    if options.whole:
        from tests.bench.training_models import MODELS as TRAINED

        if unknown := [name for name in options.models if name not in TRAINED]:
            parser.error(f"--whole has no model {', '.join(unknown)}; it has {', '.join(TRAINED)}")
        whole(options.models or WHOLE, options.steps, options.rounds or 3)
    options.models, options.rounds = options.models or list(MODELS), options.rounds or 9
    if options.child:
        side, spec = options.models
        child(side, spec, options.rounds, options.clock)
        return
    print(header())
    print("model       explicit       eager   ratio      explicit      eager   ratio     saved as planned, held   ratio")
    within = [compare(name, MODELS.get(name, name), options.rounds) for name in options.models]
    sys.exit(0 if all(within) else 1)


if __name__ == "__main__":
    main()
