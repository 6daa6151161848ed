"""What the methods of ``dnnc solve`` refuse: options, and workloads without a plan. Codes E49.."""

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


class TooManyKinds(Fault, code="E4924"):
    """The search for latency has a state for each kind of accelerator and number of pieces; these are too many."""

    message = "{reason}"
    hint = "use fewer kinds of accelerators, or fewer --pieces"
    reason: str


class LatencyNotDefined(Fault, code="E4925"):
    """The devices are not of the form that latency is defined for: accelerators, and CPUs of one kind."""

    message = "{reason}"
    reason: str
