"""Updates of a training step are those of torch.optim: numbers of optimizers, groups, clipped norms, rates, averages."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ir
from dnnc.onnx.opdefs import DIALECTS
from ir import DType, Func, Inline, Module, Op, Resource, TensorType, Value
from ir.core.attributes import Attributes
from ir.core.facets import UPDATE, OptimizerState, Phase
from ir.ops.grads import ASSIGN
from ir.ops.loss_scale import LossScale
from ir.ops.optimizers import DEFAULTS
from ir.ops.rates import COSINE, RateSchedule
from ir.ops.rates import STEPS as STEPS_OF
from ir.ops.recipe import Recipe
from passes.differentiate import DifferentiatePass
from passes.framework.base import PassContext

torch: Any = pytest.importorskip("torch", reason="the extra 'train' is not installed")

from dnnc.engines.torch.statements import update_helpers  # noqa: E402
from dnnc.engines.torch.statements.run import compiled  # noqa: E402

STEPS = 5
SHAPES = {"w": (4, 3), "b": (3,), "t": (2, 3, 4)}
SGD, MOMENTUM, ADAM, ADAMW, ADAFACTOR = "sgd", "momentum", "adam", "adamw", "adafactor"


def step_module(
    optimizer: str, recipe: Recipe, numbers: Mapping[str, Any], facets: Mapping[str, Mapping[str, float]]
) -> Module:
    """The step of a loss that is the sum of products of the weights with one input each, so that this is the gradient."""
    resources, ops, args, terms = [], [], [], []
    scalar = TensorType(DType.F32, ())
    for name, shape in SHAPES.items():
        type_ = TensorType(DType.F32, shape)
        data = np.random.default_rng(len(name) + sum(shape)).normal(size=shape).astype("<f4").tobytes()
        facet = OptimizerState(optimizer, 0, **facets.get(name, {}))
        resources.append(Resource(f"@{name}", type_, Inline(data), facets=(facet,)))
        args.append(Value(f"%{name}.in", type_))
        ops.append(Op("onnx.Mul", (f"@{name}", f"%{name}.in"), (Value(f"%{name}.product", type_),)))
        ops.append(Op("onnx.ReduceSum", (f"%{name}.product",), (Value(f"%{name}.sum", scalar),), ir.attributes(keepdims=0)))
        terms.append(f"%{name}.sum")
    ops.append(Op("onnx.Sum", tuple(terms), (Value("%loss", scalar),)))
    func = Func("@main", tuple(args), (Value("%loss", scalar),), tuple(ops), attributes=recipe.attributes())
    opset: Attributes = ir.attributes({"opset.onnx": 20})
    module = Module("@m", (*resources, func), opset)
    return DifferentiatePass(1, **numbers).run(module, PassContext(dialects=DIALECTS))


class Ours:
    """Runs the ops of the step; holds weights and state."""

    def __init__(self, module: Module) -> None:
        entry = module.entry
        assigns = {op.operands[0]: op.operands[1] for op in entry.ops if op.name == ASSIGN}
        types = {value.name: value.type for op in entry.ops for value in op.results}
        ops = tuple(op for op in entry.ops if op.name != ASSIGN)
        results = tuple(Value(name, types[name]) for name in assigns.values())
        self.run = compiled(module, replace(entry, ops=ops, results=results))
        self.assigned, self.values = list(assigns), dict[str, Any]()
        for resource in module.of_type(Resource):
            shape = list(resource.type.shape or ()) if isinstance(resource.type, TensorType) else []
            if isinstance(resource.data, Inline) and isinstance(resource.data.data, bytes) and resource.facets:
                array = np.frombuffer(resource.data.data, "<f4").reshape(shape).copy()
                self.values[resource.name] = torch.from_numpy(array)
            elif isinstance(resource.data, ir.Splat) and isinstance(resource.type, TensorType):
                kind = torch.int64 if resource.type.dtype is DType.I64 else torch.float32
                self.values[resource.name] = torch.full(shape, resource.data.value, dtype=kind)
        self.count = 0

    def step(self, gradients: Mapping[str, Any]) -> None:
        self.count += 1
        inputs = {f"%{name}.in": gradient for name, gradient in gradients.items()}
        new = self.run({**self.values, **inputs, "%step": self.count}, "cpu")
        self.values.update({name: value.clone() for name, value in zip(self.assigned, new, strict=True)})


def gradients_of(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def compared(
    optimizer: Any,
    params: Mapping[str, Any],
    ours: Ours,
    *,
    scheduler: Any = None,
    clip: float | None = None,
    decay: float | None = None,
) -> None:
    averages: dict[str, Any] = {}
    ema = torch.optim.swa_utils.get_ema_multi_avg_fn(decay or 0.0)
    for step in range(STEPS):
        gradients = gradients_of(step)
        for name, param in params.items():
            param.grad = gradients[name].clone()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(list(params.values()), clip)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        ours.step(gradients)
        for name, param in params.items():
            torch.testing.assert_close(ours.values[f"@{name}"], param.detach(), rtol=1e-5, atol=1e-6)
            if decay is not None:
                if step == 0:
                    averages[name] = param.detach().clone()
                else:
                    ema([averages[name]], [param.detach()], None)
                torch.testing.assert_close(ours.values[f"@{name}.ema"], averages[name], rtol=2e-6, atol=2e-7)


def pair(
    optimizer: str,
    recipe: Recipe | None = None,
    numbers: Mapping[str, Any] | None = None,
    facets: Mapping[str, Mapping[str, float]] | None = None,
) -> tuple[dict[str, Any], Ours]:
    ours = Ours(step_module(optimizer, recipe or Recipe(), numbers or {}, facets or {}))
    return {name: torch.nn.Parameter(ours.values[f"@{name}"].clone()) for name in SHAPES}, ours


@pytest.mark.parametrize(
    ("name", "numbers", "of_torch", "fields"),
    [
        (SGD, {}, "SGD", {"lr": 0.001}),
        (SGD, {"learning_rate": 0.1, "weight_decay": 0.1}, "SGD", {"lr": 0.1, "weight_decay": 0.1}),
        (MOMENTUM, {"momentum": 0.8}, "SGD", {"lr": 0.001, "momentum": 0.8}),
        (
            MOMENTUM,
            {"nesterov": True, "weight_decay": 0.1, "learning_rate": 0.1},
            "SGD",
            {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        ),
        (ADAM, {"beta1": 0.7, "beta2": 0.9, "epsilon": 1e-3}, "Adam", {"betas": (0.7, 0.9), "eps": 1e-3}),
        (ADAMW, {"beta1": 0.7, "weight_decay": 0.3}, "AdamW", {"betas": (0.7, 0.999), "weight_decay": 0.3}),
        (ADAFACTOR, {}, "Adafactor", {}),
        (
            ADAFACTOR,
            {
                "learning_rate": 0.5,
                "beta2_decay": -0.5,
                "threshold": 1.5,
                "weight_decay": 0.1,
                "epsilon1": 0.5,
                "epsilon2": 5.0,
            },
            "Adafactor",
            {"lr": 0.5, "beta2_decay": -0.5, "d": 1.5, "weight_decay": 0.1, "eps": (0.5, 5.0)},
        ),
    ],
)
def test_optimizers(name: str, numbers: dict[str, Any], of_torch: str, fields: dict[str, Any]) -> None:
    params, ours = pair(name, numbers=numbers)
    compared(getattr(torch.optim, of_torch)(params.values(), **fields), params, ours)


@pytest.mark.parametrize("most", [0.5, 1e4])
@pytest.mark.parametrize("name", [SGD, MOMENTUM, ADAM, ADAMW, ADAFACTOR])
def test_clipped_norms(name: str, most: float) -> None:
    params, ours = pair(name, Recipe(clip_norm=most))
    of_torch = {SGD: "SGD", MOMENTUM: "SGD", ADAM: "Adam", ADAMW: "AdamW", ADAFACTOR: "Adafactor"}[name]
    fields = {"momentum": 0.9} if name == MOMENTUM else {}
    compared(getattr(torch.optim, of_torch)(params.values(), **fields), params, ours, clip=most)


def test_a_clipped_gradient_of_a_schedule_with_an_average() -> None:
    recipe = Recipe(0.7, RateSchedule(COSINE, 2, 0.5, 5, 0.1), 0.6)
    params, ours = pair(ADAMW, recipe, {"learning_rate": 0.1})
    optimizer = torch.optim.AdamW(params.values(), lr=0.1)
    rates = torch.optim.lr_scheduler
    first, main = rates.LinearLR(optimizer, 0.5, 1.0, 2), rates.CosineAnnealingLR(optimizer, 3, 0.01)
    scheduler = rates.SequentialLR(optimizer, [first, main], [2])
    compared(optimizer, params, ours, scheduler=scheduler, clip=0.7, decay=0.6)


def test_groups_of_parameters() -> None:
    facets = {"w": {"learning_rate": 0.2}, "b": {"weight_decay": 0.0}}
    params, ours = pair(ADAMW, numbers={"learning_rate": 0.1, "weight_decay": 0.3}, facets=facets)
    groups = [
        {"params": [params["w"]], "lr": 0.2},
        {"params": [params["b"]], "weight_decay": 0.0},
        {"params": [params["t"]]},
    ]
    compared(torch.optim.AdamW(groups, lr=0.1, weight_decay=0.3), params, ours)


def test_a_norm_that_is_no_number_reaches_every_weight() -> None:
    """As in PyTorch, where ``error_if_nonfinite`` is not asked for."""
    _, ours = pair(SGD, Recipe(clip_norm=1.0))
    gradients = gradients_of(0)
    gradients["b"][0] = float("nan")
    ours.step(gradients)
    assert all(bool(torch.isnan(ours.values[f"@{name}"]).all()) for name in SHAPES)


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("name", [SGD, MOMENTUM, ADAM, ADAMW, ADAFACTOR])
def test_a_loss_that_is_scaled(name: str, clip: float | None) -> None:
    """As by GradScaler: steps 1 and 4 overflow and change no weight and no state, not even Adam's count; the scale then halves,
    and doubles after two steps in a row that did not."""
    scale = LossScale(init=1024.0, interval=2)
    params, ours = pair(name, Recipe(clip, RateSchedule(STEPS_OF, every=2, factor=0.5), loss_scale=scale))
    of_torch = {SGD: "SGD", MOMENTUM: "SGD", ADAM: "Adam", ADAMW: "AdamW", ADAFACTOR: "Adafactor"}[name]
    optimizer = getattr(torch.optim, of_torch)(params.values(), **({"momentum": 0.9} if name == MOMENTUM else {}))
    rates = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    scaler = torch.amp.GradScaler("cpu", scale.init, scale.growth, scale.backoff, scale.interval)
    scales, skipped = [], 0
    for step in range(6):
        gradients = gradients_of(step)
        if step in (0, 3):
            gradients["t"][0, 0, 0] = float("inf") if step else float("nan")
        for key, param in params.items():
            param.grad = scaler.scale(gradients[key])
        scaler.unscale_(optimizer)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(list(params.values()), clip)
        scaler.step(optimizer)
        scaler.update()
        with warnings.catch_warnings(action="ignore"):  # the first step is skipped
            rates.step()
        ours.step(gradients)
        skipped += step in (0, 3)
        scales.append(scaler.get_scale())
        for key, param in params.items():
            torch.testing.assert_close(ours.values[f"@{key}"], param.detach(), rtol=1e-5, atol=1e-6)
        assert (float(ours.values["@loss_scale"]), int(ours.values["@loss_scale.skipped"])) == (scales[-1], skipped)
    assert [one / scale.init for one in scales] == [0.5, 0.5, 1.0, 0.5, 0.5, 1.0]


def test_a_scale_that_would_be_infinite_stays() -> None:
    _, ours = pair(SGD, Recipe(loss_scale=LossScale(init=2.0**127, interval=1)))
    ours.step({name: torch.zeros(shape) for name, shape in SHAPES.items()})
    assert float(ours.values["@loss_scale"]) == 2.0**127


def test_updates_are_valid_ir_in_phase_u() -> None:
    module = step_module(ADAFACTOR, Recipe(1.0, RateSchedule("constant", 3), 0.9, LossScale()), {}, {})
    ir.verify(module, dialects=DIALECTS)
    again = ir.load_module(ir.print_module(module), dialects=DIALECTS)
    assert again == module
    kinds = {op.name for op in module.entry.ops if op.facet(Phase) == Phase(UPDATE)}
    assert {"grad.adafactor", "grad.ema", "grad.loss_scale", "grad.rate", "grad.step", "onnx.ReduceSumSquare"} <= kinds


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 3, 4)])
def test_adafactor_of_a_program_without_sums(shape: tuple[int, ...]) -> None:
    """Programs of builds that were written before its sums were ops make them of whole tensors."""
    generator = torch.Generator().manual_seed(1)
    param = torch.nn.Parameter(torch.randn(shape, generator=generator))
    weight, optimizer = param.detach().clone(), torch.optim.Adafactor([param], lr=0.1)
    rows = torch.zeros((*shape[:-1], 1) if len(shape) > 1 else shape)
    columns = torch.zeros((*shape[:-2], 1, shape[-1])) if len(shape) > 1 else None
    numbers = {**DEFAULTS[ADAFACTOR], "learning_rate": 0.1}
    for step in range(1, 4):
        param.grad = torch.randn(shape, generator=generator)
        update_helpers.adafactor(weight, param.grad, rows, columns, torch.tensor(step), **numbers)
        optimizer.step()
        torch.testing.assert_close(weight, param.detach(), rtol=1e-5, atol=1e-6)
