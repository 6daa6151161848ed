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


class HostSilent(Fault, code="E2206"):
    """A host was reached and did not start its part of the run in time."""

    message = "host '{host}' has not started its processes after {seconds:g} s"
    hint = "run it again, with a longer --timeout where the machine is busy"
    host: str
    seconds: float


class MeshOverHosts(Fault, code="E2207"):
    """A stage is split over devices of several hosts, whose collectives this version does not run between hosts."""

    message = "stage {stage} is split over devices of {hosts} hosts, and collectives run inside a host"
    hint = "compile with --mesh none, or with a mesh of the devices of one host"
    stage: int
    hosts: int


class FolderOfOthers(Fault, code="E2208"):
    """The folder in which a host keeps files of builds may be written to by other users, who could put other files there."""

    message = "other users may write to this folder, where files of builds are kept"
    hint = "chmod 700 it, or name another folder in XDG_CACHE_HOME"
