"""The options of ``dnnc train`` that no other command has."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dnnc.cli.options import shared as opt
from ir.core.limits import MOST, MOST_CORES, MOST_SECONDS


class LastBatchName(StrEnum):
    """What becomes of the last batch of an epoch that the samples do not fill."""

    DROP = "drop"
    USE = "use"


Steps = Annotated[int, typer.Option(min=1, max=MOST, metavar="N", help="Steps to train, from the first or from --resume.")]
Data = Annotated[
    str,
    typer.Option(
        metavar="SOURCE",
        help="synthetic; FILE.npz, samples by input name; a folder of such files, or of .npy files called as the inputs; or "
        "module:function, called with the seed, that gives a dataset or DataLoader of PyTorch, or yields batches.",
    ),
]
LastBatch = Annotated[
    LastBatchName | None,
    typer.Option(
        "--last-batch",
        help="Leave out the last batch of an epoch that the samples do not fill (drop, default), or use it (use). Default of a "
        "DataLoader: as it says.",
        show_default=False,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(min=0, max=MOST, metavar="N", help="Seed of the data and of its order (default: 0, or that of --resume)."),
]
Checkpoint = Annotated[
    Path | None,
    typer.Option("--checkpoint", metavar="DIR", help="Write checkpoints there, folders stepN of weights and optimizer state."),
]
Every = Annotated[int, typer.Option(min=0, max=MOST, metavar="K", help="Steps between checkpoints (0: the last step alone).")]
Resume = Annotated[
    Path | None,
    typer.Option("--resume", metavar="DIR", help="Go on from a checkpoint, of this or another plan of the model."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Write losses.json and trace.json there (default: the folder of checkpoints)."),
]
EvalData = Annotated[
    str, typer.Option("--eval-data", metavar="SOURCE", help="Evaluate the model on all of these data, named as --data.")
]
EvalEvery = Annotated[
    int,
    typer.Option("--eval-every", min=0, max=MOST, metavar="N", help="Steps between evaluations (0: after the last alone)."),
]
Patience = Annotated[
    int,
    typer.Option(
        "--patience",
        min=0,
        max=MOST,
        metavar="N",
        help="Stop after N evaluations without a better loss (0: never). With --checkpoint the best weights are kept.",
    ),
]
Log = Annotated[
    list[Path] | None,
    typer.Option("--log", metavar="FILE", help="Write each step's numbers to FILE.csv or FILE.jsonl. Repeatable."),
]
TensorBoard = Annotated[
    Path | None, typer.Option("--tensorboard", metavar="DIR", help="Write each step's numbers there for TensorBoard.")
]
Check = Annotated[
    bool,
    typer.Option("--check", help="Compare every step with the unsplit model under torch's autograd and torch.optim."),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, max=MOST_CORES, metavar="N", help="Threads of each rank (default: as many as its device has cores)."),
]
Slow = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DEVICE=K",
        help="DEVICE waits K seconds for each second that it computes, to stand for a slower machine. Repeatable.",
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        min=0.1, max=MOST_SECONDS, callback=opt.finite, metavar="SECONDS", help="Longest that a rank waits for another."
    ),
]
Nodes = Annotated[int, typer.Option("--nodes", min=1, max=1 << 16, metavar="N", help="Hosts; each runs this command.")]
Node = Annotated[
    int,
    typer.Option(
        "--node", min=0, max=1 << 16, metavar="I", help="Which host of the plan this is, from 0 in the order of its stages."
    ),
]
Retries = Annotated[
    int,
    typer.Option(
        "--retries",
        min=0,
        max=MOST,
        metavar="N",
        help="Go on from the last checkpoint, up to N times, where a process or a host is lost.",
    ),
]
Meet = Annotated[str, typer.Option("--meet", metavar="HOST:PORT", help="Where the hosts meet: an address of host 0.")]
Secret = Annotated[
    Path | None,
    typer.Option(
        "--secret",
        metavar="FILE",
        help="A secret by which the hosts know each other: the same file on each host (or its text in DNNC_SECRET).",
    ),
]
