"""What is refused when a build runs on several hosts. Codes E22."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class NoFreePort(Fault, code="E2201"):
    """A process could not listen on the address of its host at any port of the range for values between hosts."""

    message = "cannot listen on {address} at any of the ports {first} to {last}: {reason}"
    hint = "is it an address of this host? other ports: --ports FIRST-LAST"
    address: str
    first: int
    last: int
    reason: str


class NotConnected(Fault, code="E2202"):
    """A process did not reach another one of the same run at its address and port, or did not get an answer with the right
    key."""

    message = "no connection to {endpoints}"
    hint = "does a firewall keep the hosts apart? values travel by TCP between the ports of --ports"
    endpoints: tuple[str, ...]


class PartDamaged(Fault, code="E2204"):
    """The bytes of a file that a host received are not those that it asked for: a file of the build was written to
    meanwhile."""

    message = "received other bytes than those of {key}"
    hint = "was a file of the build changed meanwhile? compile it again"
    key: str


class HostGone(Fault, code="E2205"):
    """The connection to a host ended during a run: it was switched off, cut off, or its process was killed."""

    message = "host '{host}' has gone while {doing}"
    hint = "is it up, and reached from here? was its process killed, for example for lack of memory?"
    host: str
    doing: str


class HostNotBack(Fault, code="E2225"):
    """A host that was lost during a run was not there again in time."""

    message = "host '{host}' was not back in time: {reason}"
    hint = "start Ray there again, as before; --wait SECONDS waits longer"
    host: str
    reason: str


class HeadGone(Fault, code="E2226"):
    """The head of the Ray cluster, which knows its nodes, was lost during a run. Ray starts nothing again without it."""

    message = "the head of the cluster has gone, {address}"
    hint = "a run goes on without any other host, not without this one: start the cluster and the run again"
    address: str


class HostSilent(Fault, code="E2206"):
    """A host was reached and did not start its part of the run in time."""

    message = "host '{host}' has not started its processes after {seconds:g} s"
    hint = "run it again, with a longer --timeout where the machine is busy"
    host: str
    seconds: float


class FolderOfOthers(Fault, code="E2208"):
    """The folder in which a host keeps files of builds may be written to by other users, who could put other files there."""

    message = "other users may write to this folder, where files of builds are kept"
    hint = "chmod 700 it, or name another folder in XDG_CACHE_HOME"


# A cluster of Ray

TOKEN_LINES = """on each machine, before 'ray start':
  export RAY_AUTH_MODE=token
  ray get-auth-token --generate    # on the first; the others have its ~/.ray/auth_token, which others may not read"""


class PackageMissing(Fault, code="E2209"):
    """A run on several hosts needs Python packages that are not installed: Ray, which starts it there, and pyzmq, by which
    hosts exchange values."""

    message = "the Python package {package} is missing"
    hint = "pip install 'dnnc[cluster]', on each machine"
    package: str


class ClusterNotReached(Fault, code="E2210"):
    """No Ray cluster answers at the address, or this machine is none of its nodes."""

    message = "no cluster to work with: {reason}"
    hint = "'ray start --head --port=6379' on the first machine, 'ray start --address=FIRST:6379' on the others and here"
    reason: str


class ClusterWithoutToken(Fault, code="E2211"):
    """The Ray cluster asks for no token, so whoever reaches its port can run code on its machines."""

    message = "this cluster runs the code of everybody who reaches it: it asks for no token"
    hint = TOKEN_LINES


class StatedHostUnknown(Fault, code="E2212"):
    """--host states the node of a host that the build has no device on."""

    message = "the build has no device on a host '{host}'; its hosts are {hosts}"
    host: str
    hosts: tuple[str, ...]


class NodeAmbiguous(Fault, code="E2213"):
    """--host names no node of the cluster, or several."""

    message = "'{node}' names {count} nodes of the cluster, which has {nodes}"
    hint = "name a node by its address, its host name or the beginning of its id"
    node: str
    count: int
    nodes: tuple[str, ...]


class NoNodeForHost(Fault, code="E2214"):
    """No node of the cluster stands for a host, and none that is left has the cores and GPUs of the host's devices."""

    message = "no node is left for host '{host}', whose devices use {cores} cores and {gpus} GPUs; the cluster has {nodes}"
    hint = "start Ray there with --resources='{{\"host:{host}\": 1}}', or name a node: --host {host}=ADDRESS"
    host: str
    cores: int
    gpus: int
    nodes: tuple[str, ...]


class NodeForTwoHosts(Fault, code="E2215"):
    """One node is stated for several hosts of the topology, which share no memory."""

    message = "the node {node} stands for several hosts: {hosts}"
    hint = "state a node for each, or compile for one host"
    node: str
    hosts: tuple[str, ...]


class HostsChosen(Fault, code="W2216"):
    """No one stated which node stands for these hosts, so nodes with enough cores were taken."""

    message = "hosts run on nodes that suffice: {hosts}"
    hint = "--host NAME=NODE states others"
    hosts: tuple[str, ...]


class HostBusy(Fault, code="E2217"):
    """The node of a host did not start an actor in time: its cores or GPUs are taken by others."""

    message = "host '{host}' has not started anything in {seconds:g} s: its cores or GPUs may be taken"
    hint = "'ray status' shows what is in use"
    host: str
    seconds: float


class HostRefused(Fault, code="E2218"):
    """A host could not start its part of a run: dnnc is not installed there, or what it needs (files, memory) was refused."""

    message = "host '{host}' does not run dnnc: {reason}"
    hint = "is 'dnnc[cluster]' installed there, in the environment in which 'ray start' runs? has it room for the files?"
    host: str
    reason: str


class VersionsDiffer(Fault, code="E2219"):
    """A host has another version of Python, dnnc or a library than the machine that starts the run, so it may compute something
    else or not understand what it is told."""

    message = "host '{host}' has other versions: {versions}"
    hint = "install the same versions on all machines"
    host: str
    versions: tuple[str, ...]


class ProviderMissingThere(Fault, code="E2220"):
    """Devices of a host name an execution provider that the onnxruntime of its node lacks."""

    message = "devices of host '{host}' run on {provider}, and onnxruntime there has only {available}"
    hint = "install the onnxruntime that has it, on that machine"
    host: str
    provider: str
    available: tuple[str, ...]


class NotAHostAndNode(Fault, code="E2221"):
    """--host is not written as NAME=NODE, or a host is stated twice."""

    message = "found '{text}', expected NAME=NODE, each host once"
    text: str


class NotPorts(Fault, code="E2222"):
    """--ports is not written as FIRST-LAST, two ports from 1 to 65535."""

    message = "found '{text}', expected FIRST-LAST, ports from 1 to 65535"
    text: str


class CoresMissing(Fault, code="E2223"):
    """A node has fewer cores than the devices of its host use at once."""

    message = "host '{host}' has {found} cores, its devices use {needed}"
    hint = "name another node: --host {host}=NODE"
    host: str
    needed: int
    found: int


class EndpointNotReached(Fault, code="E2224"):
    """Two machines cannot exchange values: a port of the range is not reached from the other one."""

    message = "no connection between host '{host}' and {endpoint}"
    hint = "let TCP through between the machines, on the ports of --ports"
    host: str
    endpoint: str


class OnlyWithCluster(Fault, code="E2227"):
    """--host, --ports and --wait say something of a run on a cluster, and --cluster names none."""

    message = "it is of a run on several hosts"
    hint = "--cluster HOST:PORT names the cluster"


class NotWithCluster(Fault, code="E2228"):
    """The nodes of a cluster do by themselves what this option or argument states for one host."""

    message = "--cluster says where it runs, so {flags} cannot go with it"
    hint = "leave out {flags}"
    flags: tuple[str, ...]


class AnswerUnlike(Fault, code="E2229"):
    """What a host answered lacks the type or the range that every host of this version answers with."""

    message = "host '{host}' answered {found} as {field}, expected {expected}"
    hint = "is the same dnnc installed there, and is the machine in order?"
    host: str
    field: str
    found: str
    expected: str
