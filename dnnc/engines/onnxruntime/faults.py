"""What is refused when a build is written for ONNX Runtime, run and measured. Codes E06 and W06."""

from __future__ import annotations

from dnnc.engines.onnxruntime.errors import REFUSED_HINT
from ir.core.diagnostics import Fault

# Writing a build


class WeightWithoutData(Fault, code="E0601"):
    """A weight is declared with a type and no data: a plan needs no data, a program does."""

    message = "the weight is declared without data, so no program that reads it can be written"
    hint = "compile --plan-only makes the plan alone"


class WeightOfOtherSize(Fault, code="E0602"):
    """The data of a weight has more or fewer bytes than its type."""

    message = "{written} bytes of data found, {expected} expected for {type}"
    written: int
    expected: int
    type: str


class OpsetTooNew(Fault, code="E0603"):
    """The model's opset is newer than onnxruntime takes, and onnx cannot convert the model to an older one."""

    message = "the model has opset {opset}, onnxruntime takes {newest} at most; {operators} changed since: {reason}"
    hint = "export the model with opset {newest} or older"
    opset: int
    newest: int
    operators: tuple[str, ...]
    reason: str


class OpsetMissing(Fault, code="E0604"):
    """A module of IR has an ONNX op and does not say which opset of its domain it uses."""

    message = "{op} is {operator}; the module does not say which opset of that domain it uses"
    hint = "add the attribute {attribute} to the module"
    op: str
    operator: str
    attribute: str


class NotAnOnnxOp(Fault, code="E0605"):
    """A stage has an op that ONNX lacks, so it cannot be written as an ONNX model."""

    message = "{op} is {operator}, which ONNX does not have"
    hint = "only onnx ops and the comm.recv and comm.send of a stage have an ONNX form"
    op: str
    operator: str


class WeightOfUnknownShape(Fault, code="E0606"):
    """A weight is no tensor, or a dimension of it is no number."""

    message = "a weight is a tensor whose dimensions are numbers, not {type}"
    type: str


class ProgramRefused(Fault, code="E0607"):
    """ONNX Runtime does not load the program of a stage: it lacks an operator or a kernel, or finds the model invalid."""

    message = "onnxruntime refuses its program: {reason}"
    hint = "onnxruntime runs the programs; --no-load-test writes them without asking it"
    reason: str


class UnknownWeights(Fault, code="E0608"):
    """--weights has another value than its choices."""

    message = "weights '{weights}' found, one of {choices} expected"
    weights: str
    choices: tuple[str, ...]


class NoStagePrograms(Fault, code="E0609"):
    """The module was not lowered: it has no program of a stage to write."""

    message = "the module has no stage programs"
    hint = "run 'lower' before writing"


class StageOnNoDevice(Fault, code="E0610"):
    """The module was not placed: a stage is on no device, so nothing can run it."""

    message = "stage {stage} is on no device"
    hint = "run 'place' before 'lower'"
    stage: int


class ModelNotWritten(Fault, code="E0611"):
    """The system refused to write a model or its weights."""

    message = "cannot be written: {reason}"
    reason: str


class ValueNotExchanged(Fault, code="E0612"):
    """The members of a mesh cannot exchange a value: its parts have unfit shapes or an unfit element type."""

    message = "{reason}"
    reason: str


# Opening a build


class ProviderMissing(Fault, code="E0613"):
    """Device types of the build name an execution provider that the installed onnxruntime lacks."""

    message = "{who} on {provider}, and the onnxruntime of this environment has only {available}"
    hint = "{advice}"
    device_types: tuple[str, ...]
    provider: str
    available: tuple[str, ...]
    advice: str

    @property
    def who(self) -> str:
        names = ", ".join(map(repr, self.device_types))
        return f"device types {names} run" if len(self.device_types) > 1 else f"device type {names} runs"


class BuildWithoutWeights(Fault, code="E0614"):
    """The build was compiled with --weights none, so its programs refer to a file that was not written."""

    message = "this build was written without weights, so its stages cannot run"
    hint = "compile it again with weights"


class NotSoManyThreads(Fault, code="E0615"):
    """A run was asked for a negative number of threads."""

    message = "a device has at least 1 thread, or 0 for as many as it has cores; {threads} found"
    threads: int


class NoSharedMemory(Fault, code="E0616"):
    """The system does not give the shared memory by which processes hand values to each other."""

    message = "{purpose} needs {size} bytes of shared memory, which the system does not give ({reason})"
    hint = "compile for smaller microbatches"
    purpose: str
    size: int
    reason: str


class NoPipe(Fault, code="E0617"):
    """The system does not give a pipe that holds a notice for every value that may be under way between two stages."""

    message = "a cut needs a pipe of {size} bytes for what may be under way, which the system does not give ({reason})"
    hint = "compile with fewer slots in the schedule, fewer turns of replicas, or fewer tensors between stages"
    size: int
    reason: str


# Running


class NothingToRun(Fault, code="E0618"):
    """A run was given no microbatch."""

    message = "there is no microbatch to run"


class CountsTooSmall(Fault, code="E0619"):
    """A run was asked for fewer than one repetition or microbatch, or for a negative number of runs to warm up."""

    message = "--repeat and --microbatches are at least 1, --warmup at least 0"


class OtherThreads(Fault, code="E0620"):
    """A run that is to be noted as a measurement of the plan has other threads than the plan was made for."""

    message = "with --threads {threads} the run does not measure the plan, which is for {planned} on '{device}'"
    hint = "leave --threads out"
    threads: int
    planned: int
    device: str


class MicrobatchNotAlone(Fault, code="E0621"):
    """A plan for latency is measured by microbatches that do not wait for each other, so by runs of one microbatch."""

    message = "a plan for latency is measured by one microbatch at a time; this run has {microbatches} at once"
    hint = "run one microbatch; --repeat and --warmup as you like"
    microbatches: int


class PipelineNotFull(Fault, code="E0622"):
    """A run has so few microbatches that some stages idle most of the time, which says little of the plan's throughput."""

    message = "{microbatches} microbatches do not fill the pipeline, so the run does not measure the plan"
    hint = "run at least {least} microbatches"
    microbatches: int
    least: int


class CoresShared(Fault, code="W0623"):
    """Devices that the plan runs at once share the cores of this machine, so the run is slower than predicted."""

    message = "{devices} devices at once need {needed} cores ({each} each), this machine has {cores}: they take turns{members}"
    hint = "{advice}"
    devices: int
    needed: int
    least: int
    most: int
    cores: int
    meshes: int
    threads: int

    @property
    def each(self) -> str:
        return f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"

    @property
    def members(self) -> str:
        waiting = ", and at each collective members wait for others that do not run, many times as long as predicted"
        return waiting if self.meshes else ""

    @property
    def advice(self) -> str:
        return "use fewer --threads" if self.threads > 1 else "compile for fewer devices, or run on more cores"


class MachineWasBusy(Fault, code="W0636"):
    """The processes of a run did not have a core each all the time that they computed, because others worked beside them."""

    message = "the machine was busy: the processes had {share} of a core each while they computed"
    hint = "these times are not those of a quiet machine, which the plan predicts"
    share: str


class RunGoesOn(Fault, code="W0637"):
    """A process of a run on several hosts was lost, or a host. The run goes on once all hosts are there."""

    message = "{what}; the run goes on once all hosts are there, within {seconds:g} s"
    hint = "--wait SECONDS waits longer, --wait 0 ends the run at once"
    what: str
    seconds: float


class StageStartedAgain(Fault, code="W0639"):
    """A process of a language model was killed on this host. All are started again and compute the caches of the answers under
    way anew."""

    message = "{what}; the stages are started again, and answers go on from the tokens that they have"
    what: str


class PlannedForOthers(Fault, code="W0624"):
    """Device types of the build are no CPUs and name no execution provider, so this machine's CPU runs in their place."""

    message = "this build is for {device_types} and runs on this machine's CPU: its predictions are of {device_types}"
    hint = 'a device type that names a provider (provider = "CUDAExecutionProvider") runs on that'
    device_types: tuple[str, ...]


class StepsAtRandom(Fault, code="W0638"):
    """'dnnc run' feeds a language model steps of random tokens at random positions; it generates nothing."""

    message = "the build is of a language model: these are single steps, of random tokens at random positions"
    hint = "'dnnc generate' answers prompts"


class ModelNotRunnable(Fault, code="E0625"):
    """ONNX Runtime has no kernel for an operator of the stage, does not know it, or does not take its element types."""

    message = "its model cannot be run: {reason}"
    hint = REFUSED_HINT
    reason: str


class ModelNotLoaded(Fault, code="E0626"):
    """The process of a device could not load the program of a stage."""

    message = "could not load its model: {reason}"
    note = "{last_words}"
    hint = "{advice}"
    reason: str
    last_words: str
    machine: str = ""

    @property
    def advice(self) -> str:
        return self.machine or "compile it again"


class StageFailed(Fault, code="E0627"):
    """The program of a stage raised an error while it ran."""

    message = "failed at microbatch {microbatch}: {reason}"
    note = "{last_words}"
    hint = "{advice}"
    microbatch: int
    reason: str
    last_words: str
    machine: str = ""

    @property
    def advice(self) -> str:
        usual = "is every input what the model accepts? --inputs FILE.npz gives others; 'dnnc check' tries the unsplit model"
        return self.machine or usual


class StageEnded(Fault, code="E0628"):
    """The process of a device ended and did not say why: it was killed, crashed, or exited."""

    message = "{end} while {doing}"
    note = "{last_words}"
    hint = "{advice}"
    end: str
    doing: str
    last_words: str
    machine: str = ""

    @property
    def advice(self) -> str:
        return self.machine or "its last lines on standard error, if it wrote any, may say why"


class StageTooSlow(Fault, code="E0629"):
    """A stage spent longer on one microbatch, or on loading, than --timeout allows."""

    message = "still {doing} after {seconds:g} s; it was stopped"
    note = "{last_words}"
    hint = "give a longer --timeout if that much time is expected"
    doing: str
    seconds: float
    last_words: str


class NothingMoves(Fault, code="E0630"):
    """Every stage waits for another, longer than --timeout allows: as a rule a process was stopped from outside."""

    message = "no stage has gone on for {seconds:g} s: {states}"
    hint = "was a process stopped from outside?"
    seconds: float
    states: str


class StageSilent(Fault, code="E0631"):
    """Processes ended because another had gone, and none of them is the first: a fault of dnnc."""

    message = "ended without a word: {stages}"
    hint = "run it again; report it if it stays"
    stages: tuple[str, ...]


class InputsNotAccepted(Fault, code="E0632"):
    """The unsplit model, which is run once to measure shapes and loops, does not take the given inputs."""

    message = "the model does not run on these inputs: {reason}"
    hint = "give inputs that the model accepts"
    reason: str


class SessionClosed(Fault, code="E0633"):
    """A session was closed, and microbatches are submitted to it, or were under way."""

    message = "the session is closed"
    hint = "start another one"


class SubmittedByCallback(Fault, code="E0634"):
    """A callback of a session's future submits to the session. It runs in the thread that it would wait for."""

    message = "a callback of a future cannot ask its session"
    hint = "let a thread of your own ask, such as one of a ThreadPoolExecutor"


class NotSoManyInFlight(Fault, code="E0635"):
    """A session was asked for a negative number of microbatches in flight."""

    message = "at least 1 microbatch is in flight, or 0 for a number by the devices; {count} found"
    hint = "leave in_flight out"
    count: int
