"""The ops that update a weight, once a step: the optimizers, the learning rate's factor, the moving average of weights, the
scale of the loss (``ir.ops.loss_scale``).

Optimizers mean what ``torch.optim.SGD`` (``sgd``; with momentum, ``momentum``), ``Adam``, ``AdamW`` and ``Adafactor`` do with
the same numbers. Numbers are attributes, hence IEEE single; ``hyperparameters`` gives the decimal numbers that a person wrote.

The operands of an optimizer are the weight, its gradient and its state; then, of one that ``COUNTS``, the number of the step;
then three that may be absent: the factor of the learning rate (``grad.rate``), a factor of the gradient, by which its norm is
clipped and the scale of the loss undone, and whether the step is taken (``grad.loss_scale``): otherwise the results are the
operands. ``UpdateOperands`` takes them apart. Its results are the new weight and the new state.

What Adafactor does to an element depends on sums over others. These are ops of their own, and operands behind all others, so
that members of a mesh, each with a part of the weight, add up their terms: ``ADAFACTOR_SUMS``.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from ir.core.attributes import AttrKind, decimal
from ir.core.ops import Op
from ir.core.types import DType, TensorType, Type
from ir.ops.grad_kernels import alike, tensor
from ir.ops.loss_scale import LOSS_SCALE_OP, SCALE, SKIPPED, STEPS
from ir.ops.opdefs import PURE, AttrDef, OpDef
from ir.ops.rates import RateSchedule

EMA = "grad.ema"
EMA_STATE = "ema"
"""What the moving average of ``@w`` is called behind its name: ``@w.ema``."""
RATE = "grad.rate"
AVERAGED, COUNTED = "running_mean", "num_batches_tracked"
"""What PyTorch calls the running mean of a batch normalisation, and the count of the microbatches that moved it."""

STATE: Mapping[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("momentum",),
    "adam": ("exp_avg", "exp_avg_sq"),
    "adamw": ("exp_avg", "exp_avg_sq"),
    "adafactor": ("row_var", "col_var", "variance"),
}
"""The optimizers, with the tensors that each may keep beside a weight; of ``@w`` they are called ``@w.momentum`` and so on.
``state_types`` says which it keeps of which weight."""
OPTIMIZERS = frozenset(f"grad.{name}" for name in STATE)
COUNTS = frozenset({"adam", "adamw", "adafactor"})
"""Optimizers that read the number of the step."""
ADAFACTOR, ADAFACTOR_SQUARES = "grad.adafactor", "grad.adafactor_squares"
FACTORED_SUMS = ("row_squares", "column_squares", "squares", "row_sum")
ADAFACTOR_SUMS = ("weight_squares", "change_squares", *FACTORED_SUMS)
"""The sums that Adafactor reads: of the squares of the weight; of those of the gradient over the root of its averages, which is
``grad.adafactor_squares``; and, for a weight of two dimensions or more, of the gradient's squares along each row, along each
column, and along both, and of the averages of its rows."""

_SGD = {"learning_rate": 0.001, "weight_decay": 0.0}
_ADAM = {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "sgd": _SGD,
    "momentum": {"learning_rate": 0.001, "momentum": 0.9, "weight_decay": 0.0},
    "adam": {**_ADAM, "weight_decay": 0.0},
    "adamw": {**_ADAM, "weight_decay": 0.01},
    "adafactor": {
        "learning_rate": 0.01,
        "beta2_decay": -0.8,
        "epsilon1": 2.0**-23,
        "epsilon2": 0.001,
        "threshold": 1.0,
        "weight_decay": 0.0,
    },
}
"""The numbers of each optimizer: torch's own where nothing is said, but for momentum, which torch has at 0. ``epsilon1``,
``epsilon2`` and ``threshold`` are torch's ``eps`` and ``d``; its default of ``epsilon1`` is that of f32."""
NESTEROV = "nesterov"
"""The attribute of ``grad.momentum``, 1 for Nesterov's momentum; absent for the plain one."""
NUMBERS = tuple(dict.fromkeys(key for numbers in DEFAULTS.values() for key in numbers))
"""All numbers of optimizers."""


def hyperparameters(op: Op) -> dict[str, float]:
    """The numbers of an optimizer's op as they were written: 0.9 where the attribute holds the IEEE single next to it."""
    return {key: decimal(op.get(key, value)) for key, value in DEFAULTS[op.name.removeprefix("grad.")].items()}


def state_types(optimizer: str, weight: TensorType) -> dict[str, TensorType]:
    """What an optimizer keeps beside a weight: suffix of the name -> type."""
    if optimizer != "adafactor":
        return dict.fromkeys(STATE[optimizer], weight)
    shape = weight.shape
    if shape is None or len(shape) < 2:
        return {"variance": weight}
    row, column = (*shape[:-1], 1), (*shape[:-2], 1, shape[-1])
    return {"row_var": TensorType(weight.dtype, row), "col_var": TensorType(weight.dtype, column)}


_SUFFIXES = frozenset({EMA_STATE, *(state for states in STATE.values() for state in states)})


def is_state(name: str, weights: Container[str]) -> bool:
    """Whether something of this name is state of training and no weight: of the optimizer of one of ``weights``
    (``fc.weight.exp_avg``), a moving average of one, the scale of the loss, or the count of the microbatches that moved a
    running average (``norm.num_batches_tracked``)."""
    weight, _, state = name.rpartition(".")
    if state == COUNTED:
        return f"{weight}.{AVERAGED}" in weights
    return name in (SCALE, STEPS, SKIPPED) or (state in _SUFFIXES and weight in weights)


class UpdateOperands(NamedTuple):
    """The names of an optimizer's operands; empty for one that is absent."""

    weight: str
    gradient: str
    states: tuple[str, ...]
    step: str
    rate: str
    scale: str
    taken: str
    sums: tuple[str, ...] = ()

    @classmethod
    def of(cls, op: Op) -> UpdateOperands:
        states, names = len(op.results) - 1, list(op.operands)
        counted = int(op.name.removeprefix("grad.") in COUNTS)
        more = [*names[2 + states :], "", "", "", ""]
        step = more.pop(0) if counted else ""
        rate, scale, taken, *sums = more
        return cls(names[0], names[1], tuple(names[2 : 2 + states]), step, rate, scale, taken, tuple(filter(None, sums)))


def in_place(op: Op) -> tuple[int, ...]:
    """The operands that a runtime changes in place when it runs the op: a weight and its state, a moving average."""
    if op.name in OPTIMIZERS:
        return 0, *range(2, 1 + len(op.results))
    return (0,) if op.name == EMA else ()


def _updates(op: Op, types: Sequence[Type | None]) -> Iterable[str]:
    name = op.name.removeprefix("grad.")
    operands, states = UpdateOperands.of(op), len(op.results) - 1
    if op.name == ADAFACTOR:
        yield from alike(op, types, (0, 1), (0,))
        weight = tensor(types[0])
        expected = list(state_types(name, weight).values()) if weight is not None else []
        given = [tensor(type_) for type_ in types[2 : 2 + states]]
        if weight is not None and any(one not in (None, other) for one, other in zip(given, expected, strict=False)):
            yield f"{op.name} keeps {', '.join(map(str, expected))} of {weight}, not {', '.join(map(str, given))}"
        elif weight is not None and (len(expected) != states or [tensor(v.type) for v in op.results[1:]] != expected):
            yield f"{op.name} gives the state {', '.join(map(str, expected))} of {weight}"
        if operands.sums and len(operands.sums) != (2 if states == 1 else len(ADAFACTOR_SUMS)):
            yield f"{op.name} takes the sums {', '.join(ADAFACTOR_SUMS)}, of a vector the first two, not {len(operands.sums)}"
        if operands.sums and op.get("shape") is None:
            yield f"{op.name} with sums has the shape of the whole weight"
    else:
        yield from alike(op, types, range(2 + states), range(1 + states))
    by_name = dict(zip(op.operands, types, strict=True))
    for what, operand, wanted in (
        ("number of the step", operands.step, DType.I64),
        ("factor of the learning rate", operands.rate, DType.F64),
        ("flag of a step that is taken", operands.taken, DType.BOOL),
    ):
        if operand and (found := tensor(by_name[operand])) not in (None, TensorType(wanted, ())):
            yield f"{op.name} takes the {what} as tensor<{wanted.value}>, not {operand} of {found}"
    scale = tensor(by_name[operands.scale]) if operands.scale else None
    if scale is not None and (scale.shape != () or not scale.dtype.is_float):
        yield f"{op.name} takes the factor of its gradient as a scalar of floats, not {operands.scale} of {scale}"


def _optimizer(name: str) -> OpDef:
    counted, states = int(name in COUNTS), len(STATE[name])
    fewest, most, sums = (1, 2, len(ADAFACTOR_SUMS)) if name == "adafactor" else (states, states, 0)
    numbers = tuple((key, AttrDef(AttrKind.FLOAT, True)) for key in DEFAULTS[name])
    others = {"momentum": ((NESTEROV, AttrDef(AttrKind.INT)),), "adafactor": (("shape", AttrDef(AttrKind.INTS)),)}
    return OpDef(
        f"grad.{name}",
        (2 + fewest + counted, 5 + most + counted + sums),
        (1 + fewest, 1 + most),
        (*numbers, *others.get(name, ())),
        traits=frozenset({PURE}),
        typed=_updates,
        doc=f"The weight after a step of {name}, and its state: operands are the weight, its gradient"
        + "".join(f", {state}" for state in STATE[name])
        + (", the number of the step" if counted else "")
        + "; and, where they are not absent, a factor of the learning rate, a factor of the gradient, and whether the step is "
        "taken: if not, nothing changes."
        + (f" Then the sums {', '.join(ADAFACTOR_SUMS)}: of a weight whose dimensions are `shape`." if sums else ""),
    )


def _rates(op: Op, types: Sequence[Type | None]) -> Iterable[str]:
    if tensor(types[0]) not in (None, TensorType(DType.I64, ())):
        yield f"{op.name} takes the number of the step as tensor<i64>, not {op.operands[0]} of {types[0]}"
    if tensor(op.results[0].type) != TensorType(DType.F64, ()):
        yield f"{op.name} gives tensor<f64>, not {op.results[0].type}"


def _scheduled(op: Op) -> Iterable[str]:
    if fault := RateSchedule.of(op).fault():
        yield f"{op.name}: {fault}"


def _averages(op: Op, types: Sequence[Type | None]) -> Iterable[str]:
    yield from alike(op, types, (0, 1), (0,))
    if (step := tensor(types[2])) not in (None, TensorType(DType.I64, ())):
        yield f"{op.name} takes the number of the step as tensor<i64>, not {op.operands[2]} of {step}"


def _decays(op: Op) -> Iterable[str]:
    if not 0 <= op.get("decay") <= 1:
        yield f"{op.name} has a decay of 0 to 1, not {op.get('decay')}"


OPTIMIZER_OPS = (
    *map(_optimizer, STATE),
    OpDef(
        ADAFACTOR_SQUARES,
        (3, 5 + len(FACTORED_SUMS)),
        (1, 1),
        (
            ("beta2_decay", AttrDef(AttrKind.FLOAT, True)),
            ("epsilon1", AttrDef(AttrKind.FLOAT, True)),
            ("shape", AttrDef(AttrKind.INTS, True)),
        ),
        traits=frozenset({PURE}),
        doc="The sum of the squares of the gradient over the root of its averages, which Adafactor scales and subtracts: "
        "operands are the gradient, the number of the step, a factor of the gradient or none, the state, and, where that is "
        f"row_var and col_var, the sums {', '.join(FACTORED_SUMS)}.",
    ),
    OpDef(
        RATE,
        (1, 1),
        (1, 1),
        (
            ("kind", AttrDef(AttrKind.STRING, True)),
            *((key, AttrDef(AttrKind.INT)) for key in ("warmup", "steps", "every")),
            *((key, AttrDef(AttrKind.FLOAT)) for key in ("start", "end", "factor")),
            ("values", AttrDef(AttrKind.TENSOR)),
        ),
        traits=frozenset({PURE}),
        check=_scheduled,
        typed=_rates,
        doc="The factor of the learning rate in the step of this number, by a schedule (`ir/ops/rates.py`).",
    ),
    OpDef(
        EMA,
        (3, 3),
        (1, 1),
        (("decay", AttrDef(AttrKind.FLOAT, True)),),
        traits=frozenset({PURE}),
        check=_decays,
        typed=_averages,
        doc="The exponential moving average of a weight: operands are the average, the new weight and the number of the step. "
        "In step 1 it is the weight, later decay * average + (1 - decay) * weight.",
    ),
    LOSS_SCALE_OP,
)
"""The ops that are defined here."""
