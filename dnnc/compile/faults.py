"""What a compilation refuses before or after its passes: options that exclude each other, and missing parts. Codes E10.."""

from __future__ import annotations

from ir.core.diagnostics import Fault

# Options that exclude each other (``dnnc.compile.flags``)


class NotWithPlan(Fault, code="E1001"):
    """--plan states the stage and the device of every op, which these options decide."""

    message = "--plan states the stage and the device of every op, so {flags} cannot go with it"
    hint = "edit the plan instead"
    flags: tuple[str, ...]


class NotWithMesh(Fault, code="E1002"):
    """A mesh splits every op over devices that work together. These options place whole ops on single devices."""

    message = "--mesh splits every op over devices that work together, so {flags} cannot go with it"
    hint = "leave --mesh out to place whole ops on devices"
    flags: tuple[str, ...]


class NotWithTag(Fault, code="E1003"):
    """TAG's search decides what these options state."""

    message = "--search tag cannot go with {flags}"
    hint = "leave one of them out"
    flags: tuple[str, ...]


class NotOfProfile(Fault, code="E1004"):
    """A profiled workload has seconds in place of operators. These options are about the tensors of a model."""

    message = "a profiled workload has no tensors, so {flags} cannot go with it"
    hint = "leave {flags} out"
    flags: tuple[str, ...]


class OnlyOfTraining(Fault, code="E1005"):
    """These options shape a training step, and inference is compiled."""

    message = "{flags}: only with --objective training"
    hint = "add --objective training, or leave {flags} out"
    flags: tuple[str, ...]


class PlanOfInference(Fault, code="E1006"):
    """These options shape a training step, and --plan replays a plan of inference."""

    message = "{flags}: only with a plan of a training step, and this one is of inference"
    hint = "leave {flags} out"
    flags: tuple[str, ...]


class OnlyOfTag(Fault, code="E1007"):
    """These options steer TAG's search, and dnnc's own search is used."""

    message = "{flags}: only with --search tag"
    hint = "add --search tag, or leave {flags} out"
    flags: tuple[str, ...]


class OnlyOnMeshes(Fault, code="E1008"):
    """These options are about plans that split tensors over a mesh, and no mesh is asked for."""

    message = "{flags}: only with plans that split tensors over a mesh"
    hint = "add --mesh auto, or a shape such as --mesh 8"
    flags: tuple[str, ...]


class PlanWithoutMesh(Fault, code="E1009"):
    """--explain describes how tensors are split, and the plan that --plan replays splits none."""

    message = "--explain describes plans that split tensors, and this plan splits none"
    hint = "leave --explain out"


class CommOfMeshPlan(Fault, code="E1010"):
    """A plan on meshes adds up compute and collectives in its own way, which --comm does not change."""

    message = "--comm {comm} cannot go with a plan that splits tensors"
    hint = "leave --comm out"
    comm: str


class SamplesMisfit(Fault, code="E1025"):
    """The samples of a step are divided evenly among its microbatches."""

    message = "a step of {samples} samples cannot be divided into {what}"
    hint = "choose a number of samples that can be"
    samples: int
    what: str


class NoSamples(Fault, code="E1026"):
    """The samples of a microbatch are the first dimension of the model's first input. --samples needs it open, or known."""

    message = "the first input has no dimension for samples"
    hint = "leave --samples out, and bind the sizes with --dim"


class SyncWithoutMesh(Fault, code="E1012"):
    """--sync says how the members of a mesh add up gradients, and --mesh none has no members."""

    message = "--sync {sync} needs a mesh, which --mesh none excludes"
    hint = "leave one of them out"
    sync: str


class OptionWithoutLoss(Fault, code="E1013"):
    """What a step does with gradients, as --optimizer, --clip-norm, --recompute and some kinds of --sync say, needs a loss."""

    message = "{option} needs the gradients of a loss"
    hint = "add --loss, such as --loss mse:OUTPUT"
    option: str


# Options and their values


class NotATimeLimit(Fault, code="E1014"):
    """A time limit is a finite number of seconds, at least 0."""

    message = "found {found}, expected a finite number of seconds, at least 0"
    hint = "leave it out for the default"
    found: float


class UnknownSchedule(Fault, code="E1015"):
    """--schedule names an order of the passes of a training step. There is no order of this name."""

    message = "found '{found}', expected {known}"
    found: str
    known: tuple[str, ...]


class WrongChunks(Fault, code="E1016"):
    """interleaved has several stages on each device, and zb-v has two."""

    message = "--schedule {schedule} needs {expected} on each device"
    hint = "leave --chunks out for 2"
    schedule: str
    expected: str


# Pipelines


class PassMissing(Fault, code="E1017"):
    """An option is carried out by a pass that the pipeline of --passes lacks."""

    message = "{flags}: the pipeline has no pass '{name}', which carries them out"
    hint = "add {name} to the pipeline, or leave --passes or {flags} out"
    flags: tuple[str, ...]
    name: str


class PlanReplacesNothing(Fault, code="E1018"):
    """A plan that --plan replays stands in the place of the pass that would search for it. The pipeline lacks that pass."""

    message = "--plan replaces the pass '{name}', which the pipeline lacks"
    hint = "add {name} to the pipeline, or leave --passes out"
    name: str


class PipelineWithoutPlan(Fault, code="E1019"):
    """The pipeline of --passes ended without a plan."""

    message = "the pipeline makes no plan: {pipeline}"
    hint = "add 'partition' (or 'assign') and 'place'"
    pipeline: str


# What a training step needs


class EngineMissing(Fault, code="E1020"):
    """Programs for training run on PyTorch, and their checkpoints are safetensors files."""

    message = "programs for training run on PyTorch, and {packages} is not installed"
    hint = "pip install 'dnnc[train]', or --plan-only for a plan without programs"
    packages: tuple[str, ...]


class LossMissing(Fault, code="E1021"):
    """Programs for training minimise a loss, and none is named."""

    message = "--objective training needs a loss; the model's outputs are: {listed}"
    hint = "add one, such as --loss {example}, or --plan-only for a plan without programs"
    outputs: tuple[str, ...]
    example: str

    @property
    def listed(self) -> str:
        return ", ".join(self.outputs) or "none"


# Machines and profiles


class ProfileOfInference(Fault, code="E1022"):
    """The profile measured operators of inference, and the plan is of training, whose passes take other seconds."""

    message = "the profile measured inference, and the plan is of training"
    hint = "measure it: dnnc profile --objective training -o {file}"
    file: str


class ProfileOfTraining(Fault, code="E1023"):
    """The profile measured the passes of training, and the plan is of inference, whose operators take other seconds."""

    message = "the profile measured training, and the plan is of inference"
    hint = "measure it: dnnc profile -o {file}"
    file: str


class MadeForOtherMachines(Fault, code="E1024"):
    """The IR text holds a plan, stages, a schedule or meshes for machines that the topology does not have."""

    message = "made for other machines than {topology}: {reason}"
    hint = "take the meshes, stages, schedule and plan out of the module, or keep its own machines"
    topology: str
    reason: str


# Warnings


class StagesRecompute(Fault, code="W1025"):
    """--recompute auto: no plan fits that keeps all values for the backward pass, so forward ops run again."""

    message = "stages recompute, because without it: {reason}"
    reason: str


class NothingToExplain(Fault, code="W1026"):
    """--explain describes how tensors are split, and the best plan has stages that split none."""

    message = "some stages of the best plan split no tensors, so it cannot be explained"
    hint = "--mesh auto explains the best plan on one mesh"


class SearchCut(Fault, code="W1027"):
    """The time limit ended the search before its counted work was done, and before its plan was proven optimal."""

    message = "the time limit ended the search: this is the best plan so far"
    hint = "give more time for a plan that is the same on any machine"


class NothingSaved(Fault, code="W1028"):
    """Recomputation saves what waits for its backward pass. No device has two microbatches in flight, so nothing waits."""

    message = "forward ops run again and no memory is saved: no device has two microbatches in flight"
    hint = "leave it out, or use more stages"


class NothingDecays(Fault, code="W1032"):
    """``--no-decay`` leaves biases and normalisations out of the weight decay, and no weight has any."""

    message = "no weight decays, so there is nothing that biases and normalisations are left out of"
    hint = "--weight-decay NUMBER says how much the others decay; only adamw has a weight decay by default"


class SharesNotAnnotated(Fault, code="W1029"):
    """ONNX's sharding specs state equal parts only. The plan has unequal ones."""

    message = "ONNX cannot state unequal parts: such values have no sharding spec, but metadata 'dnnc.shares'"


class NoWeightsOfZoo(Fault, code="W1030"):
    """A model of the zoo above 2 GiB only declares its weights, so its programs have none."""

    message = "the weights are only declared: programs without weights can be inspected, but neither run nor checked"
    hint = "add ,weights=random to make them, or use --plan-only"


class NoWeights(Fault, code="W1031"):
    """The model only declares its weights, so its programs have none."""

    message = "the weights are only declared: programs without weights can be inspected, but neither run nor checked"
    hint = "--plan-only writes the plan alone"


# The update of a training step


class WrongUpdate(Fault, code="E1032"):
    """An option of the update says what no update can do: the text of a schedule or of a parameter group, or a number."""

    message = "{reason}"
    reason: str


class RangesOfInference(Fault, code="E1040"):
    """A build takes any size in a range where no layout splits the dimension, and where nothing else asks for one size."""

    message = "a range of sizes is for inference without meshes and measured inputs, and there is {found}"
    hint = "give one size: --dim {name}={most}"
    name: str
    most: int
    found: tuple[str, ...]


class WithoutContext(Fault, code="E1044"):
    """Sizes of a decoder are stated without the length of its caches."""

    message = "only with --context or --state: {flags}"
    flags: tuple[str, ...]


class StatesAlone(Fault, code="E1045"):
    """States are kept in inference, and their sizes are stated."""

    message = "states are kept in inference, with sizes that are numbers, and there is {found}"
    found: tuple[str, ...]


class AutoWithoutTokens(Fault, code="E1050"):
    """How many sequences are best is asked for, and nothing says for what."""

    message = "only with --objective tokens: {flags}"
    hint = "give a number, or --objective tokens"
    flags: tuple[str, ...]


class GroupsOfOneUser(Fault, code="E1051"):
    """The least time from token to token is that of one group alone."""

    message = "--objective token-latency plans one group of --batch sequences (1 unless told)"
    hint = "--objective tokens is for many"


class ProfileOfOneBatch(Fault, code="E1052"):
    """Measured seconds are those of one batch, and others are planned too."""

    message = "the seconds of a profile are those of one batch: state --batch and --groups"


class SizeFixed(Fault, code="E1053"):
    """A size of a decoder is asked for, and its file or --dim fixes another."""

    message = "{by} fixes the {what} to {size}, and {asked} is asked for"
    hint = "ask for {size}, or export the model with this size open"
    by: str
    what: str
    size: int
    asked: int


class IdsOfCaches(Fault, code="E1064"):
    """--role says that an input has token ids, and it has as many numbers for each sequence as a cache has positions."""

    message = "{name} cannot have the token ids: it has {size} numbers for each sequence, one for each position of the caches"
    hint = "ids are integers [batch, tokens of a step], for example {name}=mask is a mask of the caches"
    name: str
    size: int


class LengthFixed(Fault, code="W1054"):
    """The file of a decoder fixes the length of its past: numbers computed from the length cannot be told from weights."""

    message = "the file fixes the length of {name}: if it holds numbers computed from this length, the tokens will be wrong"
    hint = "export the model with this length open"
    name: str


class GenaiConfigInvalid(Fault, code="E1047"):
    """A config of a language model beside its file has a part of another kind than its readers take."""

    message = "{place} is {found}; {expected} was expected"
    hint = "correct it, or move the model to a folder without it; --state IN=OUT and --role NAME=ROLE say what it says"
    place: str
    found: str
    expected: str


class ContextOverModel(Fault, code="W1062"):
    """Caches have more positions than the model was made for, as the genai_config.json beside it says."""

    message = "the model was made for {longest} positions, and its caches have {context}: answers may be poor behind them"
    hint = "--context {longest}, or less"
    longest: int
    context: int


class NotForGenai(Fault, code="E1063"):
    """onnxruntime-genai runs stages of one host and one execution provider, with one device each, of decoders whose caches it
    knows."""

    message = "onnxruntime-genai could not run this build: {reason}"
    hint = "leave --genai out"
    reason: str


class NoPromptProgram(Fault, code="W1046"):
    """A model cannot be written for several tokens at once, so that a prompt goes token by token."""

    message = "prompts go one token at a time: there is no program for {chunk} at once: {reason}"
    hint = "--chunk 1 asks for that"
    chunk: int
    reason: str


class RoundedTogether(Fault, code="W1065"):
    """A decoder rounds activations by the largest one of the whole batch, so that an answer depends on those beside it."""

    message = "{op} rounds the tokens of all {batch} sequences of a group by their largest value: answers depend on each other"
    hint = "--batch 1 computes each as the file does, and weights of 4 bits round no activations together"
    op: str
    batch: int


class ChunkOverMemory(Fault, code="E1060"):
    """The program that takes the stated number of tokens of a prompt at once needs more memory than a device has."""

    message = "the prompt program of {chunk} tokens at once does not fit: {reason}"
    hint = "a smaller --chunk needs less; without --chunk it is halved until it fits"
    chunk: int
    reason: str


class SmallerChunk(Fault, code="W1061"):
    """The program that takes tokens of a prompt takes fewer at once, since the devices have no memory for more."""

    message = "prompts go {tokens} at a time: the program of {asked} tokens does not fit: {reason}"
    hint = "a smaller --batch, fewer --groups or more memory would leave room for longer chunks, which answer sooner"
    chunk: int
    asked: int
    reason: str

    @property
    def tokens(self) -> str:
        return "one token" if self.chunk == 1 else f"{self.chunk} tokens"


class RateFunctionMissing(Fault, code="E1033"):
    """The function that gives the learning rate's factors cannot be imported."""

    message = "'{name}' cannot be imported: {reason}"
    hint = "give module:function,steps=N; the module lies in a folder of PYTHONPATH"
    name: str
    reason: str


class RateFunctionFails(Fault, code="E1034"):
    """The function of a learning rate raised an error, or returned something else than a finite number of at least 0."""

    message = "'{name}' gives no factor for step {step}: {reason}"
    hint = "it is called with the number of steps done before, 0 for the first, and returns a factor of the learning rate"
    name: str
    step: int
    reason: str
