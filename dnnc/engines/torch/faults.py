"""What is refused when a training build is written, started, trained and checked. Codes E07 and W07."""

from __future__ import annotations

from dnnc.build.faults import EMULATE, REBUILD
from ir.core.diagnostics import Fault

_OTHER_MODEL = "is it of another model?"
_OTHER_PLAN = f"{_OTHER_MODEL} A plan that trains other weights cannot go on from it either"
_SMALLER = "a smaller --learning-rate, or other data"
_ALIKE = "run 'dnnc train' alike on all hosts, but for --node"
_MAKE_SECRET = (
    "make one on one host (umask 077; head -c 32 /dev/urandom | base64 > dnnc.secret), then copy the file to the others"
)
_SAME_SECRET = "give the same secret to all hosts"

# Statements of PyTorch


class OpNotWritten(Fault, code="E0701"):
    """dnnc has no statement of PyTorch for this op, so no training program can hold it."""

    message = "{op}: dnnc cannot write this op as PyTorch, so it cannot be trained"
    op: str


class NoElementType(Fault, code="E0702"):
    """PyTorch has no tensors of this element type."""

    message = "torch has no element type {element_type}"
    element_type: str


class NotATensor(Fault, code="E0703"):
    """An op reads or makes a sequence, an optional or a sparse value; programs for PyTorch hold tensors only."""

    message = "{op}: {type} is no tensor; programs for torch hold tensors only"
    op: str
    type: str


class ShapeNeeded(Fault, code="E0704"):
    """A dimension of a tensor is a symbol or unknown, where a statement of PyTorch needs the number."""

    message = "{op}: a program for torch needs the shape of {type}"
    hint = "bind symbolic dimensions by --dim NAME=NUMBER"
    op: str
    type: str


class RankNeeded(Fault, code="E0705"):
    """The number of dimensions of a tensor is unknown, where a statement of PyTorch depends on it."""

    message = "{op}: a program for torch needs the rank of its operands and results"
    op: str


class AttributeNotWritten(Fault, code="E0706"):
    """PyTorch has no counterpart of an op with this value of an attribute."""

    message = "{op}: {attribute} '{value}' is not written for torch; expected one of: {expected}"
    op: str
    attribute: str
    value: str
    expected: tuple[str, ...]


class TooManyDimensions(Fault, code="E0707"):
    """PyTorch has convolutions and pools of 1 to 3 spatial dimensions."""

    message = "{op}: torch has it for 1 to 3 spatial dimensions, not for {dimensions}"
    op: str
    dimensions: int


class PadsNotWritten(Fault, code="E0708"):
    """A transposed convolution has pads that PyTorch's arguments cannot express."""

    message = "{op}: torch has no transposed convolution with these pads: its result is longer by {longer}"
    op: str
    longer: str


class DilationsNotWritten(Fault, code="E0709"):
    """PyTorch has no average pool, and no pool of p-norms, with dilations."""

    message = "{op}: torch has no average pool with dilations"
    op: str


class IndicesNotWritten(Fault, code="E0710"):
    """The model uses the indices of the maxima of a max pool, which dnnc does not write for PyTorch."""

    message = "{op}: the indices of its maxima are not written for torch"
    hint = "export the model without return_indices"
    op: str


class MomentsNotWritten(Fault, code="E0711"):
    """The model uses the mean or deviation that a normalisation computed, which PyTorch's functions do not return."""

    message = "{op}: the model uses its mean or its deviation, which torch does not return"
    op: str


class AttentionNotWritten(Fault, code="E0712"):
    """An attention uses a soft cap, lengths of padding, or its scores as a result."""

    message = "{op}: soft caps, lengths of padding and scores as results are not written for torch"
    op: str


class ConstantNeeded(Fault, code="E0713"):
    """An operand that decides shapes or axes is computed, and a statement of PyTorch needs its value."""

    message = "{op}: its operand {operand} is no constant, so its form is not known"
    op: str
    operand: str


class ResizeNotWritten(Fault, code="E0714"):
    """PyTorch does not resize with this mode and these coordinates, or has no gradient of it."""

    message = "{op}: torch has no resizing of mode {mode} with coordinates {coordinates} to {shape}, or no gradient of it"
    op: str
    mode: str
    coordinates: str
    shape: str


class DropoutInTraining(Fault, code="E0715"):
    """A dropout is still an op of its own, and draws its mask; training programs read a mask instead."""

    message = "{op}: a dropout that draws its own mask is not written for torch"
    hint = "dnnc opt --passes training makes its mask an op of its own"
    op: str


class ComputedSlice(Fault, code="E0716"):
    """A slice begins where another op says, and its axes are computed too, or it leaves elements out."""

    message = "{op}: its starts are computed, so torch needs constant axes and steps of 1"
    op: str


class ConstantNotWritten(Fault, code="E0717"):
    """A constant has an element type that PyTorch does not hold."""

    message = "{op}: torch holds no constant of {type}"
    op: str
    type: str


# Writing and opening a build


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


class ManifestOfNoTraining(Fault, code="E0722"):
    """The manifest of a training build does not list its stages as dnnc writes them."""

    message = "the manifest does not describe a training build: {reason}"
    hint = REBUILD
    reason: str


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


# Checkpoints


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


# Ranks


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


class RankFailed(Fault, code="E0745"):
    """A rank ended with an error of its own, and with it the training."""

    message = "{reason}{in_place}, while {doing}"
    hint = "{advice}"
    reason: str
    place: str
    doing: str
    advice: str

    @property
    def in_place(self) -> str:
        return f" ({self.place})" if self.place else ""


class RankLost(Fault, code="E0746"):
    """A rank ended because another one of this host did not answer."""

    message = "it lost another rank, while {doing}"
    hint = "the others say why they ended"
    doing: str


class HostLost(Fault, code="E0747"):
    """A rank ended because one on another host did not answer."""

    message = "it lost a rank on another host, while {doing}"
    hint = "its 'dnnc train' says why; or it cannot be reached any more"
    doing: str


class RankStalled(Fault, code="E0748"):
    """A rank stood still for longer than --timeout, and others waited for it."""

    message = "it did not go on for {seconds:g} s, while {doing}"
    hint = "a longer --timeout lets it take longer"
    seconds: float
    doing: str


class RanksSilent(Fault, code="E0749"):
    """All ranks ended, and none said why."""

    message = "its ranks ended, and none says why"
    note = "{last_words}"
    last_words: str


# Hosts


class OtherNumberOfHosts(Fault, code="E0750"):
    """--nodes is not the number of hosts that the plan was made for."""

    message = "the plan is for {count} host{plural}: {hosts}"
    hint = EMULATE
    count: int
    hosts: str

    @property
    def plural(self) -> str:
        return "s" if self.count > 1 else ""


class RanksUneven(Fault, code="E0751"):
    """With --emulate all hosts take equal numbers of ranks, and --nodes does not divide the number of devices."""

    message = "{hosts} hosts cannot take equal numbers of ranks"
    hint = "the plan has {devices} devices: choose a divisor of them"
    hosts: int
    devices: int


class MeetingPlaceMissing(Fault, code="E0752"):
    """Training on several hosts needs --meet."""

    message = "hosts must know where to meet"
    hint = "give HOST:PORT of the first to all of them"


class NodeOutside(Fault, code="E0753"):
    """--node is not one of 0 to --nodes minus 1."""

    message = "this host is {node}, of {nodes} counted from 0"
    node: int
    nodes: int


class SecretMissing(Fault, code="E0754"):
    """Training on several hosts needs a secret that all of them hold."""

    message = "hosts must prove to each other that they share a secret"
    hint = f"{_MAKE_SECRET}, and give --secret dnnc.secret to each; or set {{variable}} to its text"
    variable: str


class SecretTooShort(Fault, code="E0755"):
    """The secret is so short that it could be guessed."""

    message = "a secret has at least {least} characters"
    hint = _MAKE_SECRET
    least: int


class SecretTooLong(Fault, code="E0756"):
    """The file of the secret is so long that it is likely another file."""

    message = "a secret has at most {most} bytes"
    hint = _MAKE_SECRET
    most: int


class SecretReadable(Fault, code="E0757"):
    """The permissions of the file of the secret let other users of the machine read it."""

    message = "other users of this machine may read the secret"
    hint = "chmod 600 {file}"
    file: str


class NotHostPort(Fault, code="E0758"):
    """The value of --meet is not HOST:PORT."""

    message = "it is no HOST:PORT"
    hint = "for example --meet 10.0.0.1:29500"


class HostUnknown(Fault, code="E0759"):
    """The name of the host in --meet resolves to no address."""

    message = "there is no such host: {reason}"
    reason: str


class AddressOfMany(Fault, code="E0760"):
    """The address in --meet is none of a single host: it is a wildcard, a multicast or a broadcast address."""

    message = "it stands for {meaning}"
    hint = "name the address of the first host that the others reach"
    meaning: str


class CannotListen(Fault, code="E0761"):
    """The first host cannot listen on the address in --meet."""

    message = "cannot listen there: {reason}"
    hint = "the first host (--node 0) listens on an address of its own, on a port that is free"
    reason: str


class HostWithoutSecret(Fault, code="W0762"):
    """A host connected to the first one and did not prove the secret; the first host goes on waiting for the others."""

    message = "a host at {address} tried to join and does not hold the secret of this one"
    hint = f"{_SAME_SECRET}; this one goes on waiting"
    address: str


class HostsDiffer(Fault, code="E0763"):
    """Two hosts have another build, other options, or the same --node."""

    message = "{difference}"
    hint = _ALIKE
    difference: str


class HostsMissing(Fault, code="E0764"):
    """Hosts did not come to the meeting within --timeout."""

    message = "host {hosts} did not come in time{and_strangers}"
    hint = "{secret}run 'dnnc train' with the same --nodes and --meet there; a longer --timeout lets this one wait"
    hosts: tuple[str, ...]
    strangers: tuple[str, ...]

    @property
    def and_strangers(self) -> str:
        return f"; a host at {', '.join(self.strangers)} tried to join without the secret" if self.strangers else ""

    @property
    def secret(self) -> str:
        return f"{_SAME_SECRET}; " if self.strangers else ""


class FirstHostSilent(Fault, code="E0765"):
    """Something listens at --meet, and does not greet as a first host does within --timeout."""

    message = "what listens there said nothing in time"
    hint = "does the first host (--node 0) listen there? A longer --timeout lets this one wait"


class NotAFirstHost(Fault, code="E0766"):
    """Something else than 'dnnc train' listens at --meet, or another version of it."""

    message = "what listens there is no first host of 'dnnc train'"


class FirstHostStopped(Fault, code="E0767"):
    """The first host closed the connection, or did not answer within --timeout."""

    message = "the first host did not go on"
    hint = "the first host says why, or waits for others: a longer --timeout lets this one wait"


class SecretRefused(Fault, code="E0768"):
    """The first host has another secret than this one, and refused it."""

    message = "the first host refused this one: it does not hold the same secret"
    hint = _SAME_SECRET


class FirstHostUnproven(Fault, code="E0769"):
    """What listens at --meet did not prove the secret, so this host does not join it."""

    message = "the first host does not hold the secret of this one"
    hint = _SAME_SECRET


class NoStoreTold(Fault, code="E0770"):
    """The first host proved the secret and did not say where the ranks meet: it is of another version."""

    message = "the first host does not say where the ranks meet"


class NobodyThere(Fault, code="E0771"):
    """Nobody listens at --meet within --timeout."""

    message = "nobody is there: {reason}"
    hint = "start the first host (--node 0); is its address right, and its port open?"
    reason: str


# The check


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
    hint = "plan.ir shows the ops of its gradient, '%{weight}.grad'"
    weight: str
    step: int
    difference: str
    allowed: str


class NothingCompared(Fault, code="E0776"):
    """Rounding alone changes every weight by more than a wrong plan would, so the check says nothing."""

    message = "no weight could be compared: rounding alone changes all of them"
