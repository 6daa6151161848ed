"""What the command itself refuses: faults of options, and what the machine did not give. Codes E01.."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class OutOfMemory(Fault, code="E0101"):
    """The system gave the command no more memory."""

    message = "out of memory"
    hint = "try a smaller model, fewer stages, or a machine with more memory"


class LibraryNotLoaded(Fault, code="E0102"):
    """A shared library that dnnc needs cannot be loaded: it is broken, or a limit of memory or of open files is too low."""

    message = "a library cannot be loaded: {reason}"
    hint = "is there enough memory, and are enough files allowed (ulimit -v, ulimit -n)? If so, install dnnc again"
    reason: str


class RefusedBySystem(Fault, code="E0103"):
    """The operating system refused to open, read or write a file, or to start a process."""

    message = "{reason}"
    hint = "{advice}"
    reason: str
    advice: str


class NoCurrentDirectory(Fault, code="E0104"):
    """The directory that the command was started in was removed."""

    message = "the current directory was removed"
    hint = "go to another, or name whole paths"


class OutputNotWritten(Fault, code="E0105"):
    """Standard output takes no more: the disk behind it is full, or it is closed."""

    message = "cannot be written: {reason}"
    hint = "what was written to files stands"
    reason: str


class WrongArguments(Fault, code="E0106"):
    """An option or argument is not one of the command, is missing, or has a value that it cannot have."""

    message = "{reason}"
    hint = "{advice}"
    reason: str
    advice: str = ""


class InternalError(Fault, code="E0107"):
    """A bug of dnnc. The report file holds the command line, versions and the traceback."""

    message = "a fault inside dnnc, not in your input: {reason}"
    reason: str


# Options of several commands


class NotFinite(Fault, code="E0108"):
    """The value of an option is infinite or no number."""

    message = "found {found}, expected a finite number"
    found: float


class UnknownObjective(Fault, code="E0109"):
    """No plan of this command minimises such an objective."""

    message = "found '{found}', expected {known}"
    found: str
    known: tuple[str, ...]


class ObjectiveOfSolve(Fault, code="E0110"):
    """The objective is one of 'dnnc solve': it is defined for profiled workloads, not for models."""

    message = "found '{found}', expected {known}"
    hint = "'dnnc solve' minimises {found}, for profiled workloads"
    found: str
    known: tuple[str, ...]


class NotAPair(Fault, code="E0111"):
    """An option takes a name and a value, joined by =. One of them is missing."""

    message = "found '{found}', expected {expected}"
    hint = "for example {option} {example}"
    option: str
    found: str
    expected: str
    example: str


class NamedTwice(Fault, code="E0112"):
    """An option that may be repeated gives one name two values."""

    message = "'{name}' has two values: {first} and {second}"
    name: str
    first: str
    second: str


class NotAStageCount(Fault, code="E0113"):
    """--stages takes a whole number from 1 on, or auto."""

    message = "found '{found}', expected a number of stages from 1 on, or auto"
    hint = "for example --stages 2"
    found: str


class NotACount(Fault, code="E0154"):
    """--batch and --groups take a whole number from 1 on, or auto."""

    message = "found '{found}', expected a number from 1 to 1048576, or auto"
    found: str


class UnknownLimit(Fault, code="E0114"):
    """--limit raises one of a few limits by its name. There is no limit of this name."""

    message = "there is no limit '{name}'"
    hint = "the limits are {known}"
    name: str
    known: tuple[str, ...]


class NotALimit(Fault, code="E0115"):
    """A limit is a whole number of at most 18 digits."""

    message = "found '{found}' for {name}, expected a whole number of at most 18 digits"
    name: str
    found: str


class NotADimension(Fault, code="E0116"):
    """The size of a dimension is a whole number from 0 to 2^63 - 1."""

    message = "found '{found}' for {name}, expected a size from 0 to 2^63 - 1"
    name: str
    found: str


class NotARange(Fault, code="E0126"):
    """A range of sizes is LEAST..MOST, two whole numbers, the smaller one first."""

    message = "found '{found}' for {name}, expected LEAST..MOST, such as 1..512"
    name: str
    found: str


class RangeNotTaken(Fault, code="E0142"):
    """'dnnc compile' makes builds that take any size in a range. Other commands look at a model of one size."""

    message = "{name} has a range, {least} to {most}; this command takes one size"
    hint = "--dim {name}={most}"
    name: str
    least: int
    most: int


class UnknownPassToPrint(Fault, code="E0117"):
    """--print-before and --print-after name passes. There is no pass of this name."""

    message = "there is no pass '{name}'"
    hint = "{advice}"
    name: str
    advice: str


class PyTorchMissing(Fault, code="E0118"):
    """The command computes with PyTorch, which is not installed."""

    message = "a prior is trained by PyTorch, which is not installed"
    hint = "pip install 'dnnc[train]'"


# generate


class NoPrompt(Fault, code="E0148"):
    """An answer follows from a prompt."""

    message = "there is no prompt"
    hint = "--prompt TEXT --tokenizer tokenizer.json, or --ids 1,2,3"


class TokenizerNeeded(Fault, code="E0149"):
    """A text becomes tokens by the tokenizer of its model."""

    message = "a text needs a tokenizer"
    hint = "--tokenizer tokenizer.json, which lies beside the model; or the prompt as --ids 1,2,3"


class NotTokenIds(Fault, code="E0150"):
    """Token ids are whole numbers with commas between them."""

    message = "found '{found}', expected token ids such as 1,2,3"
    found: str


class TokenizerMissing(Fault, code="E0151"):
    """Texts become tokens by the library tokenizers, which is not installed."""

    message = "a tokenizer is read by the library tokenizers, which is not installed"
    hint = "pip install 'dnnc[generate]'"


class TokenizerUnreadable(Fault, code="E0152"):
    """The file is no tokenizer.json."""

    message = "it is no tokenizer: {reason}"
    hint = "expected the tokenizer.json of the model"
    reason: str


class TokenizerOfOtherModel(Fault, code="E0153"):
    """A tokenizer has tokens that the model does not know."""

    message = "the tokenizer has token {last}; the model knows {vocabulary}"
    hint = "expected the tokenizer.json of the model"
    last: int
    vocabulary: int


# inspect, zoo, simulate


class TextOrJson(Fault, code="E0119"):
    """--short and --programs print IR text. With --json a command prints one JSON object instead."""

    message = "{flag} prints IR text, which --json does not"
    hint = "leave one of them out"
    flag: str


class NoFunction(Fault, code="E0120"):
    """A module may hold machines or a plan alone. 'dnnc inspect' describes a function."""

    message = "the module has no function, so there is nothing to describe"


class NoPrograms(Fault, code="E0121"):
    """Devices get programs from the stages of a plan. The module has no stages."""

    message = "the module has no stages, so devices have no programs"
    hint = "compile it without --plan-only, or run 'dnnc opt' on it with the passes place, schedule, lower"


class WeightsOnlyDeclared(Fault, code="E0122"):
    """A model of the zoo above 2 GiB only declares its weights: there is no data to write."""

    message = "the weights ({size}) are only declared, so no file can be written"
    hint = "add ,weights=random to make them"
    size: str


class NeedsSolvedSplit(Fault, code="E0123"):
    """--workload and -t replace what a result of 'dnnc solve' names. A build holds its model and its machines."""

    message = "{flag} goes with a result of 'dnnc solve', and this is a build"
    hint = "leave {flag} out"
    flag: str


class NotWholeSteps(Fault, code="E0124"):
    """The schedule of a training step is fixed for its number of microbatches, so only whole steps can be simulated."""

    message = "--microbatches is {found}, and a training step has {step} microbatches"
    hint = "give a multiple of {step}"
    found: int
    step: int


class NotTheStep(Fault, code="E0125"):
    """The schedule holds one training step, whose number of microbatches is fixed."""

    message = "--microbatches is {found}, and the training step has {step} microbatches"
    hint = "leave --microbatches out, or compile with --microbatches {found}"
    found: int
    step: int


# topology, whatif


class ProviderMissing(Fault, code="W0126"):
    """The topology names an execution provider that the onnxruntime of this environment lacks. Plans can be made for its
    devices, but not run on them here."""

    message = "the onnxruntime of this environment lacks {provider}: such devices can be planned for, not run on"
    provider: str


class DevicesOfFile(Fault, code="E0127"):
    """--devices divides the cores of a machine that is detected. A file states its devices."""

    message = "--devices does not go with FILE, which states the devices"
    hint = "leave one of them out"


class NotATopologyName(Fault, code="E0128"):
    """A topology's name is a letter or _, then letters, digits, _ . and -."""

    message = "found '{found}', expected letters, digits, _ . and -, and a letter or _ first"
    found: str


class NotATomlFile(Fault, code="E0129"):
    """Topologies are written as TOML, into a file that ends in .toml."""

    message = "found '{found}', expected a file that ends in .toml"
    found: str


class NotAnAddition(Fault, code="E0130"):
    """--add takes a device type, or a type and how many devices of it to add."""

    message = "found '{found}', expected TYPE or TYPE:N, with N from 1 to {most}"
    hint = "for example --add core:2"
    found: str
    most: int


# solve, verify-plan


class SplitIsWrong(Fault, code="E0131"):
    """A split breaks a rule of its workload: a load, a memory, colocation, contiguity or coverage is not as it must be."""

    message = "{violation}"
    hint = "{advice}"
    violation: str
    advice: str


class NoReplicasInFormat(Fault, code="E0132"):
    """The reference's result format has one row a device, each with its own ops. It cannot state a stage on several devices."""

    message = "the reference's format cannot state replicas of a stage"
    hint = "use --json, or one device per stage"


class NotAQuantity(Fault, code="E0133"):
    """An option takes a size or a rate with its unit."""

    message = "{reason}"
    reason: str


class NotAHierarchy(Fault, code="E0134"):
    """--hierarchy takes a number of groups and the number of accelerators in each."""

    message = "found '{found}', expected GROUPSxSIZE, such as 4x8"
    found: str


class TooManyAccelerators(Fault, code="E0135"):
    """--hierarchy describes more accelerators than a plan may have."""

    message = "found {found} accelerators, expected at most {most}"
    found: int
    most: int


class NoBandwidth(Fault, code="E0136"):
    """A bandwidth is above 0: transfers over it take bytes / bandwidth seconds."""

    message = "found '{found}', expected a bandwidth above 0"
    found: str


# train


class TooFewSteps(Fault, code="E0139"):
    """A row of --runs is a median of steps without the first, which is slower than the others."""

    message = "a row needs at least {least} steps: the first one is slower than the others"
    hint = "add --steps {least}"
    least: int


class NotWithCheck(Fault, code="E0140"):
    """--check trains from the weights of the build, on this host, and writes nothing."""

    message = "--check trains from the build's weights on this host and writes nothing, so {flags} cannot go with it"
    hint = "leave out {flags}"
    flags: tuple[str, ...]


class OnlyWithNodes(Fault, code="E0155"):
    """--meet and --secret say how the hosts of a training find each other, and there is one host."""

    message = "it is of a training on several hosts"
    hint = "--nodes N says how many"


class ProvesAllInputs(Fault, code="E0144"):
    """--prove shows something for all inputs. An option says which inputs to compare on, or how."""

    message = "--prove holds for all inputs, and compares nothing on some"
    hint = "leave it out, or leave out --prove"


class NothingToProve(Fault, code="E0145"):
    """--prove is about the programs of a build, and this option leaves them or their weights out."""

    message = "{flag} leaves out what --prove is about"
    hint = "leave out one of the two"
    flag: str


class NotOfDirectory(Fault, code="E0146"):
    """Options that say what a split of a workload is of are given with a directory, whose plan says all that."""

    message = "{options} given with a directory"
    hint = "'dnnc verify-plan DIR' reads plan.json and plan.ir alone; what is given describes the split of a workload FILE"
    given: tuple[str, ...]

    @property
    def options(self) -> str:
        return ", ".join(self.given)


class SplitMissing(Fault, code="E0147"):
    """``dnnc verify-plan`` is given a workload without a split, or with ``--search``, which is of the plan of a directory."""

    message = "it is a file, expected {expected}"
    hint = "'dnnc verify-plan FILE RESULT' verifies the split of a workload, 'dnnc verify-plan DIR --search' a compiled plan"
    expected: str
