"""What is wrong with workloads, splits and the options of ``dnnc solve``, ``verify-plan`` and ``simulate``. Codes E13.."""

from __future__ import annotations

from ir.core.diagnostics import Fault

# Options


class BandwidthOfSplitUnknown(Fault, code="E1307"):
    """The split has replicas or groups of devices. To verify it, the bandwidth that it was made for is needed."""

    message = "the bandwidth of the links is unknown, and {reader} depends on it"
    hint = "add --bandwidth with the value that the split was made for"
    reader: str


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


# Files of splits


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
