"""Why a build directory is not read, written, or run on this machine; what is wrong with a plan.json. Codes E03.."""

from __future__ import annotations

from ir.core.diagnostics import Fault

REBUILD = "make it again with 'dnnc compile MODEL -t TOPOLOGY -o DIR'"
EMULATE = "--emulate runs it on one host and its CPU: the numbers are right, the seconds mean nothing"
FORM = "the file's form is that of plan.json in a build directory"
OTHER_FOLDER = "choose another output directory with -o"

# The files of a build.


class NotInManifest(Fault, code="E0301"):
    """The build needs a file that its manifest does not list."""

    message = "the manifest lists no file '{name}'"
    hint = REBUILD
    name: str


class FileChanged(Fault, code="E0302"):
    """Weights of a build were written to while the build was in use, so what was computed cannot be trusted."""

    message = "the file was changed while it was used"
    hint = "run it again once nothing writes to the build"


class NoBuildDirectory(Fault, code="E0303"):
    """There is no directory at this path."""

    message = "no such directory; expected a build directory"
    hint = REBUILD


class BuildNotOpened(Fault, code="E0304"):
    """The operating system refused to open the build directory."""

    message = "cannot be opened: {reason}"
    hint = REBUILD
    reason: str


class NotAFolderOfBuild(Fault, code="E0305"):
    """A folder inside a build is something else: a file, or a symbolic link, which is not followed there."""

    message = "found no directory '{folder}' (a symbolic link is none), expected a file of the build"
    folder: str


class SizeDiffers(Fault, code="E0306"):
    """A file of a build is longer or shorter than when it was written."""

    message = "{found} bytes found, the manifest states {expected}"
    found: int
    expected: int


class BytesDiffer(Fault, code="E0307"):
    """The SHA-256 digest of a file of a build is not the one in the manifest: the file was edited or damaged."""

    message = "its bytes are not those that were written"


class MoreFilesDiffer(Fault, code="E0308"):
    """More files of a build are missing or changed than are listed one by one."""

    message = "and {count} more files are missing or differ"
    count: int


class NoManifest(Fault, code="E0309"):
    """The directory has no manifest.json, so no build was written there."""

    message = "no manifest.json in it; expected a build directory"
    hint = REBUILD


class ManifestTooLarge(Fault, code="E0310"):
    """manifest.json is larger than any that is read."""

    message = "it has more than {limit} bytes"
    hint = REBUILD
    limit: int


class WrongSchema(Fault, code="E0311"):
    """Another version of dnnc, or another program, wrote the manifest."""

    message = "schema {found} found, '{expected}' expected"
    hint = REBUILD
    found: str
    expected: str


class FileOutsideBuild(Fault, code="E0312"):
    """The manifest lists a file that is not inside the build directory."""

    message = "file '{name}' lies outside the build directory"
    hint = REBUILD
    name: str


class InvalidFileName(Fault, code="E0313"):
    """The manifest lists a file by a name that no file of a build has."""

    message = "'{name}' cannot be the name of a file of a build"
    hint = REBUILD
    name: str


class InvalidFileEntry(Fault, code="E0314"):
    """The manifest states no size or no SHA-256 digest of a file, or an impossible one."""

    message = "expected {expected} of file '{name}', found {found}"
    hint = REBUILD
    expected: str
    name: str
    found: str


class ManifestWithoutDigest(Fault, code="E0315"):
    """The manifest has no digest of its own entries."""

    message = "the manifest states no digest of itself: an older dnnc wrote it, or it was edited"
    hint = REBUILD


class ManifestChanged(Fault, code="E0316"):
    """The entries of the manifest do not have the digest that it states: it was edited or damaged."""

    message = "the manifest is not what was written: its entries do not have the digest that it states of itself"
    hint = REBUILD


# Writing a directory.


class FolderNotWritable(Fault, code="E0317"):
    """The operating system refused to write into the parent of the output directory."""

    message = "cannot write there: {reason}"
    hint = OTHER_FOLDER
    reason: str


class NotADirectory(Fault, code="E0318"):
    """The output path is a file or a symbolic link."""

    message = "it exists and is not a directory"
    hint = OTHER_FOLDER


class ForeignDirectory(Fault, code="E0319"):
    """The output directory holds files that dnnc did not write. Replacing it would delete them."""

    message = "the directory is not empty and was not written by dnnc, so it is left alone"
    hint = OTHER_FOLDER + ", or empty this one"


class FolderNotMade(Fault, code="E0320"):
    """The operating system refused to make the output directory or one of its parents."""

    message = "the directory cannot be made: {reason}"
    hint = OTHER_FOLDER
    reason: str


# What a manifest says.


class BuildForTraining(Fault, code="E0321"):
    """The command runs inference, and the build holds a training step."""

    message = "it is a build for training"
    hint = "'dnnc train {folder}' trains it; with --check it compares the steps with those of the unsplit model"
    folder: str


class InvalidManifest(Fault, code="E0322"):
    """An entry of the manifest is missing or has a value that it cannot have."""

    message = "the manifest does not describe a build: {reason}"
    hint = REBUILD
    reason: str


class InvalidPrograms(Fault, code="E0358"):
    """What plan.ir says of machines, stages and programs lacks something that a build has."""

    message = "it does not describe a build: {reason}"
    hint = REBUILD
    reason: str


class PlanOnly(Fault, code="E0323"):
    """The directory was written with --plan-only, so there is nothing to run."""

    message = "it holds a plan only, no programs"
    hint = "compile again without --plan-only; --plan {plan} keeps this plan"
    plan: str


class TrainingPlanOnly(Fault, code="E0324"):
    """The directory holds the plan of a training step, written with --plan-only, so there is nothing to run."""

    message = "it holds a plan only, no programs"
    hint = "compile again without --plan-only, with --loss, and 'dnnc train' trains; without --objective training to run it"


class ProfilePlanOnly(Fault, code="E0325"):
    """The directory holds the plan of a profiled workload, which has no operators that could be run."""

    message = "it holds a plan only, no programs"
    hint = "its plan is of a profiled workload, which has seconds in place of operators; 'dnnc simulate' shows its timeline"


class NotOnnx(Fault, code="E0326"):
    """The model of a stage is no ONNX file."""

    message = "it is no ONNX model: {reason}"
    hint = REBUILD
    reason: str


class WeightsNotInBuild(Fault, code="E0327"):
    """The model of a stage refers to a file of weights that the manifest does not list."""

    message = "it refers to '{name}', which is no weights file of the build"
    hint = REBUILD
    name: str


class BrokenStage(Fault, code="E0328"):
    """plan.ir contradicts itself about what a stage takes and makes, or about the members of its mesh."""

    message = "stage {stage}: {reason}"
    hint = REBUILD
    stage: int
    reason: str


class NotATrainingStep(Fault, code="E0334"):
    """The command trains, and the plan is of inference."""

    message = "it is no plan of a training step"
    hint = "compile with --objective training"


class NotATensor(Fault, code="E0335"):
    """A training step would have to send a sequence, a map or an optional between devices."""

    message = "a training step exchanges tensors, not {type}"
    type: str


# This machine.


class NoCpu(Fault, code="E0336"):
    """Only CPUs are measured, and the topology has none."""

    message = "it has no CPU, and only CPUs are measured"


class SeveralHosts(Fault, code="E0337"):
    """The topology has CPUs on several hosts. One machine cannot measure the others."""

    message = "it has CPUs on {count} hosts, {hosts}, and this is one machine"
    hint = "measure each host on itself, by a topology of that host, and --merge the files; --emulate takes this one for all"
    count: int
    hosts: str


class EmulatedRun(Fault, code="E0338"):
    """``--runs`` records seconds of real machines, and this run emulates them."""

    message = "an emulated run is not recorded: the plan is for other machines"
    hint = "leave --runs out, or measure on the machines of the plan"


class OtherHosts(Fault, code="E0339"):
    """The devices of the plan are on another number of hosts than take part in this run."""

    message = "it is for {needed}, and runs on {present}"
    hint = "{advice}" + EMULATE
    needed: str
    present: str
    advice: str = ""


class NoProvider(Fault, code="E0340"):
    """Stages are on devices that are no CPU, and their type names no execution provider of ONNX Runtime."""

    message = (
        "it is for devices of type {type} ({kind}: {devices}), and here is none: "
        "its type names no execution provider that would run it"
    )
    hint = EMULATE
    type: str
    kind: str
    devices: str


class TrainingNeedsCpu(Fault, code="E0341"):
    """A training step is planned for devices that are no CPU, and ranks of a training run on CPUs only."""

    message = "it is for devices of type {type} ({kind}: {devices}), and here is none: ranks of a training run on the CPU"
    hint = EMULATE
    type: str
    kind: str
    devices: str


# plan.json.


class WrongEntry(Fault, code="E0342"):
    """An entry of plan.json is missing, has another type, or is out of range."""

    message = "expected {expected}, found {found}"
    hint = FORM
    expected: str
    found: str


class WrongPlanSchema(Fault, code="E0343"):
    """The file is no plan.json, or of a version that this dnnc does not read."""

    message = "schema {found} found, '{expected}' expected"
    hint = FORM
    found: str
    expected: str


class StageIndexTwice(Fault, code="E0344"):
    """Two stages of plan.json have one index."""

    message = "index {index} is used twice"
    hint = FORM
    index: int


class MeshWithoutSharding(Fault, code="E0345"):
    """A stage is on a mesh in a plan of schema dnnc.plan/1, or one that lost its 'sharding'."""

    message = "the stage is on a mesh, and the plan has no 'sharding'"
    hint = "plans of schema dnnc.plan/1 are replayed without meshes only: compile with the mesh again"


class TurnsBesideSharding(Fault, code="E0359"):
    """A plan with 'sharding' is replayed stage by stage on meshes, beside which replicas have one turn each."""

    message = "the stage says which replica has each turn, and the plan has 'sharding'"
    hint = "leave out 'serves', or 'sharding' where no stage is on a mesh"


class StageWithoutOps(Fault, code="E0346"):
    """Every op was moved out of a stage, and the stage is still there."""

    message = "the stage has no op"
    hint = "remove the stage and number the others 0, 1, ..."


class NoStage(Fault, code="E0347"):
    """The list of stages is empty."""

    message = "there is no stage"
    hint = FORM


class StagesNotNumbered(Fault, code="E0348"):
    """Stages of plan.json are numbered 0, 1, ... without a gap."""

    message = "stages are numbered {found}, expected 0 to {last}"
    hint = FORM
    found: str
    last: int


class ShardedPlanNeedsSum(Fault, code="E0349"):
    """A plan that splits tensors counts transfers by the model 'sum' only."""

    message = "comm '{comm}' found; of plans that split tensors, 'sum' expected"
    hint = FORM
    comm: str


class UnknownAxis(Fault, code="E0350"):
    """An entry names an axis that the mesh of its stage does not have."""

    message = "the mesh has no axis '{axis}'; it has {axes}"
    hint = FORM
    axis: str
    axes: tuple[str, ...]


class MissingAxis(Fault, code="E0351"):
    """An entry says nothing of one axis of the mesh."""

    message = "nothing is said of axis '{axis}'"
    hint = FORM
    axis: str


class WrongAxisSize(Fault, code="E0352"):
    """An axis of a mesh has more members than a mesh can have."""

    message = "axis '{axis}' has {found} members, expected 1 to {most}"
    hint = FORM
    axis: str
    found: int
    most: int


class WrongShareCount(Fault, code="E0353"):
    """An axis of a mesh needs one share for each of its members."""

    message = "{found} shares along '{axis}', an axis of {size}"
    hint = FORM
    axis: str
    found: int
    size: int


class ZeroShare(Fault, code="E0354"):
    """A member of a mesh cannot have a share of nothing."""

    message = "a share along '{axis}' is 0, expected 1 or more"
    hint = FORM
    axis: str


class EmptyName(Fault, code="E0355"):
    """An entry of plan.json has an empty name."""

    message = "a name is empty"
    hint = FORM


class ModuleWithoutPlan(Fault, code="E0356"):
    """The file is IR text, and its module has no plan."""

    message = "the module has no plan"
    hint = "plan.ir of a build has one"


class LayoutsContradictStrategies(Fault, code="E0357"):
    """A plan.ir was edited so that its strategies and its layouts disagree. One of the two edits would be lost."""

    message = "the strategies of the ops lead to other changes of layout: {reshards}"
    hint = "plan.json holds the decisions alone: edit it, and all layouts follow"
    reshards: str


class UnknownEntry(Fault, code="E0360"):
    """A stage of plan.json has an entry that no stage has, or the plan one that is much like one that it may have."""

    message = "{whose} has no entry '{name}'"
    hint = "{advice}"
    whose: str
    name: str
    closest: str

    @property
    def advice(self) -> str:
        return f"did you mean '{self.closest}'?" if self.closest else FORM


# Files of a build that are not those that were written: what helps depends on which.

EDITED = (
    "a build runs as it was written: compile the model again; an edited plan.json or plan.ir becomes a build by "
    "'dnnc compile MODEL -t TOPOLOGY --plan {plan} -o DIR2'"
)
EDITED_PLAN = (
    "it holds a plan only, no programs: 'dnnc compile MODEL -t TOPOLOGY --plan {plan} -o DIR2' without --plan-only makes a "
    "build of it, edited or not"
)
