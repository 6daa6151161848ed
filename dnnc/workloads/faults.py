"""What is wrong with workloads, splits and the options of ``dnnc solve``, ``verify-plan`` and ``simulate``. Codes E13.."""

from __future__ import annotations

from ir.core.diagnostics import Fault

# Options


class OptionNotOfObjective(Fault, code="E1301"):
    """An option belongs to another objective or another split than those that are solved."""

    message = "{flags}: the chosen objective and split have no such option"
    hint = "{homes}"
    flags: tuple[str, ...]
    objectives: tuple[str, ...]

    @property
    def homes(self) -> str:
        return "; ".join(f"{flag} belongs to {home}" for flag, home in zip(self.flags, self.objectives, strict=True))


class UnknownSchedule(Fault, code="E1302"):
    """--schedule names none of the schedules of the objective."""

    message = "--schedule is '{schedule}', expected one of {schedules} for --objective {objective}"
    objective: str
    schedule: str
    schedules: tuple[str, ...]


class CommOnlyForThroughput(Fault, code="E1303"):
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


class MicrobatchesMissing(Fault, code="E1304"):
    """Under gpipe, memory and the averaging of gradients depend on how many microbatches lie between two flushes."""

    message = "--schedule gpipe needs the number of microbatches between two flushes"
    hint = "add --microbatches N"


class NoAccelerators(Fault, code="E1305"):
    """PipeDream's objective plans accelerators only, and the machines have none."""

    message = "--objective pipedream plans accelerators, and there are none"
    hint = "add --accelerators N"


class BandwidthUnknown(Fault, code="E1306"):
    """The cost of a transfer depends on the bandwidth of the links, which nothing states."""

    message = "the bandwidth of the links is unknown, and {reader} depends on it"
    hint = "add --bandwidth, such as 10GB/s, or links to the topology"
    reader: str


class BandwidthOfSplitUnknown(Fault, code="E1307"):
    """The split has replicas or groups of devices. To verify it, the bandwidth that it was made for is needed."""

    message = "the bandwidth of the links is unknown, and {reader} depends on it"
    hint = "add --bandwidth with the value that the split was made for"
    reader: str


class NoBackwardNodes(Fault, code="E1308"):
    """Training is planned over forward and backward nodes, and the workload has forward nodes only."""

    message = "{workload} has no backward nodes, which --objective training needs"
    hint = "minimise --objective throughput, or pipedream if it is a PipeDream profile"
    workload: str


class BackwardNodesInInference(Fault, code="E1309"):
    """The objective is one of inference, and the workload has nodes of the backward pass."""

    message = "{workload} has backward nodes, and --objective {objective} is of inference"
    hint = "add --forward to drop them"
    workload: str
    objective: str


class ForwardOfTraining(Fault, code="E1310"):
    """--forward drops the backward nodes, over which the objective is defined."""

    message = "--forward drops the backward pass, which --objective {objective} needs"
    hint = "leave --forward out, or minimise --objective throughput"
    objective: str


class NoMethod(Fault, code="E1311"):
    """No solver is written for this objective with this split."""

    message = "no method solves --objective {objective} with --split {split}"
    hint = "there are {methods}"
    objective: str
    split: str
    methods: tuple[str, ...]


class UnknownMethod(Fault, code="E1312"):
    """--method names none of the methods."""

    message = "--method is '{method}', expected one of {methods}"
    method: str
    methods: tuple[str, ...]


class MethodWithoutPipeline(Fault, code="E1313"):
    """The method assigns nodes to devices without an order of stages, which PipeDream's objective is defined over."""

    message = "--method {method} makes no pipeline, which --objective pipedream needs"
    hint = "--compare shows the methods that do"
    method: str


class ExpertMissing(Fault, code="E1314"):
    """--method expert evaluates a split from a file, and no file is named."""

    message = "--method expert needs a file with the split to evaluate"
    hint = "add --expert FILE"


class ExpertUnused(Fault, code="E1315"):
    """--expert names a split, and nothing in the command reads it."""

    message = "--expert is read only with --method expert or --compare"
    hint = "add one of them, or leave --expert out"


class CompareWithMethod(Fault, code="E1316"):
    """--compare runs all methods, so a single one cannot be chosen beside it."""

    message = "--compare runs every method, so --method has no effect"
    hint = "leave one of them out"


class BytesWithoutTopology(Fault, code="E1317"):
    """--bytes computes the time of a transfer from its bytes and the links of a topology. There is no topology."""

    message = "--bytes needs the links of a topology"
    hint = "add -t TOPOLOGY; for the machines of the file, --bandwidth does the same"


class MachinesWithTopology(Fault, code="E1318"):
    """Options that describe equal accelerators stand beside a topology, which describes its devices itself."""

    message = "{flags}: not with a topology, which states devices, memory and links itself"
    hint = "leave out either these options or the topology"
    flags: tuple[str, ...]


class ObjectiveNotOnTopology(Fault, code="E1319"):
    """The objective is defined for equal accelerators, and the machines are the devices of a topology."""

    message = "--objective {objective} needs equal accelerators, not the devices of a topology"
    hint = "minimise {objectives} on a topology, or describe equal accelerators with --accelerators and --bandwidth"
    objective: str
    objectives: str


class SplitNotOnTopology(Fault, code="E1320"):
    """A split for PipeDream's objective is of equal accelerators. It cannot be verified against a topology."""

    message = "the split is for PipeDream's objective, which needs equal accelerators, not a topology"
    hint = "leave -t out"


class InnerBandwidthWithoutGroups(Fault, code="E1321"):
    """--inner-bandwidth is the bandwidth inside a group of accelerators, and there are no groups."""

    message = "--inner-bandwidth needs --hierarchy"
    hint = "add --hierarchy GROUPSxSIZE"


class GroupsDisagree(Fault, code="E1322"):
    """--hierarchy and --accelerators give different numbers of accelerators."""

    message = "--hierarchy has {count} accelerators, --accelerators says {accelerators}"
    hint = "leave one out"
    count: int
    accelerators: int


class GroupsWithCpus(Fault, code="E1323"):
    """Groups hold accelerators only."""

    message = "--hierarchy has groups of accelerators only, and --cpus asks for CPUs"
    hint = "leave --cpus out"


class GroupsWithBaselines(Fault, code="E1324"):
    """Baselines plan for a single bandwidth, and groups have two."""

    message = "baselines cannot plan for groups of accelerators"
    hint = "leave out either --hierarchy or --method and --compare"


class GroupBandwidthMissing(Fault, code="E1325"):
    """Groups have two bandwidths, inside a group and between groups. One of them is not stated."""

    message = "--hierarchy needs two bandwidths, inside a group and between groups"
    hint = "add {flag}"
    flag: str


class GroupBandwidthsSwapped(Fault, code="E1326"):
    """Links inside a group are at least as fast as links between groups."""

    message = "--inner-bandwidth is {inner:.6g} bytes/s, below the {between:.6g} bytes/s between groups"
    hint = "exchange --inner-bandwidth and --bandwidth"
    inner: float
    between: float


class OptionNotOfSplit(Fault, code="E1327"):
    """An option belongs to another objective than the one that the split is verified for."""

    message = "{flags}: not an option of {objective}, for which the split is verified"
    hint = "{advice}"
    flags: tuple[str, ...]
    objective: str
    objectives: tuple[str, ...]

    @property
    def advice(self) -> str:
        return "add " + " or ".join(f"--objective {name}" for name in self.objectives) if self.objectives else ""


# Machines


class AcceleratorsUnknown(Fault, code="E1330"):
    """The file states no number of accelerators, and no option does."""

    message = "the workload does not say how many accelerators there are"
    hint = "add --accelerators N, or -t TOPOLOGY"


class DevicesUnknown(Fault, code="E1331"):
    """A workload in IR text has no topology of its own, and no option names one."""

    message = "the workload does not say which devices there are"
    hint = "add -t TOPOLOGY"


class NoDevices(Fault, code="E1332"):
    """The file or the options state 0 accelerators and 0 CPUs."""

    message = "there is no device to run on"
    hint = "make --accelerators or --cpus greater than 0"


class TopologyMissing(Fault, code="E1333"):
    """The split was made for the devices of a topology, which is not given."""

    message = "the split is on the devices of topology {topology}, which is not given"
    hint = "add -t TOPOLOGY"
    topology: str


class TopologyUnused(Fault, code="E1334"):
    """The split was made for the machines that its workload states. No topology can replace these."""

    message = "the split is on the machines of its workload, not on a topology"
    hint = "leave -t out"


# Answers without a plan


class NothingFits(Fault, code="E1340"):
    """It is proven that no split keeps to the memory of every device."""

    message = "no plan fits {devices} devices{memory}"
    hint = "use more devices or more memory"
    devices: int
    least_bytes: int = -1
    most_bytes: int = -1

    @property
    def memory(self) -> str:
        return _memory(self.least_bytes, self.most_bytes)


class NothingFound(Fault, code="E1341"):
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


class BaselineWithoutPlan(Fault, code="E1342"):
    """The baseline builds no plan at all for this workload."""

    message = "{method} has no plan: {reason}"
    hint = "--method exact finds one if there is any; --compare shows all methods"
    method: str
    reason: str


class BaselineDoesNotFit(Fault, code="E1343"):
    """The baseline builds a plan that breaks a limit, such as the memory of a device."""

    message = "{method} has no plan that fits: {broken}"
    hint = "--method exact finds one if there is any; --compare shows all methods"
    method: str
    limits: tuple[str, ...]

    @property
    def broken(self) -> str:
        return "; ".join(self.limits)


class TooManyKinds(Fault, code="E1344"):
    """The search for latency has a state for each kind of accelerator and number of pieces; these are too many."""

    message = "{reason}"
    hint = "use fewer kinds of accelerators, or fewer --pieces"
    reason: str


class LatencyNotDefined(Fault, code="E1345"):
    """The devices are not of the form that latency is defined for: accelerators, and CPUs of one kind."""

    message = "{reason}"
    reason: str


# Files of splits


class UnknownKind(Fault, code="E1350"):
    """A device of the split is of a kind that the machines do not have."""

    message = "{device} is of kind '{kind}', expected {expected}"
    device: str
    kind: str
    known: tuple[str, ...]

    @property
    def expected(self) -> str:
        return " or ".join(self.known)


class KindWithoutDevice(Fault, code="E1351"):
    """The split uses a kind of device of which the machines have none."""

    message = "the split uses a device of kind {kind}, and there is none"
    kind: str


class UnknownNodes(Fault, code="E1352"):
    """A device of the split holds nodes that are not in the workload."""

    message = "{device} holds node {nodes}{others}, which the workload does not have"
    device: str
    nodes: tuple[str, ...]
    more: int = 0

    @property
    def others(self) -> str:
        return f" and {self.more} more" if self.more else ""


class NodesOnTwoDevices(Fault, code="E1353"):
    """Two devices of the split, which are not replicas, hold the same node."""

    message = "{device} holds node {nodes}{others}, which another device holds as well"
    hint = "devices that hold equal nodes are replicas; others share no node"
    device: str
    nodes: tuple[str, ...]
    more: int = 0

    @property
    def others(self) -> str:
        return f" and {self.more} more" if self.more else ""


class NoNodes(Fault, code="E1354"):
    """No device of the split has a node of the workload."""

    message = "no device holds a node"


class NotASplit(Fault, code="E1355"):
    """A JSON file has none of the keys under which a split lists its devices."""

    message = "the object has none of 'devices', 'fpgas' and 'cpus'"
    hint = "expected what 'dnnc solve' prints with --json or writes with -o, or a PipeDream profile with stage_id"


class NotIds(Fault, code="E1356"):
    """The nodes of a device are not a list of ids."""

    message = "{device} has no list 'nodes' of ids"
    hint = "an id is an integer or a string"
    device: str


class NotAList(Fault, code="E1357"):
    """A key of the split holds something else than a list of devices."""

    message = "'{key}' is {found}, expected a list of devices"
    key: str
    found: str


class NoStages(Fault, code="E1358"):
    """A PipeDream profile that is read as a split has no node with a stage."""

    message = "no node states its stage"
    hint = "expected a split as JSON, or a PipeDream profile whose nodes end in '-- stage_id=N'"


class ReplicasNotOfObjective(Fault, code="E1359"):
    """Several devices of the split hold the same nodes. Only PipeDream's objective has a value for that."""

    message = "the split has replicas, which only --objective pipedream can evaluate"


class WrongSplit(Fault, code="E1360"):
    """A split lacks a field that it must have, or a field has a value that it cannot have."""

    message = "{reason}"
    hint = "make the split again with 'dnnc solve', or correct the field"
    reason: str


class WrongWorkload(Fault, code="E1361"):
    """A field of a workload has a value that cannot be read."""

    message = "{reason}"
    reason: str


class NotAWorkload(Fault, code="E1362"):
    """A file of IR text has none of the ops that a profiled workload consists of."""

    message = "it is no profiled workload: no op is dnnc.work"
    hint = "'dnnc compile' plans models"


class IdTwice(Fault, code="E1363"):
    """Two ops of a workload in IR text state the same id."""

    message = "two nodes have the id '{id}'"
    hint = "give each node an id of its own"
    id: str


# What is simulated


class NothingToSimulate(Fault, code="E1370"):
    """The path that is to be simulated does not exist."""

    message = "no such file or directory; expected a build directory, or a split that 'dnnc solve' wrote"
    hint = "make one with 'dnnc compile MODEL -t TOPOLOGY -o DIR'"


class BuildWithoutPlan(Fault, code="E1371"):
    """plan.ir of the build holds a module without a plan."""

    message = "the module has no plan"
    hint = "make it again with 'dnnc compile --plan-only'"


_AGAIN = "make the split again with 'dnnc solve'"


class SplitWithoutWorkload(Fault, code="E1372"):
    """The file is no split, or a split that does not say which workload and objective it is for."""

    message = "the split must have the strings 'kind', its objective, and 'workload', its file"
    hint = _AGAIN


class NotObjects(Fault, code="E1373"):
    """'machines' or 'options' of the split is no JSON object."""

    message = "'machines' and 'options' must be objects"
    hint = _AGAIN


class SplitInGroups(Fault, code="E1374"):
    """The split is for groups of accelerators. Links have one bandwidth in a simulation, groups have two."""

    message = "accelerators in groups have two bandwidths, which 'dnnc simulate' does not support"


class WrongMachine(Fault, code="E1375"):
    """A field of 'machines' is unknown, or has a value that it cannot have."""

    message = "'machines' has {key} {value}"
    hint = _AGAIN
    key: str
    value: str


class NoMachines(Fault, code="E1376"):
    """'machines' of the split states no device, or a bandwidth of 0."""

    message = "'machines' has no device, or links without a bandwidth"
    hint = _AGAIN


class NodesOnUncountedCpus(Fault, code="E1377"):
    """Under latency, CPUs are unlimited: each node on a CPU has one to itself. A timeline has rows for stated devices only."""

    message = "the split has nodes on CPUs that the workload does not count, so a timeline has no row for them"


class WrongPieces(Fault, code="E1378"):
    """'pieces' of the split, the most pieces of an accelerator, is no number from 1 on."""

    message = "'pieces' must be an integer from 1 on"
    hint = _AGAIN


class ReplicasDiffer(Fault, code="E1379"):
    """Two devices state the same stage, so they are replicas, and hold different nodes."""

    message = "{device} and {other} are of one stage and hold different nodes"
    hint = _AGAIN
    device: str
    other: str


_VERIFY = "'dnnc verify-plan' lists every fault of the split"


class NodeTwice(Fault, code="E1380"):
    """A node stands in the split more than once."""

    message = "node {node} is in the split twice"
    hint = _VERIFY
    node: str


class UnknownNode(Fault, code="E1381"):
    """The split holds a node that is not in the workload."""

    message = "node {node} is in the split and not in the workload"
    hint = _VERIFY
    node: str


class NodeMissing(Fault, code="E1382"):
    """The split leaves out a node of the workload."""

    message = "node {node} is on no device"
    hint = _VERIFY
    node: str
