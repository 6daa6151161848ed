"""What is refused in files of profiled workloads, and where such a workload does not fit its devices. Codes E18.., W18.."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class UnknownFormat(Fault, code="E1801"):
    """--format names no format of workloads."""

    message = "'{format}' is no format of workloads; expected {expected}"
    format: str
    formats: tuple[str, ...]

    @property
    def expected(self) -> str:
        return " or ".join(self.formats)


class FormatNotFound(Fault, code="E1802"):
    """The text of the file is of no format of workloads."""

    message = "found neither device-placement JSON (an object) nor a PipeDream profile (lines 'node1 -- description -- ..')"
    hint = "--format takes {expected}"
    formats: tuple[str, ...]

    @property
    def expected(self) -> str:
        return " or ".join(self.formats)


class CyclicEdges(Fault, code="E1803"):
    """The edges of a workload lead from a node back to itself."""

    message = "the edges form a cycle: {nodes}"
    hint = "a workload is a graph without cycles"
    nodes: str


class TooManyBytesTogether(Fault, code="E1804"):
    """The sizes of all nodes add up to more than 64 bits count."""

    message = "all nodes together have {bytes} bytes, more than any machine has"
    bytes: int


class BandwidthNeedsBytes(Fault, code="E1805"):
    """With --bandwidth a transfer takes bytes / bandwidth seconds, and the edges of a node state seconds and no bytes."""

    message = "--bandwidth needs bytes: the edges of node {node} have a cost and no size"
    hint = "leave --bandwidth out, or give each edge a 'size'"
    node: str


class BackwardLeftOut(Fault, code="W1806"):
    """The workload holds a backward pass, and inference is planned."""

    message = "{count} backward nodes are left out: this is inference"
    count: int


# A workload on the devices of a topology.


class NoNodes(Fault, code="E1810"):
    """The profile states no node."""

    message = "the profile has no nodes, so there is nothing to plan"


class ModelOpInProfile(Fault, code="E1811"):
    """An operator of a model stands among the nodes of a profile."""

    message = "{op} stands among the nodes of a profile"
    hint = "a profile holds {work} alone, a model none"
    op: str
    work: str


class NoBackwardTimes(Fault, code="E1812"):
    """Training is planned, and the profile states no seconds of a backward pass."""

    message = "training needs backward times, and the profile states none"
    hint = "--objective throughput plans its forward pass"


class NoTypeWithSeconds(Fault, code="E1813"):
    """The profile states seconds of no device type that the topology has."""

    message = "the profile has seconds of {stated}, and the devices are of {types}"
    hint = "name a device type of the topology as the profile does"
    stated: str
    types: tuple[str, ...]


class TransferWithoutBytes(Fault, code="E1814"):
    """With --bytes a transfer takes bytes / bandwidth seconds, and a node states seconds and no bytes."""

    message = "its transfer states seconds and no bytes"
    hint = "leave --bytes out, or state how many bytes it sends"


# Device-placement JSON.


class NotAProfileObject(Fault, code="E1820"):
    """The JSON text is no object."""

    message = "expected an object with 'nodes' and 'edges', found {found}"
    found: str


class ListMissing(Fault, code="E1821"):
    """The object lacks its nodes or edges, or these are no list."""

    message = "expected a list '{key}' of objects, found {found}"
    key: str
    found: str


class NotANumber(Fault, code="E1822"):
    """A value is text where a number is expected."""

    message = "'{key}' is {found}, expected a number ({unit})"
    hint = "write it without quotes and units"
    key: str
    found: str
    unit: str


class NumberOutOfRange(Fault, code="E1823"):
    """A time or a size is negative, infinite, or too large or small for sums and products of it."""

    message = "'{key}' is {found}, expected a finite number that is at least 0 ({unit}): {range}"
    key: str
    found: str
    unit: str
    range: str


class NotACount(Fault, code="E1824"):
    """A number of devices is no whole number, or too large."""

    message = "'{key}' is {found}, expected a whole number from 0 to {most}"
    key: str
    found: str
    most: int


class TooManyBytes(Fault, code="E1825"):
    """A size is larger than any memory."""

    message = "'{key}' is {bytes}, more bytes than any machine has"
    key: str
    bytes: float


class NotAFlag(Fault, code="E1826"):
    """A value is neither true nor false."""

    message = "'{key}' is {found}, expected true, false, 1 or 0"
    key: str
    found: str


class NotAnObject(Fault, code="E1827"):
    """A node or an edge of the list is no object."""

    message = "{kind} {number} is {found}, expected an object"
    kind: str
    number: int
    found: str


class NodeWithoutId(Fault, code="E1828"):
    """A node of the list has no id, so that no edge can name it."""

    message = "node {number} has no 'id', expected a number or a text"
    number: int


class IdRefused(Fault, code="E1829"):
    """The id of a node is neither a text nor a number of 64 bits."""

    message = "node {number} has the id {found}, expected a number or a text"
    number: int
    found: str


class IdTaken(Fault, code="E1830"):
    """Two nodes have one id."""

    message = "id {id} is taken: node {first} of the list has it too"
    hint = "ids are unique"
    id: str
    first: int


class NodeWithoutTime(Fault, code="E1831"):
    """A node runs on accelerators, and how long it takes is not stated."""

    message = "node {id} has no 'fpgaLatency'"
    hint = "give it, or set supportedOnFpga to false"
    id: str


class ColorRefused(Fault, code="E1832"):
    """The colour of a node is no number."""

    message = "'colorClass' is {found}, expected a whole number"
    found: str


class EdgeWithoutEnd(Fault, code="E1833"):
    """An edge does not say where it begins or ends."""

    message = "edge {number} has no '{key}'"
    hint = "it names the id of a node"
    number: int
    key: str


class EdgeOfUnknownNode(Fault, code="E1834"):
    """An edge begins or ends at a node that does not exist."""

    message = "edge {number} names node {found}, which is not in 'nodes'"
    hint = "it names the id of a node"
    number: int
    found: str


class EdgeWithoutCost(Fault, code="E1835"):
    """An edge does not say how long its transfer takes."""

    message = "edge {number} has no 'cost'"
    hint = "0 is a cost"
    number: int


class EdgeToItself(Fault, code="E1836"):
    """An edge ends at the node where it begins."""

    message = "edge {number} leads from node {node} to itself"
    number: int
    node: str


class EdgeFromBackwardToForward(Fault, code="E1837"):
    """A node of the forward pass reads one of the backward pass."""

    message = "edge {number} leads from backward node {source} to forward node {reader}"
    hint = "the backward pass follows the forward pass"
    number: int
    source: str
    reader: str


class CostsDiffer(Fault, code="E1838"):
    """Two edges out of one node state different costs. A node sends one output, once per device."""

    message = "the cost {cost} differs from {other}, that of edge {edge} out of the same node"
    hint = "node {node} sends one output, once per device: all its edges cost the same"
    cost: float
    other: float
    edge: int
    node: str


class SizesRounded(Fault, code="W1839"):
    """Sizes of nodes have a fraction of a byte."""

    message = "the sizes of {count} nodes are no whole bytes and are rounded up"
    count: int


# PipeDream profiles.


class IndentedLineNoEdge(Fault, code="E1850"):
    """An indented line of a profile is an edge, and this one is none."""

    message = "found an indented line that is no edge"
    hint = "expected '<TAB>node1 -- node2'"


class NotALine(Fault, code="E1851"):
    """A line of a profile is neither a node nor an edge."""

    message = "found a line that is neither a node nor an edge"
    hint = "expected a node such as '{example}'"
    example: str


class NodeTwice(Fault, code="E1852"):
    """Two lines of a profile define one node."""

    message = "node '{node}' is there already, at line {line}"
    node: str
    line: int


class EdgeOfUndefinedNode(Fault, code="E1853"):
    """An edge of a profile names a node that no line defines."""

    message = "the edge names node '{node}', which is not defined"
    hint = "each node has a line of its own"
    node: str


class NodeReadsItself(Fault, code="E1854"):
    """An edge of a profile ends at the node where it begins."""

    message = "node '{node}' reads itself"
    hint = "a workload is a graph without cycles"
    node: str


class NotAField(Fault, code="E1855"):
    """A node of a profile is followed by text that is no field."""

    message = "found text that is not 'key=number'"
    hint = "expected {fields}"
    keys: tuple[str, ...]

    @property
    def fields(self) -> str:
        return ", ".join(f"{key}=.." for key in self.keys)


class UnknownKey(Fault, code="E1856"):
    """A node of a profile has a field that is none of the four."""

    message = "found the unknown key '{key}'"
    hint = "expected {keys}"
    key: str
    keys: tuple[str, ...]


class KeyTwice(Fault, code="E1857"):
    """A node of a profile has a field twice."""

    message = "'{key}' stands twice"
    key: str


class KeysMissing(Fault, code="E1858"):
    """A node of a profile lacks one of the four fields."""

    message = "node '{node}' lacks {missing}"
    hint = "expected {fields}"
    node: str
    missing: tuple[str, ...]
    keys: tuple[str, ...]

    @property
    def fields(self) -> str:
        return ", ".join(f"{key}=.." for key in self.keys)


class NegativeNumber(Fault, code="E1859"):
    """A time or a size of a node is negative."""

    message = "{key} is '{text}', which is negative"
    hint = "expected {unit}, {range}, without a unit"
    key: str
    text: str
    unit: str
    range: str


class NotAPlainNumber(Fault, code="E1860"):
    """A time or a size of a node is no number, or one that is too large or small for sums and products of it."""

    message = "{key} is '{text}', which is no plain number"
    hint = "expected {unit}, {range}, without a unit"
    key: str
    text: str
    unit: str
    range: str
