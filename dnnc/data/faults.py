"""What is refused in arrays and samples that a person gives. Codes E04.."""

from __future__ import annotations

from ir.core.diagnostics import Fault

SAVE = "make it with numpy.savez(FILE, **{'INPUT NAME': array})"
_SAVE = SAVE.replace("{", "{{").replace("}", "}}")
_INPUTS = "'dnnc inspect DIR' lists the inputs of the model"


class NotNpz(Fault, code="E0401"):
    """The file is not an ``.npz`` of numpy, or bytes of it were lost."""

    message = "the arrays cannot be read: it is not an .npz file, or damaged"
    hint = _SAVE


class BareArray(Fault, code="E0402"):
    """The file is an ``.npy``: one array without a name."""

    message = "one bare array found, an .npz of named arrays expected"
    hint = _SAVE


class EntryNotAnArray(Fault, code="E0403"):
    """An ``.npz`` holds a file that numpy did not write."""

    message = "the entry '{name}' is no array: its name does not end in .npy"
    hint = _SAVE
    name: str


class ArrayTwice(Fault, code="E0404"):
    """An ``.npz`` holds two arrays of one name."""

    message = "the array '{name}' stands twice"
    hint = _SAVE
    name: str


class ArrayEncrypted(Fault, code="E0405"):
    """An ``.npz`` is protected by a password."""

    message = "the array '{name}' is encrypted"
    hint = _SAVE
    name: str


class PythonObjects(Fault, code="E0406"):
    """An array holds pickled Python objects. To read these would run code of the file."""

    message = "the arrays cannot be read: it holds Python objects"
    hint = _SAVE


class WrongEntrySize(Fault, code="E0407"):
    """An entry of an ``.npz`` has more or fewer bytes than the shape and type in its header need."""

    message = (
        "the array '{name}' of shape {shape} and type {type} needs {needed:.6g} bytes, its entry has {size}: it is damaged"
    )
    hint = _SAVE
    name: str
    shape: str
    type: str
    needed: int
    size: int


class ArraysTooLarge(Fault, code="E0408"):
    """The arrays of a compressed ``.npz`` are far larger than the file."""

    message = "its arrays are {unpacked} bytes in a file of {size}: more than {most} are refused"
    hint = "save it with numpy.savez, not compressed"
    unpacked: int
    size: int
    most: int


class ArrayNameRefused(Fault, code="E0409"):
    """An ``.npz`` is a ZIP archive, which cannot hold an array of this name."""

    message = "an array called '{name}' cannot be written: its name is too long, or has a NUL"
    name: str


class InputsNotKept(Fault, code="E0410"):
    """The build was compiled with arrays that were too large to be kept in it, and none are given now."""

    message = "the build was compiled with --inputs, and these were too large to be kept in it"
    hint = "give them: --inputs FILE.npz; random ones: --seed 0"


class OutputIsFolder(Fault, code="E0411"):
    """A file is to be written where a folder is."""

    message = "a folder; a file was expected"
    hint = "name a file in it, ending in .npz"


class NoFolderForOutput(Fault, code="E0412"):
    """A file is to be written into a folder that does not exist."""

    message = "its folder does not exist"
    hint = "mkdir -p {folder}"
    folder: str


class UnequalMicrobatches(Fault, code="E0413"):
    """The arrays of the inputs hold different numbers of microbatches, or not as many as --microbatches says."""

    message = "the inputs do not hold equally many microbatches: {counts}{wanted}"
    hint = _INPUTS
    counts: tuple[str, ...]
    microbatches: int
    """As many as were asked for, or 0."""

    @property
    def wanted(self) -> str:
        return f", {self.microbatches} asked for" if self.microbatches else ""


class InputIsConstant(Fault, code="E0414"):
    """An array is given for a value that the model holds itself."""

    message = "'{name}' became a constant: the model has a value for it"
    hint = "leave it out; to give it in each run, compile a model whose input '{name}' has no default (no initializer)"
    name: str


class UnknownInput(Fault, code="E0415"):
    """An array is given under a name that no input of the model has."""

    message = "the model has no input '{name}'; its inputs are {expected}"
    hint = _INPUTS
    name: str
    inputs: tuple[str, ...]

    @property
    def expected(self) -> str:
        return ", ".join(f"'{name}'" for name in self.inputs) or "none"


class InputMissing(Fault, code="E0416"):
    """No array is given for an input of the model."""

    message = "input '{name}' is missing; expected {type}"
    hint = _INPUTS
    name: str
    type: str


class InputOfWrongElements(Fault, code="E0417"):
    """The elements of an array are not of the type that the model reads."""

    message = "input '{name}' has element type {found}, the model expects {expected}"
    hint = "{advice}"
    name: str
    found: str
    expected: str
    conversion: str
    """The call that converts the array, empty where numpy lacks the type."""

    @property
    def advice(self) -> str:
        return f"convert it: {self.conversion}" if self.conversion else _INPUTS


class InputOfWrongShape(Fault, code="E0418"):
    """An array has not the shape of its input, nor that of a stack of microbatches."""

    message = "input '{name}' has shape {found}, the model expects {expected}{others}"
    hint = _INPUTS
    name: str
    found: str
    expected: str
    others: str
    """Shapes of several microbatches, each after a comma."""


class SizeOutOfRange(Fault, code="E0422"):
    """A build takes the sizes that it was compiled for: --dim NAME=LEAST..MOST."""

    message = "dimension {axis} of input '{name}' is {size}, and the build takes {dimension} from {least} to {most}"
    hint = "compile the model for a wider range: --dim {dimension}=LEAST..MOST"
    name: str
    axis: int
    size: int
    dimension: str
    least: int
    most: int


class SizesDiffer(Fault, code="E0423"):
    """Dimensions of one name have one size in a microbatch."""

    message = "dimension {axis} of input '{name}' is {size}, and {dimension} is {before} in input '{other}'"
    hint = "the inputs of a microbatch have one size for each dimension"
    name: str
    axis: int
    size: int
    dimension: str
    before: int
    other: str


class InputUnreadable(Fault, code="E0419"):
    """The arrays of an input do not form its value: a part is missing, or a text is not UTF-8."""

    message = "input '{name}' cannot be read: {reason}"
    hint = _INPUTS
    name: str
    reason: str


class NoRandomValue(Fault, code="E0420"):
    """Random values are asked for, and an input is a sequence or a map, for which none are drawn."""

    message = "no random value can be made for input '{name}' of type {type}"
    hint = "give inputs in a file: --inputs FILE"
    name: str
    type: str


class IndexOutOfRange(Fault, code="E0421"):
    """An input that holds indices (rows of a table, classes) holds one that the table does not have."""

    message = "'{name}' holds {value}{place}; the model takes {low} to {high}{exception}"
    name: str
    value: int
    low: int
    high: int
    ignored: tuple[str, ...]
    """The label that does not count, if the model has one."""
    place: str
    """" in sample 5" or the like, empty for an array without dimensions."""

    @property
    def exception(self) -> str:
        return f", or {self.ignored[0]}, which is ignored" if self.ignored else ""


# Samples of training.


class UnknownSource(Fault, code="E0430"):
    """--data names neither a file nor a function."""

    message = "expected synthetic, FILE.npz, FILE.npy, a folder of such files, or module:function"


class NoNumberOfSamples(Fault, code="E0431"):
    """An input has no first dimension with a number, so that rows of a file could not be counted."""

    message = "input '{name}' is {type}: it has no number of samples"
    hint = "--data module:function"
    name: str
    type: str


class NotFinite(Fault, code="E0432"):
    """A sample holds NaN or infinity, with which training would go on in silence. Minus infinity is fine, for masks."""

    message = "{what} holds {value}{place}"
    what: str
    value: str
    place: str
    """" in sample 5" or the like, empty for an array without dimensions."""


class SampleArrayMissing(Fault, code="E0433"):
    """The file of samples has no array for an input of the model."""

    message = "it has no array '{name}'"
    hint = "the model reads {inputs}"
    name: str
    inputs: tuple[str, ...]


class SamplesOfWrongShape(Fault, code="E0434"):
    """An array of samples does not have the dimensions of its input, or fewer rows than one microbatch."""

    message = "array '{name}' has the shape {found}; expected {expected}"
    name: str
    found: str
    expected: str


class SamplesOfWrongElements(Fault, code="E0435"):
    """The elements of an array of samples are not of the type that the model reads."""

    message = "array '{name}' holds {found}; expected {expected}"
    name: str
    found: str
    expected: str


class UnequalSamples(Fault, code="E0436"):
    """The arrays of a file hold different numbers of samples."""

    message = "the arrays hold different numbers of samples: {counts}"
    hint = "rows of the same number belong together"
    counts: tuple[str, ...]


class NoFilesInFolder(Fault, code="E0450"):
    """--data names a folder without any file of samples."""

    message = "the folder has no .npz and no .npy file of an input"
    hint = (
        "samples are .npz files, each with arrays by input name, or .npy files that are called as inputs, with the name of "
        "their shard before or behind it: {example}"
    )
    example: str


class FunctionEnded(Fault, code="E0437"):
    """The function of --data yielded fewer microbatches than the steps of training need."""

    message = "it ended after {count} microbatches; training wants more"
    hint = "yield without an end, or train fewer steps"
    count: int


_FUNCTION = "name an importable module and its function"


class ModuleNotFound(Fault, code="E0438"):
    """Python finds no module of the name in --data."""

    message = "{reason}"
    hint = _FUNCTION
    reason: str


class NotAModuleName(Fault, code="E0439"):
    """What stands before the colon in --data cannot be the name of a module."""

    message = "'{name}' names no module"
    hint = _FUNCTION
    name: str


class NoSuchFunction(Fault, code="E0440"):
    """The module of --data has no function of this name."""

    message = "module '{module}' has no function '{function}'"
    hint = _FUNCTION
    module: str
    function: str


class FunctionRaised(Fault, code="E0441"):
    """The function of --data, or the import of its module, raised an exception."""

    message = "it raised {reason}{moment}"
    note = "{note_of_place}"
    reason: str
    when: str = ""
    place: str = ""
    """File and line of the person's code, empty where that is unknown."""

    @property
    def note_of_place(self) -> str:
        return f"raised at {self.place}" if self.place else ""

    @property
    def moment(self) -> str:
        return f" {self.when}" if self.when else ""


class ReturnedNoMicrobatches(Fault, code="E0442"):
    """The function of --data returned something that does not give one microbatch after another."""

    message = "it returned {found}; expected an iterable of microbatches"
    hint = "yield a dict of arrays for each"
    found: str


class YieldedNoDict(Fault, code="E0443"):
    """The function of --data, or the iterable that a program gives, yielded what is neither a dict nor a tuple of arrays."""

    message = "it yielded {found}; expected a dict of arrays by input name, or a tuple of them in the order {inputs}"
    found: str
    inputs: str


class MicrobatchLacks(Fault, code="E0444"):
    """The function of --data yielded a microbatch without an array for an input of the model."""

    message = "a microbatch lacks '{name}'"
    name: str


class YieldedNoArray(Fault, code="E0445"):
    """numpy makes no array of what the function of --data yielded, or a program gives, for an input."""

    message = "'{name}' is no array: {reason}"
    name: str
    reason: str


class YieldedWrongArray(Fault, code="E0446"):
    """The function of --data yielded an array of another shape or element type than the input."""

    message = "'{name}' is {found}; expected {expected}"
    name: str
    found: str
    expected: str


class SamplesOfOneInput(Fault, code="E0451"):
    """A single ``.npy`` holds one array, and the model reads more inputs."""

    message = "one array found; the model reads {inputs}"
    hint = "name a folder with a file for each: {inputs}, each ending in .npy; or an .npz of all"
    inputs: str


class TooFewSamples(Fault, code="E0452"):
    """The samples do not fill the batch of one step, and a smaller batch was not asked for."""

    message = "its {samples} samples do not fill the batch of a step: {batch}, {units} in each of {microbatches} microbatches"
    hint = "--last-batch use takes a smaller batch; or compile with fewer --microbatches"
    samples: int
    batch: int
    units: int
    microbatches: int


class LastBatchOfLoader(Fault, code="E0459"):
    """A loader with ``drop_last=True`` leaves the last batch of an epoch out, and ``--last-batch use`` asks for it."""

    message = "the loader leaves out the last batch of an epoch (drop_last=True), which --last-batch use asks for"
    hint = "make the loader with drop_last=False, or leave --last-batch out"


class LastBatchNotUsed(Fault, code="E0453"):
    """Programs take as many samples as they were compiled for. A smaller batch is filled up with samples that do not count,
    which needs a loss that leaves some out and nothing else that reads all samples of a microbatch together."""

    message = "the last batch of an epoch has {left} of {batch} samples, and cannot be used: {reason}"
    hint = "--last-batch drop leaves it out"
    left: int
    batch: int
    reason: str


class FileOfSamplesChanged(Fault, code="E0454"):
    """Somebody wrote to a file of samples, or replaced it, while they were used."""

    message = "the file was changed while it was used"
    hint = "train again from a checkpoint"


class NotNpy(Fault, code="E0455"):
    """The file is no ``.npy`` of numpy, or bytes of it were lost."""

    message = "the array cannot be read: it is not an .npy file, or damaged"
    hint = "make it with numpy.save(FILE, array)"


class SamplesDamaged(Fault, code="E0456"):
    """The bytes of an array do not have the checksum that the ``.npz`` has of them."""

    message = "the array '{name}' is damaged: its checksum is not that of what was written"
    name: str


class NoSamples(Fault, code="E0457"):
    """The dataset that the function of --data returned, or that a program gives, has no sample."""

    message = "it has no samples"


class OtherBatch(Fault, code="E0458"):
    """A loader deals other batches than the build takes."""

    message = "it deals batches of {found}; the build takes {batch} in a step, in {microbatches} microbatches of {units}"
    hint = "batch_size={batch}; a step is one batch, and counts once for the optimizer"
    found: int
    batch: int
    microbatches: int
    units: int


def _same_samples(source: str) -> str:
    """What helps where ``source`` gave different samples for one step."""
    if ":" in source:
        return "the same arrays each time: draw them from the seed that the function is called with"
    return "copy the file of one host"


class SamplesChanged(Fault, code="E0447"):
    """The function of --data was called again and yielded other samples than before."""

    message = "it gave other samples when it was called again"
    hint = "{advice}"
    source: str

    @property
    def advice(self) -> str:
        return _same_samples(self.source)


class RanksReadOtherSamples(Fault, code="E0448"):
    """Two ranks read different samples for one step, so that their gradients do not belong together."""

    message = "ranks were given other samples for the same step, {step}"
    hint = "{advice}"
    source: str
    step: int

    @property
    def advice(self) -> str:
        return _same_samples(self.source)


class RanksEvaluateOtherSamples(Fault, code="E0460"):
    """Two ranks read different samples in one evaluation, to which each contributes what it computes."""

    message = "ranks were given other samples for the same evaluation"
    hint = "{advice}"
    source: str

    @property
    def advice(self) -> str:
        return _same_samples(self.source)


class CheckReadOtherSamples(Fault, code="E0449"):
    """The ranks and the unsplit model, with which --check compares them, read different samples for one step."""

    message = "in step {step} ranks were given other samples than the unsplit model"
    hint = "{advice}"
    source: str
    step: int

    @property
    def advice(self) -> str:
        return _same_samples(self.source)
