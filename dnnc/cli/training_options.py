"""The options of ``dnnc compile`` that are of a training step."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from dnnc.cli import options as opt


class OptimizerName(StrEnum):
    """torch's optimizers of these names; momentum is SGD with it."""

    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAM = "adam"
    ADAMW = "adamw"


class RecomputeName(StrEnum):
    """What runs again for the backward pass."""

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
    """Whose statistics batch normalisation takes."""

    TRAIN = "train"
    FROZEN = "frozen"


class DropoutName(StrEnum):
    """Whether dropouts of the model drop anything."""

    OFF = "off"
    ON = "on"


Loss = Annotated[
    str,
    typer.Option(
        "--loss",
        metavar="KIND:OUTPUT",
        help="training: what is minimised: cross-entropy:OUTPUT, mse:OUTPUT, or output:NAME, a scalar of the model's own "
        "(default for programs of a zoo model with one output: its cross-entropy). Classes of a cross-entropy are the last "
        "dimension of OUTPUT, not dimension 1 as in torch.nn.functional.cross_entropy.",
        show_default=False,
    ),
]
Optimizer = Annotated[
    OptimizerName | None, typer.Option(help="training: how weights change (default: adam).", show_default=False)
]
LearningRate = Annotated[
    float | None,
    typer.Option(
        "--learning-rate",
        min=0.0,
        callback=opt.finite,
        help="training: of the optimizer (default: torch's).",
        show_default=False,
    ),
]
Momentum = Annotated[
    float | None,
    typer.Option(min=0.0, callback=opt.finite, help="training: of the optimizer momentum (default: 0.9).", show_default=False),
]
WeightDecay = Annotated[
    float | None,
    typer.Option(
        "--weight-decay",
        min=0.0,
        callback=opt.finite,
        help="training: of the optimizer (default: torch's).",
        show_default=False,
    ),
]
Schedule = Annotated[
    str,
    typer.Option(
        "--schedule",
        metavar="NAME|auto",
        help="training: the order of passes: 1f1b (default), gpipe, interleaved, zb-h1, zb-h2, zb-v, or auto, the "
        "fastest that memory has space for, 1f1b with deeper stages included; pipedream and 2bw do not wait for a step to end "
        "before the next begins, and train with weights that are some updates old.",
        show_default=False,
    ),
]
Chunks = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=64,
        metavar="V",
        help="training: stages on each device, of one type (default: 2 for interleaved and zb-v, else 1).",
        show_default=False,
    ),
]
Recompute = Annotated[
    RecomputeName | None,
    typer.Option(
        help="training: what runs again for the backward pass instead of being kept: nothing (default), each stage, or auto, "
        "that where memory does not suffice without.",
        show_default=False,
    ),
]
Trainable = Annotated[
    list[str] | None,
    typer.Option("--trainable", metavar="GLOB", help="training: only weights of such names change. Repeatable."),
]
Frozen = Annotated[
    list[str] | None,
    typer.Option("--frozen", metavar="GLOB", help="training: weights of such names do not change. Repeatable."),
]
BatchNorm = Annotated[
    BatchNormName | None,
    typer.Option(
        "--batchnorm",
        help="training: batch normalisation by the statistics of each microbatch (default), or by the running ones.",
        show_default=False,
    ),
]
Dropout = Annotated[
    DropoutName | None,
    typer.Option(
        "--dropout",
        help="training: dropouts of the model drop nothing (default), or elements at random, by the --seed of dnnc train "
        "and the same ones on any plan.",
        show_default=False,
    ),
]
Synchronisation = Annotated[
    SyncName | None,
    typer.Option(
        "--sync",
        help="training: members of a mesh with the same weight sum its gradient and each update all of it (default), or a "
        "part, with its part of the optimizer's state; gather its factors and multiply them (sfb); sum it on one member (ps); "
        "or whatever is quickest for each weight (auto).",
        show_default=False,
    ),
]

__all__ = [
    "BatchNorm",
    "Chunks",
    "Dropout",
    "Frozen",
    "LearningRate",
    "Loss",
    "Momentum",
    "Optimizer",
    "Recompute",
    "Schedule",
    "Synchronisation",
    "Trainable",
    "WeightDecay",
]
