"""What the methods of ``dnnc solve`` refuse: options, workloads without a plan, and files of experts. Codes E49.."""

from __future__ import annotations

from ir.core.diagnostics import Fault

# Options


class OptionNotOfObjective(Fault, code="E4901"):
    """An option belongs to another objective or another split than those that are solved."""

    message = "{flags}: the chosen objective and split have no such option"
    hint = "{homes}"
    flags: tuple[str, ...]
    objectives: tuple[str, ...]

    @property
    def homes(self) -> str:
        return "; ".join(f"{flag} belongs to {home}" for flag, home in zip(self.flags, self.objectives, strict=True))


class UnknownSchedule(Fault, code="E4902"):
    """--schedule names none of the schedules of the objective."""

    message = "--schedule is '{schedule}', expected one of {schedules} for --objective {objective}"
    objective: str
    schedule: str
    schedules: tuple[str, ...]


class CommOnlyForThroughput(Fault, code="E4903"):
    """--comm says how compute and transfers of a device add up. Only throughput leaves that open."""

    message = "--comm belongs to --objective throughput; with --objective {objective}, {rule}"
    hint = "leave --comm out"
    objective: str

    @property
    def rule(self) -> str:
        rules = {
            "training": "the load of a device is the sum of compute and transfers",
            "pipedream": "the load of a device is the largest of compute and transfers",
            "latency": "a piece receives, computes and sends, one after another",
        }
        return rules.get(self.objective, "it has no meaning")


class MicrobatchesMissing(Fault, code="E4904"):
    """Under gpipe, memory and the averaging of gradients depend on how many microbatches lie between two flushes."""

    message = "--schedule gpipe needs the number of microbatches between two flushes"
    hint = "add --microbatches N"


class NoAccelerators(Fault, code="E4905"):
    """PipeDream's objective plans accelerators only, and the machines have none."""

    message = "--objective pipedream plans accelerators, and there are none"
    hint = "add --accelerators N"


class BandwidthUnknown(Fault, code="E4906"):
    """The cost of a transfer depends on the bandwidth of the links, which nothing states."""

    message = "the bandwidth of the links is unknown, and {reader} depends on it"
    hint = "add --bandwidth, such as 10GB/s, or links to the topology"
    reader: str


class NoBackwardNodes(Fault, code="E4907"):
    """Training is planned over forward and backward nodes, and the workload has forward nodes only."""

    message = "{workload} has no backward nodes, which --objective training needs"
    hint = "minimise --objective throughput, or pipedream if it is a PipeDream profile"
    workload: str


class UnknownMethod(Fault, code="E4908"):
    """--method names none of the methods."""

    message = "--method is '{method}', expected one of {methods}"
    method: str
    methods: tuple[str, ...]


class MethodWithoutPipeline(Fault, code="E4909"):
    """The method assigns nodes to devices without an order of stages, which PipeDream's objective is defined over."""

    message = "--method {method} makes no pipeline, which --objective pipedream needs"
    hint = "--compare shows the methods that do"
    method: str


class ExpertMissing(Fault, code="E4910"):
    """--method expert evaluates a split from a file, and no file is named."""

    message = "--method expert needs a file with the split to evaluate"
    hint = "add --expert FILE"


# Results without a plan


class NothingFits(Fault, code="E4920"):
    """It is proven that no split keeps to the memory of every device."""

    message = "no plan fits {devices} devices{memory}"
    hint = "use more devices or more memory"
    devices: int
    least_bytes: int = -1
    most_bytes: int = -1

    @property
    def memory(self) -> str:
        return _memory(self.least_bytes, self.most_bytes)


class NothingFound(Fault, code="E4921"):
    """The search ended at its time limit without a split that keeps to the memory of every device. There may be one."""

    message = "the search ended at its time limit without a plan that fits {devices} devices{memory}"
    hint = "use more devices, more memory, or a longer --time-limit"
    devices: int
    least_bytes: int = -1
    most_bytes: int = -1

    @property
    def memory(self) -> str:
        return _memory(self.least_bytes, self.most_bytes)


def _memory(least: int, most: int) -> str:
    if most < 0:
        return ""
    return f" of {most} bytes of memory" if least == most else f" of {least} to {most} bytes of memory"


class BaselineWithoutPlan(Fault, code="E4922"):
    """The baseline builds no plan at all for this workload."""

    message = "{method} has no plan: {reason}"
    hint = "--method exact finds one if there is any; --compare shows all methods"
    method: str
    reason: str


class BaselineDoesNotFit(Fault, code="E4923"):
    """The baseline builds a plan that breaks a limit, such as the memory of a device."""

    message = "{method} has no plan that fits: {broken}"
    hint = "--method exact finds one if there is any; --compare shows all methods"
    method: str
    limits: tuple[str, ...]

    @property
    def broken(self) -> str:
        return "; ".join(self.limits)


class TooManyKinds(Fault, code="E4924"):
    """The search for latency has a state for each kind of accelerator and number of pieces; these are too many."""

    message = "{reason}"
    hint = "use fewer kinds of accelerators, or fewer --pieces"
    reason: str


class LatencyNotDefined(Fault, code="E4925"):
    """The devices are not of the form that latency is defined for: accelerators, and CPUs of one kind."""

    message = "{reason}"
    reason: str


# The split of an expert


class UnknownKind(Fault, code="E4930"):
    """A device of the split is of a kind that the machines do not have."""

    message = "{device} is of kind '{kind}', expected {expected}"
    device: str
    kind: str
    known: tuple[str, ...]

    @property
    def expected(self) -> str:
        return " or ".join(self.known)


class KindWithoutDevice(Fault, code="E4931"):
    """The split uses a kind of device of which the machines have none."""

    message = "the split uses a device of kind {kind}, and there is none"
    kind: str


class UnknownNodes(Fault, code="E4932"):
    """A device of the split holds nodes that are not in the workload."""

    message = "{device} holds node {nodes}{others}, which the workload does not have"
    device: str
    nodes: tuple[str, ...]
    more: int = 0

    @property
    def others(self) -> str:
        return f" and {self.more} more" if self.more else ""


class NodesOnTwoDevices(Fault, code="E4933"):
    """Two devices of the split, which are not replicas, hold the same node."""

    message = "{device} holds node {nodes}{others}, which another device holds as well"
    hint = "devices that hold equal nodes are replicas; others share no node"
    device: str
    nodes: tuple[str, ...]
    more: int = 0

    @property
    def others(self) -> str:
        return f" and {self.more} more" if self.more else ""


class NoNodes(Fault, code="E4934"):
    """No device of the split has a node of the workload."""

    message = "no device holds a node"


class NotASplit(Fault, code="E4935"):
    """A JSON file has none of the keys under which a split lists its devices."""

    message = "the object has none of 'devices', 'fpgas' and 'cpus'"
    hint = "expected what 'dnnc solve' prints with --json or writes with -o, or a PipeDream profile with stage_id"


class NotIds(Fault, code="E4936"):
    """The nodes of a device are not a list of ids."""

    message = "{device} has no list 'nodes' of ids"
    hint = "an id is an integer or a string"
    device: str


class NotAList(Fault, code="E4937"):
    """A key of the split holds something else than a list of devices."""

    message = "'{key}' is {found}, expected a list of devices"
    key: str
    found: str


class NoStages(Fault, code="E4938"):
    """A PipeDream profile that is read as a split has no node with a stage."""

    message = "no node states its stage"
    hint = "expected a split as JSON, or a PipeDream profile whose nodes end in '-- stage_id=N'"


class ReplicasNotOfObjective(Fault, code="E4939"):
    """Several devices of the split hold the same nodes. Only PipeDream's objective has a value for that."""

    message = "the split has replicas, which only --objective pipedream can evaluate"
