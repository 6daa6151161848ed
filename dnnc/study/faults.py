"""What ``calibrate``, ``profile``, ``whatif`` and files of measured runs refuse. Codes E11.."""

from __future__ import annotations

from ir.core.diagnostics import Fault

_COLUMNS = "the first line is 'build,plan,seconds', as 'dnnc run DIR --runs FILE.csv' writes it"

# Files of measured runs


class ColumnMissing(Fault, code="E1101"):
    """The first line of a CSV of measured runs must name the columns build and seconds, each once."""

    message = "expected one column '{column}' in the first line"
    hint = _COLUMNS
    column: str


class BuildNotNamed(Fault, code="E1102"):
    """A row of measured runs has an empty column build."""

    message = "the row names no build"
    hint = _COLUMNS


class BuildNotAPath(Fault, code="E1103"):
    """The column build of a row holds a text that no path can have."""

    message = "{build!r} is no path"
    hint = _COLUMNS
    build: str


class WrongSeconds(Fault, code="E1104"):
    """The column seconds of a row holds no finite number above 0."""

    message = "expected seconds as a number above 0, found '{seconds}'"
    seconds: str


class NotCsv(Fault, code="E1105"):
    """A file of measured runs cannot be read as CSV, for example because a quote is not closed."""

    message = "the file is no CSV: {reason}"
    hint = _COLUMNS
    reason: str


class RunsNotAFile(Fault, code="E1106"):
    """--runs names a folder or a device."""

    message = "it is no file"
    hint = "name a file, which may be new, ending in .csv"


class BuildNameNotText(Fault, code="E1108"):
    """The folder of the build has a name that is no valid UTF-8, so it cannot stand in a file of measured runs."""

    message = "the name of the folder is no valid text and cannot stand in a CSV"
    hint = "rename the folder"


class RunsNotWritten(Fault, code="E1109"):
    """The operating system refused to append a row to the file of measured runs."""

    message = "cannot be written: {reason}"
    reason: str


class BuildMissing(Fault, code="E1110"):
    """A row of measured runs names a build that does not exist."""

    message = "there is no build {build}"
    hint = "make it with 'dnnc compile', or leave the row out"
    build: str


class BuildWithoutMachines(Fault, code="E1111"):
    """plan.ir of the build holds no plan or no topology, so it says nothing about machines."""

    message = "the module has no plan for machines"
    hint = "plan.ir as 'dnnc compile' writes it has one"


class PlanWithoutTime(Fault, code="E1112"):
    """The plan of a build takes 0 or infinite seconds, whatever the numbers of the machines are."""

    message = "the plan of {build} takes {seconds} s, which no number of a machine changes"
    hint = "leave the row out"
    build: str
    seconds: float


class PlanChanged(Fault, code="E1113"):
    """A build was compiled anew since a row of measured runs was written: the digests of plan.ir differ."""

    message = "{build} holds another plan than the one that was measured"
    hint = "measure the build again, or leave the row out"
    build: str


# calibrate


class TooFewPlans(Fault, code="E1120"):
    """Several numbers are fitted, and the measured plans are too few to tell them apart."""

    message = "measured plans in the file: {plans}, at least {least} are needed"
    hint = "run other models and other splits: numbers that all plans use alike cannot be told apart"
    plans: int
    least: int


class TypeNotMeasured(Fault, code="E1121"):
    """No measured plan is for devices of the type whose numbers are to be fitted."""

    message = "no plan is for devices of type '{type}'"
    hint = "there are: {types}"
    type: str
    types: tuple[str, ...]


class TypesDiffer(Fault, code="E1122"):
    """The measured plans were made for device types of one name with different numbers."""

    message = "the plans state different numbers of type '{type}'"
    hint = "compile all of them for the same machines; workers of preset:cpu-N that share cores are slower than others"
    type: str


# profile and whatif


class WorkloadProfiled(Fault, code="E1130"):
    """'dnnc profile' measures the operators of a model. A profiled workload states their seconds already."""

    message = "{workload} is a profiled workload, which states its seconds"
    hint = "profile an ONNX model"
    workload: str


class TypeNotInTopology(Fault, code="E1131"):
    """--add copies a device of a type, and the topology has none of that type."""

    message = "--add {type}: the topology has no device of that type to copy"
    hint = "its types are {types}"
    type: str
    types: tuple[str, ...]


class TooManyDevices(Fault, code="E1132"):
    """'dnnc whatif' plans many subsets of the devices, whose number grows fast with the devices."""

    message = "the topology has {devices} devices; 'dnnc whatif' takes at most {most}"
    devices: int
    most: int


class CoresShared(Fault, code="E1133"):
    """Workers of a preset share the cores of this machine. Fewer workers would each be faster, which no preset states."""

    message = "{workers} workers share {cores} cores"
    hint = "state the machine: preset:cpu-{workers},cores={workers}"
    workers: int
    cores: int
