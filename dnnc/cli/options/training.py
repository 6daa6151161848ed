"""The options of ``dnnc compile`` and ``dnnc profile`` that shape a training step."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from dnnc.cli.options import shared as opt


class OptimizerName(StrEnum):
    """The optimizers of torch.optim with these names; ``momentum`` is SGD with momentum of 0.9 by default."""

    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAM = "adam"
    ADAMW = "adamw"
    ADAFACTOR = "adafactor"


class RecomputeName(StrEnum):
    """Which forward ops run again for the backward pass."""

    NONE = "none"
    AUTO = "auto"
    STAGE = "stage"


class SyncName(StrEnum):
    """How members of a mesh that hold the same weight agree on its gradient."""

    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    SFB = "sfb"
    PS = "ps"
    AUTO = "auto"


class BatchNormName(StrEnum):
    """Which statistics batch normalisation uses: of the microbatch, or the running ones."""

    TRAIN = "train"
    FROZEN = "frozen"


class DtypeName(StrEnum):
    """The element type in which products are computed; weights and the optimizer's state are float32."""

    F32 = "f32"
    BF16 = "bf16"
    F16 = "f16"


class DropoutName(StrEnum):
    """Whether the model's dropouts drop elements."""

    OFF = "off"
    ON = "on"


Loss = Annotated[
    str,
    typer.Option(
        "--loss",
        metavar="KIND:OUTPUT",
        help="training: minimise cross-entropy:OUTPUT (classes are the last dimension of OUTPUT, not dimension 1 as in torch), "
        "mse:OUTPUT, or output:NAME, a scalar that the model computes (default for a zoo model with one output: its "
        "cross-entropy).",
        show_default=False,
    ),
]
Optimizer = Annotated[
    OptimizerName | None, typer.Option(help="training: the rule that updates weights (default: adam).", show_default=False)
]


def _number(flag: str, help: str, least: float | None = None) -> Any:
    return typer.Option(flag, min=least, metavar="NUMBER", callback=opt.finite, help=f"training: {help}", show_default=False)


LearningRate = Annotated[float | None, _number("--learning-rate", "the optimizer's learning rate (default: torch's).", 0.0)]
Momentum = Annotated[float | None, _number("--momentum", "momentum of sgd (default: 0, or 0.9 of --optimizer momentum).", 0.0)]
WeightDecay = Annotated[float | None, _number("--weight-decay", "the optimizer's weight decay (default: torch's).", 0.0)]
Beta1 = Annotated[float | None, _number("--beta1", "decay of Adam's average of gradients (default: 0.9).")]
Beta2 = Annotated[float | None, _number("--beta2", "decay of Adam's average of squares (default: 0.999).")]
Epsilon = Annotated[float | None, _number("--epsilon", "what Adam adds to the divisor (default: 1e-8).")]
Nesterov = Annotated[bool, typer.Option("--nesterov", help="training: momentum as Nesterov's.", show_default=False)]
Beta2Decay = Annotated[
    float | None, _number("--beta2-decay", "Adafactor's exponent of the step, by which its averages decay (default: -0.8).")
]
Threshold = Annotated[
    float | None, _number("--threshold", "Adafactor's limit of the root mean square of an update (default: 1).")
]
Epsilon1 = Annotated[
    float | None,
    _number("--epsilon1", "the least root of a mean square that Adafactor divides by (default: the precision of the weight)."),
]
Epsilon2 = Annotated[
    float | None,
    _number("--epsilon2", "the least root mean square of a weight by which Adafactor scales its rate (default: 0.001)."),
]
LearningRateSchedule = Annotated[
    str,
    typer.Option(
        "--learning-rate-schedule",
        metavar="KIND,KEY=NUMBER,..",
        help="training: how the learning rate changes: constant; linear,steps=N and cosine,steps=N, from --learning-rate to "
        "end=FRACTION of it (default: 0) after N steps; step,every=N,factor=F; each with warmup=N of these steps, from "
        "start=FRACTION (default: 0); or module:function,steps=N: a factor for each number of steps done.",
        show_default=False,
    ),
]
ClipNorm = Annotated[
    float | None,
    _number("--clip-norm", "scale all gradients down so that their norm is at most this (torch's clip_grad_norm_)."),
]
Ema = Annotated[
    float | None,
    _number("--ema", "keep an exponential moving average of each weight, of this decay; checkpoints hold it as WEIGHT.ema."),
]
LossScaleText = Annotated[
    str,
    typer.Option(
        "--loss-scale",
        metavar="dynamic|KEY=NUMBER,..",
        help="training: scale the loss as torch.amp.GradScaler does, and skip steps whose gradients are not finite: "
        "init=65536,growth=2,backoff=0.5,interval=2000 are the defaults (dynamic: all of them; default of --dtype f16).",
        show_default=False,
    ),
]
Groups = Annotated[
    list[str] | None,
    typer.Option(
        "--group",
        metavar="GLOB,KEY=NUMBER,..",
        help="training: learning-rate and weight-decay of the weights whose names match. Repeatable; the last match counts.",
    ),
]
NoDecay = Annotated[
    bool,
    typer.Option("--no-decay", help="training: no weight decay of biases and norms, the weights of fewer than two dimensions."),
]
Schedule = Annotated[
    str,
    typer.Option(
        "--schedule",
        metavar="NAME|auto",
        help="training: the order of forward and backward passes: 1f1b (default), gpipe, interleaved, zb-h1, zb-h2, zb-v; "
        "auto: the fastest of these that fits in memory; pipedream, 2bw: begin a step before the last has ended, with weights "
        "that lack its updates.",
        show_default=False,
    ),
]
Chunks = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=64,
        metavar="V",
        help="training: stages on each device (default: 2 for interleaved and zb-v, else 1).",
        show_default=False,
    ),
]
Recompute = Annotated[
    RecomputeName | None,
    typer.Option(
        help="training: run forward ops again in the backward pass instead of keeping their results: none (default); stage: "
        "those of each stage; auto: those of each stage if no plan fits otherwise.",
        show_default=False,
    ),
]
Trainable = Annotated[
    list[str] | None,
    typer.Option("--trainable", metavar="GLOB", help="training: train only weights whose names match. Repeatable."),
]
Frozen = Annotated[
    list[str] | None,
    typer.Option("--frozen", metavar="GLOB", help="training: do not train weights whose names match. Repeatable."),
]
BatchNorm = Annotated[
    BatchNormName | None,
    typer.Option(
        "--batchnorm",
        help="training: normalise by the statistics of each microbatch (train, default), or by the running ones (frozen).",
        show_default=False,
    ),
]
Dropout = Annotated[
    DropoutName | None,
    typer.Option(
        "--dropout",
        help="training: let the model's dropouts drop nothing (off, default), or elements at random, drawn by the --seed of "
        "'dnnc train' and the same for every plan.",
        show_default=False,
    ),
]
Dtype = Annotated[
    DtypeName | None,
    typer.Option(
        "--dtype",
        help="training: products in bf16 or f16, as torch.autocast has them, with weights and optimizer in f32 (f32: default); "
        "with f16 the loss is scaled.",
        show_default=False,
    ),
]
Synchronisation = Annotated[
    SyncName | None,
    typer.Option(
        "--sync",
        help="training: how devices of a mesh that hold the same weight combine its gradient. all_reduce (default): sum it, "
        "and update all of the weight on each; reduce_scatter: update a part on each; sfb: gather the gradient's factors and "
        "multiply them; ps: sum it on one device; auto: the fastest for each weight.",
        show_default=False,
    ),
]
