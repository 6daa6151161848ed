"""``dnnc check --prove`` of a training build: for all inputs and weights, each step of all members is the step of the model.

The *step* of a model runs its forward ops and their gradients on each of M microbatches, takes the mean of each gradient over
these, and updates each weight once. Three things are shown, one after the other:

1. **The step follows from the model** (``derived``). The forward ops of the entry function of ``plan.ir`` are differentiated
   anew, as on one device. The loss, and what each weight, each optimizer's state and each running average becomes, must be the
   same expressions as those of the entry function, but for the order of sums.
2. **The programs do the step** (``step``, ``units``, ``rules``). The facts and rules are those of inference: which part of
   which value of the step each value of each member is. In addition:
   - a phase reads what earlier phases of its microbatch made, or itself before; what is made anew for each microbatch is
     read in U by ``grad.accumulate`` alone, and that is a mean over all M;
   - replicas are members that work on other microbatches: until U they exchange nothing, and ``grad.accumulate`` gives each a
     term of the mean, so an assignment without their sum, or with the sum of others, does not follow;
   - a name of a resource means the assigned value behind an assignment, and nothing between an optimizer's op, which works in
     place, and its assignment;
   - each member that holds a part of what a step changes assigns it, last, that part of the new value: so optimizer state has
     the layout of its weight's update, and every keeper of a weight has the new one. What an optimizer's op changes in place is
     assigned behind it. Of stages of one device that share a weight, one alone updates it;
   - a value has the type of the part that it is, since Python reshapes, splits, casts and sums as types say.
3. **Rows run the phases as they are to** (``rows``): each phase of each microbatch once, behind what it reads; one update a
   step; weights as old as the schedule allows.

Besides (``files``), ``stages/*.py`` must be, byte for byte, what dnnc writes of the programs, and ``weights.safetensors`` have
the elements of the model's weights.

By induction over the steps: what members hold before a step are parts of one state, so are parts of the state that the step
makes of it. Without a flush (``pipedream``, ``2bw``) the passes of a step read the state of an earlier step instead, which the
device keeps.

**On trust** (``TRUSTED``): that the forward ops and the loss of ``plan.ir`` are the model; the gradient formulas of
``differentiate``, each tested against PyTorch; which weights train, and the optimizer's numbers, as ``plan.ir`` says them; the
transcription of programs to Python; layout rules, kernels, the runtime. Programs are what ``localize`` makes of the stages of
``plan.ir`` (a training build has no others): they are checked, not trusted. The running averages of replicas are not those of
one device, but the mean of what each replica has moved by its own microbatches; that is what is shown of them (``averages``).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from dnnc.build.snapshot import Snapshot
from dnnc.build.training import Step
from dnnc.check.proof.explain import REFUTED, Failure
from dnnc.check.proof.training.averages import without_averages
from dnnc.check.proof.training.derived import derivation_faults
from dnnc.check.proof.training.files import InitialWeights, transcription_faults
from dnnc.check.proof.training.rows import row_faults
from dnnc.check.proof.training.step import message_faults, prove_programs
from dnnc.check.proof.verdict import KERNELS, LAYOUT_RULES, RUNTIME, ProofReport, StageVerdict
from dnnc.engines.torch.files import read_step
from ir.system.collector import collector_paused

TRUSTED = (
    "the forward ops and the loss of plan.ir are the model: the importer, 'canonicalize' and 'training' are not checked",
    "the gradient formulas of 'differentiate', each tested against PyTorch",
    "which weights train, and the optimizer's numbers, as plan.ir states them",
    "the transcription of programs to stages/*.py: the files are what dnnc writes, but what their statements do is not checked",
    LAYOUT_RULES,
    KERNELS,
    RUNTIME,
)
"""What a proof of a training build takes on trust."""

Progress = Callable[[str, float | None], None]


def prove_training(files: Snapshot, progress: Progress = lambda label, fraction: None) -> ProofReport:
    """What can be shown of a training build for all inputs. Raises InvalidInput for one whose ``plan.ir`` is not valid."""
    start = time.perf_counter()
    progress("read the programs", None)
    step = read_step(files)
    stages, own = _proven(step, progress)
    progress("compare the files", None)
    weights = InitialWeights.of(files)
    beside = (*own, *message_faults(step), *transcription_faults(step, files), *weights.faults(step))
    files.confirm()
    return ProofReport(str(files.folder), stages, beside, weights.own_copy, time.perf_counter() - start, TRUSTED)


def prove_step(step: Step) -> ProofReport:
    """What can be shown of the programs and rows of a training step, before they are a build."""
    start = time.perf_counter()
    stages, beside = _proven(step, lambda label, fraction: None)
    return ProofReport(step.module.name, stages, beside, False, time.perf_counter() - start, TRUSTED)


@collector_paused()
def _proven(step: Step, progress: Progress) -> tuple[tuple[StageVerdict, ...], tuple[Failure, ...]]:
    """A verdict for each stage, and what is wrong beside them."""
    plain, averages = without_averages(step)
    stages, between = prove_programs(plain, progress)
    progress("differentiate the model", None)
    wrong = (Failure(REFUTED, fault, origin) for origin, fault in averages)
    return stages, (*between, *wrong, *derivation_faults(plain.module, plain.microbatches), *row_faults(step))


__all__ = ["TRUSTED", "prove_step", "prove_training"]
