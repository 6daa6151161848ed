"""What is refused when a training build is written, opened, trained and checked. Codes E07 and W07."""

from __future__ import annotations

from dnnc.build.faults import REBUILD
from ir.core.diagnostics import Fault

_OTHER_MODEL = "is it of another model?"
_OTHER_PLAN = f"{_OTHER_MODEL} A plan that trains other weights cannot go on from it either"
_SMALLER = "a smaller --learning-rate, or other data"


class NoElementType(Fault, code="E0702"):
    """PyTorch has no tensors of this element type, or its checkpoints cannot hold them."""

    message = "torch, or the format of its checkpoints, has no element type {element_type}"
    element_type: str


class StreamWithoutPasses(Fault, code="E0718"):
    """The schedule is a stream without end; PyTorch's CSV lists the passes of one training step."""

    message = "the schedule is a stream, and PyTorch's CSV lists the passes of a training step"
    hint = "export the schedule of a training step (--objective training) whose stages have no replicas"


class ReplicasNotInSchedule(Fault, code="E0719"):
    """A stage has replicas; PyTorch's schedules have one rank for each stage."""

    message = "stage {stage} is on {replicas} replicas, and PyTorch's schedules have one rank for each stage"
    hint = "export the schedule of a training step (--objective training) whose stages have no replicas"
    stage: int
    replicas: int


class NotATrainingBuild(Fault, code="E0720"):
    """'dnnc train' was given a build for inference."""

    message = "it is no build for training"
    hint = "compile with --objective training and --loss; 'dnnc run' runs a build for inference"


class TrainingNotInstalled(Fault, code="E0721"):
    """Packages that training needs are not installed."""

    message = "training needs {packages}"
    hint = "pip install 'dnnc[train]'"
    packages: tuple[str, ...]


class InitialWeightsMissing(Fault, code="E0723"):
    """A training build has no file of the weights before the first step."""

    message = "it has no {file}"
    hint = REBUILD
    file: str


class ProgramNotImported(Fault, code="E0724"):
    """The Python program of a stage raised an error when it was imported."""

    message = "it cannot be imported: {reason}"
    reason: str


class NothingTrained(Fault, code="E0725"):
    """The plan of a training build updates no weight."""

    message = "the plan updates no weight"
    hint = "compile with --objective training"


class FileNotWritten(Fault, code="E0726"):
    """The system refused to write a checkpoint or the losses: the disk is full, or the folder takes no file."""

    message = "it cannot be written: {reason}"
    reason: str


class FileNotRead(Fault, code="E0727"):
    """The system refused to read a checkpoint."""

    message = "it cannot be read: {reason}"
    reason: str


class NotSafetensors(Fault, code="E0728"):
    """A file is no safetensors file: it was cut off, or is another kind of file."""

    message = "it cannot be read as safetensors: {reason}"
    reason: str


class PositionUnknown(Fault, code="E0729"):
    """The header of a checkpoint states a step or a seed that is no number."""

    message = "its header does not say the step and the seed in numbers"


class CheckpointDamaged(Fault, code="E0730"):
    """The contents of a checkpoint do not have the SHA-256 that was written with them."""

    message = "it is damaged: its SHA-256 is not that of what was written"
    hint = "go on from another checkpoint"


class CheckpointChanged(Fault, code="E0731"):
    """A checkpoint was written to while it was read."""

    message = "the file was changed while it was used"


class WeightMissing(Fault, code="E0732"):
    """A checkpoint lacks a weight that is wanted."""

    message = "it holds no weight '{weight}'"
    hint = _OTHER_MODEL
    weight: str


class WeightOfOtherType(Fault, code="E0733"):
    """A weight of a checkpoint has another element type or shape than in the model."""

    message = "its weight '{weight}' is {found}; expected {expected}"
    hint = _OTHER_MODEL
    weight: str
    found: str
    expected: str


class TrainedWeightMissing(Fault, code="E0734"):
    """The checkpoint that training is to go on from lacks a weight that the plan trains."""

    message = "it holds no weight '{weight}', which the plan trains"
    hint = _OTHER_PLAN
    weight: str


class WeightNotInPlan(Fault, code="E0735"):
    """The checkpoint that training is to go on from holds a weight that the plan does not have."""

    message = "it holds a weight '{weight}', which the plan lacks"
    hint = _OTHER_PLAN
    weight: str


class IndexDamaged(Fault, code="E0753"):
    """The index of a checkpoint is not as 'dnnc train' writes it."""

    message = "it is no index of a checkpoint: {reason}"
    hint = "go on from another checkpoint"
    reason: str


class PartOfOtherCheckpoint(Fault, code="E0754"):
    """A file of a checkpoint is not the one that its index lists."""

    message = "it is not the file that {index} lists"
    hint = "go on from another checkpoint"
    index: str


class PartsDiffer(Fault, code="E0755"):
    """Two files of a checkpoint have parts of a weight that cannot be of one tensor."""

    message = "its part of weight '{weight}' is of another type or shape than that of another file"
    hint = "go on from another checkpoint"
    weight: str


class NotAllOfWeight(Fault, code="E0756"):
    """The files of a checkpoint have some parts of a weight, and lack others."""

    message = "its files do not have all of weight '{weight}'"
    hint = "go on from another checkpoint"
    weight: str


class FolderNotShared(Fault, code="E0757"):
    """A rank on another host does not see the folder that rank 0 made for a checkpoint, to which each writes its part."""

    message = "the folder for checkpoints is not that of rank 0"
    hint = "--checkpoint names a folder that all hosts share; or --cluster collects what the hosts write"


class WeightNotInModel(Fault, code="E0758"):
    """A checkpoint that is to become a model holds a weight that the model lacks."""

    message = "it holds a weight '{weight}', which the model lacks"
    hint = _OTHER_MODEL
    weight: str


class CheckpointWithoutDigest(Fault, code="W0736"):
    """A checkpoint states no SHA-256, so a change of its contents goes unseen."""

    message = "it has no digest: what was changed in it is not seen"
    hint = "those that 'dnnc train' writes now are verified"


class OptimizerStateMissing(Fault, code="W0737"):
    """The checkpoint was written by another optimizer, so the state of this one begins at zero."""

    message = "it holds no state of {optimizer} for {weights}: this begins at zero"
    hint = "to go on as before, compile with --optimizer {before}"
    optimizer: str
    weights: str
    before: str


class AveragesMissing(Fault, code="W0777"):
    """The plan keeps moving averages of weights, and the checkpoint has none."""

    message = "it holds no moving averages: they begin as its weights"


class RateEndsAtZero(Fault, code="W0778"):
    """The schedule of the learning rate ends at 0 before the training does: steps behind it change no weight."""

    message = "the learning rate is 0 from step {last} on, behind its schedule: steps to {end} change no weight"
    hint = "train fewer steps, or compile with steps={end} or end=FRACTION in --learning-rate-schedule"
    last: int
    end: int


class LaterCheckpoints(Fault, code="W0779"):
    """The folder for checkpoints holds some of a training that went further than the step from which this one goes on. They
    stay there until this training has one of the same step, so they are easily taken for its own."""

    message = "the folder holds checkpoints of another training: {names}"
    hint = "this one begins after step {done}, and replaces those of the steps that it reaches; give it another folder"
    names: str
    done: int


class OtherNumberOfRanks(Fault, code="E0738"):
    """Ranks were started by hand, and there are not as many as the plan has devices."""

    message = "the plan has {devices} devices, and {ranks} ranks were started"
    hint = (
        "'dnnc train' starts them. By hand, on one host: torchrun --nproc-per-node {devices} --no-python python -P -m "
        "dnnc.engines.torch.rank {build}; but torchrun authenticates nobody, listens on every interface, and whoever reaches "
        "it can run code here"
    )
    devices: int
    ranks: int
    build: str


class SlowDeviceUnknown(Fault, code="E0739"):
    """--slow names a device that the topology does not have."""

    message = "there is no device '{device}'"
    hint = "the topology has {devices}"
    device: str
    devices: str


class NotASlowDevice(Fault, code="E0740"):
    """A value of --slow is not DEVICE=K."""

    message = "it is not DEVICE=K with a number K from 0 to {most:g}"
    hint = "cpu1=3 lets cpu1 wait 3 seconds for each one that it computes"
    most: float


class LossNotFinite(Fault, code="E0741"):
    """The loss of a step is NaN or an infinity, so training cannot go on."""

    message = "the loss is {loss}"
    hint = f"{_SMALLER}; checkpoints of steps before are whole"
    loss: str


class NothingEvaluated(Fault, code="E0745"):
    """The data of --eval-data have no sample, or fewer than the microbatch that a loss of the model's own is of."""

    message = "it has no samples to evaluate"


class OpNotFinite(Fault, code="E0746"):
    """An op of a training step made NaN or an infinity, and no op before it did, but for minus infinity of a mask."""

    message = "{op} made {value} of {operands}: '%{result}' of stage {stage}, microbatch {microbatch}"
    note = "{note_of_place}"
    hint = f"{_SMALLER}; checkpoints of steps before are whole"
    op: str
    value: str
    operands: str
    result: str
    stage: int
    microbatch: int
    place: str
    """Where the op is in the model, empty where that is unknown."""

    @property
    def note_of_place(self) -> str:
        return f"the op is of {self.place} in the model" if self.place else ""


class ResultNotFinite(Fault, code="E0747"):
    """A result of a stage holds NaN or an infinity. Which of its ops made it is not known: it came with what other members of a
    mesh sent, or is in a gradient that a step summed."""

    message = "'%{result}' of stage {stage} holds {value}: {op} made it, or an op before it"
    hint = f"{_SMALLER}; checkpoints of steps before are whole"
    result: str
    stage: int
    value: str
    op: str


class GradientsNotFinite(Fault, code="E0748"):
    """The sum of the squares of all gradients of a step is not finite, though the scale of the loss is below 2^-14, too small
    to be the reason, and no op is known that made it."""

    message = "the norm of all gradients is not finite, though the scale of the loss is only {scale}"
    hint = f"{_SMALLER}; checkpoints of steps before are whole"
    scale: str


class WeightNotFinite(Fault, code="E0742"):
    """A weight holds NaN or an infinity, so training cannot go on."""

    message = "weight '{weight}' holds {value}"
    hint = f"{_SMALLER}; checkpoints of steps before are whole"
    weight: str
    value: str


class RankRaised(Fault, code="E0743"):
    """The program of a rank, or a library that it uses, raised an error."""

    message = "{reason}"
    reason: str


class RankInterrupted(Fault, code="E0744"):
    """Somebody interrupted a rank, not the command itself."""

    message = "it was interrupted"


class ModelWeightNotFinite(Fault, code="E0772"):
    """A weight of the unsplit model, trained alone, becomes NaN or an infinity, so there is nothing to compare with."""

    message = "weight '{weight}' of the unsplit model is no finite number after step {step}"
    hint = _SMALLER
    weight: str
    step: int


class ModelLossNotFinite(Fault, code="E0773"):
    """The loss of the unsplit model, trained alone, becomes NaN or an infinity, so there is nothing to compare with."""

    message = "the loss of the unsplit model is no finite number in step {step}"
    hint = _SMALLER
    step: int


class LossDiffers(Fault, code="E0774"):
    """The loss of a step differs from that of the unsplit model by more than rounding explains."""

    message = "the loss of step {step} is {loss}, that of the unsplit model {expected}"
    note = "{before}"
    step: int
    loss: str
    expected: str
    weights_equal: int

    @property
    def before(self) -> str:
        return "the weights were the same before this step" if self.weights_equal else ""


class WeightDiffers(Fault, code="E0775"):
    """A weight after a step differs from that of the unsplit model by more than rounding explains."""

    message = (
        "weight '{weight}' differs from the unsplit model's after step {step}: {difference} of its range, allowed {allowed}"
    )
    hint = "plan.ir shows the ops that update it: look for '@{weight}'"
    weight: str
    step: int
    difference: str
    allowed: str


class GradientDiffers(Fault, code="E0779"):
    """A gradient in a step differs from that of the unsplit model by more than rounding of 16 bits explains."""

    message = (
        "the gradient of weight '{weight}' in step {step} differs from the unsplit model's: {difference} of its range, allowed "
        "{allowed}"
    )
    hint = "plan.ir shows the ops that make it: look for '%{weight}.grad'"
    weight: str
    step: int
    difference: str
    allowed: str


class NothingCompared(Fault, code="E0776"):
    """Rounding alone changes every weight by more than a wrong plan would, so the check says nothing."""

    message = "no weight could be compared: rounding alone changes all of them"
