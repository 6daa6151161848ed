"""A Ray cluster as the hosts of a run: connects to it, finds the node of each host, and launches an agent on each.

Ray only places, starts and ends agents; values and files travel by the relays. Keys of Ray's token do not reach dnnc: Ray reads
them itself. The machine that starts a run is a node of the cluster too (``ray start``), with or without devices of the plan.

Who may connect: a cluster without token authentication runs the code of everybody who reaches its port, so it is refused, but
where all its nodes have loopback addresses. Whether it asks for a token is found out by connecting without one.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from dnnc.build.build import Build
from dnnc.build.elsewhere import device_hosts, host_addresses
from dnnc.engines.cluster.agents import offered
from dnnc.engines.cluster.nodes.actor import PACKAGES, Facts, NodeAgent, versions
from dnnc.engines.cluster.nodes.matching import HostNeeds, Node, match_hosts, nodes_again
from dnnc.engines.cluster.starting import FarProcesses, Hosts
from dnnc.engines.hosts.answers import Answers
from dnnc.engines.hosts.faults import (
    ClusterNotReached,
    ClusterWithoutToken,
    HeadGone,
    HostBusy,
    HostGone,
    HostNotBack,
    HostRefused,
    HostsChosen,
    ProviderMissingThere,
    VersionsDiffer,
)
from dnnc.engines.hosts.options import MOST_PORT, ClusterOptions
from dnnc.engines.onnxruntime.errors import StageStopped
from dnnc.engines.onnxruntime.starter.starting import RunOptions
from dnnc.onnx.providers import CPU
from ir.core.diagnostics import Diagnostic, DnncError, InvalidInput
from ir.system.child import module_environment, python_command

ACTOR_SECONDS = 60.0
"""How long a node may take to start an actor."""
_LOOK_SECONDS, _REACH_SECONDS, _GREET_SECONDS = 0.5, 4.0, 5.0
"""How often a lost host is looked for, how long its system may take to connect, and how long Ray's process there to answer.
Systems repeat a lost SYN after 1 s, and again 1 or 2 s later, so a host is given three of them."""
_MOST_LOOKS = 64
"""Nodes that are looked at at the same time."""
_WATCH_SECONDS = 5.0
"""How often a node is looked at that was asked something and has not answered yet."""
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""What a client of HTTP/2 sends first, with no settings (RFC 9113, 3.4): Ray's processes answer with settings of theirs."""
_ASKED = {
    "versions": "its actor was started and asked for versions",
    "facts": "it was asked what it has",
    "clock": "it was asked for the time",
    "listen": "it opened a port",
    "launch": "its agent was started",
}
"""What a host does while a method of ``NodeAgent`` is awaited."""
_MOST_OF_A_RESOURCE = float(1 << 62)
_WITHOUT_TOKEN = """import sys
from ray._raylet import GcsClient
GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None, timeout=10)"""
_TOKEN_ASKED = "AuthenticationError"


class RayAgents:
    """Launches agents as actors of Ray, each on the node of its host. ``kind``: the class of the actors."""

    def __init__(
        self,
        ray: Any,
        nodes: Mapping[str, Node],
        needs: Mapping[str, HostNeeds],
        where: str,
        kind: type[NodeAgent] = NodeAgent,
    ) -> None:
        self.where = where
        self._ray = ray
        self._nodes = nodes
        self._needs = needs
        self._kind = kind
        self._head = ray.get_runtime_context().gcs_address
        self.actors: dict[str, Any] = {}
        self._start()

    def _start(self) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        for name, node in self._nodes.items():
            self.actors[name] = (
                self._ray.remote(self._kind)
                .options(
                    num_cpus=min(self._needs[name].cores, node.resources.get("CPU", 0)),
                    num_gpus=self._needs[name].gpus,
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
                    max_restarts=0,
                )
                .remote()
            )

    def ask(self, host: str, method: str, *arguments: Any) -> Any:
        """What a method of a host's actor returns. Raises InvalidInput where the node does not run it."""
        return self.answers(self.begin({host: (method, *arguments)}), _ASKED[method], begun=False)[host]

    def begin(self, asked: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Asks several hosts at the same time: by host, a method and its arguments."""
        return {host: getattr(self.actors[host], method).remote(*arguments) for host, (method, *arguments) in asked.items()}

    def answers(
        self, asked: Mapping[str, Any], doing: str, seconds: float = ACTOR_SECONDS, *, begun: bool = True
    ) -> dict[str, Any]:
        """What was asked returns, by host, each within so many seconds. ``doing``: what happens meanwhile; ``begun``: whether
        the actors have run before, so that one that fails is lost. Raises as ``ask``; StageStopped for a host that has gone,
        where it had begun, and for one whose node answers nobody."""
        answers = {}
        for host, reference in asked.items():
            try:
                answers[host] = self._awaited(host, reference, doing, seconds)
            except self._ray.exceptions.RayActorError as error:
                if begun:
                    raise StageStopped(HostGone(host, doing), where=self.where) from None
                raise InvalidInput(HostRefused(host, _last_line(error)), where=self.where) from None
            except self._ray.exceptions.RayError as error:
                raise InvalidInput(HostRefused(host, _last_line(error)), where=self.where) from None
        return answers

    def _awaited(self, host: str, reference: Any, doing: str, seconds: float) -> Any:
        """What a reference stands for. Its node is looked at meanwhile: one that is stopped would be waited for in vain."""
        until = time.monotonic() + seconds
        while True:
            left = max(0.0, until - time.monotonic())
            try:
                return self._ray.get(reference, timeout=min(left, _WATCH_SECONDS))
            except self._ray.exceptions.GetTimeoutError:
                node = self._nodes[host]
                if not answers_at(node.address, node.port):
                    raise StageStopped(HostGone(host, doing), where=self.where) from None
                if left <= _WATCH_SECONDS:
                    raise InvalidInput(HostBusy(host, seconds), where=self.where) from None

    def listen(self, host: str, address: str, ports: tuple[int, int]) -> tuple[str, str]:
        """What a relay offers that a host's actor opens. Raises InvalidInput for what it refuses."""
        return offered(self.ask(host, "listen", address, ports), {"host": host, "address": address, "ports": ports})

    def unreached(self, asked: Mapping[str, Any], offers: Mapping[str, tuple[str, str]], doing: str) -> dict[str, list[str]]:
        """By host, the endpoints among ``offers`` that it has not reached, when it was asked to ``reach`` them. Raises as
        ``answers``."""
        found = {}
        for host, answer in self.answers(asked, doing).items():
            answers = Answers(host, self.where)
            found[host] = answers.items(answer, "endpoints that it does not reach")
            if strange := [one for one in found[host] if one not in [endpoint for endpoint, _ in offers.values()]]:
                raise answers.refuse(
                    "an endpoint that it does not reach", strange[0], "one of those that it was asked to reach"
                )
        return found

    def launch(self, settings: Mapping[str, Any]) -> tuple[str, str]:
        return offered(self.ask(settings["host"], "launch", settings), settings)

    def require_versions(self, packages: Sequence[str] = PACKAGES) -> None:
        """Raises InvalidInput where a host has other versions than this one."""
        asked = self.begin({name: ("versions",) for name in self.actors})
        there = self.answers(asked, _ASKED["versions"], begun=False)
        if unlike := version_faults(there, self.where, packages):
            raise InvalidInput(fault for _, fault in unlike)

    def back(self, until: float, stopped: Callable[[], bool]) -> dict[str, str]:
        head, _, port = self._head.rpartition(":")
        while True:
            if not answers_at(head, int(port)):  # Ray would wait for it, and end this process after a minute
                raise DnncError(HeadGone(self._head), where=self.where)
            found = nodes_again(self._nodes, reached(nodes_of(self._ray)))
            if not (missing := [name for name in self._nodes if name not in found]):
                break
            if stopped() or time.monotonic() >= until:
                raise StageStopped(HostNotBack(missing[0], "no node of the cluster stands for it"), where=self.where)
            time.sleep(_LOOK_SECONDS)
        self._nodes = found
        self._start()
        self.require_versions()
        return {name: node.address for name, node in found.items()}

    def close(self) -> None:
        for actor in self.actors.values():
            with contextlib.suppress(Exception):  # whatever Ray says of an actor or a node that is gone already
                self._ray.kill(actor)
        self.actors = {}


def nodes_of(ray: Any) -> tuple[Node, ...]:
    """The nodes of the cluster that Ray takes to be there, by address and id. Raises InvalidInput where its head does not tell,
    and for a node that Ray describes otherwise than it should. When a node was started ``ray.nodes()`` does not tell, and
    another version of Ray may not tell at all: it is 0 then."""
    import ray._raylet as compiled

    module: Any = compiled
    head = ray.get_runtime_context().gcs_address
    try:
        told = module.GcsClient(address=head).get_all_node_info()
        started = {id.hex(): int(getattr(info, "start_time_ms", 0)) for id, info in told.items()}
    except Exception as error:  # Ray has no common base of what it raises here
        raise InvalidInput(ClusterNotReached(_last_line(error)), where=f"--cluster {head}") from None
    nodes = (_node(node, started.get(node.get("NodeID"), 0)) for node in ray.nodes() if node.get("Alive"))
    return tuple(sorted(nodes, key=lambda node: (node.address, node.id)))


def _node(told: Mapping[str, Any], started: int) -> Node:
    names = ("NodeID", "NodeManagerAddress", "NodeManagerHostname")
    answers = Answers(str(told.get("NodeManagerHostname") or told.get("NodeID")), "the nodes of the cluster")
    id, address, hostname = (answers.text(told.get(name), name) for name in names)
    resources = answers.table(told.get("Resources"), "Resources")
    offered = {name: answers.real(value, name, 0.0, _MOST_OF_A_RESOURCE) for name, value in resources.items()}
    port = answers.integer(told.get("NodeManagerPort"), "NodeManagerPort", 0, MOST_PORT)
    return Node(id, address, hostname, offered, port, started)


def reached(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Those that answer: where a node was lost and started again just now, Ray has both for a while. No two processes listen at
    one port: of nodes with the same one, which ``ray start --node-manager-port`` states, the one that was started last is
    there."""
    by_age = sorted(nodes, key=lambda node: (node.started, node.id))
    there = {node.id for node in {(node.address, node.port): node for node in by_age}.values()}
    looked = [node for node in nodes if node.id in there]
    with ThreadPoolExecutor(_MOST_LOOKS) as pool:
        answers = pool.map(lambda node: answers_at(node.address, node.port), looked)
        return tuple(node for node, answer in zip(looked, answers, strict=True) if answer)


def answers_at(address: str, port: int) -> bool:
    """Whether a process of Ray answers there. Ray notices only after 15 s that a node has gone, and after a minute that its
    process is stopped, whose system still accepts connections. Nothing answers at what cannot be an address."""
    try:
        connection = socket.create_connection((address, port), _REACH_SECONDS)
    except (OSError, ValueError):  # UnicodeError: an empty or too long label of a name, or letters that no name has
        return False
    with connection:
        connection.settimeout(_GREET_SECONDS)
        try:
            connection.sendall(_GREETING)
            connection.recv(1)
        except TimeoutError:
            return False
        except OSError:  # it refuses what it is sent, so it is there: with TLS, for example
            pass
    return True


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


@contextmanager
def connected(address: str) -> Iterator[tuple[Any, tuple[Node, ...], str]]:
    """Ray, the nodes of the cluster, and the address of this one. A program that has connected to Ray already stays so. Raises
    InvalidInput where Ray is not installed, no cluster answers, or it asks for no token."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray as module

    ray: Any = module  # its types are of some functions alone
    where, own = f"--cluster {address}", not ray.is_initialized()
    head, _, port = address.rpartition(":")
    if port.isdecimal() and int(port) <= MOST_PORT and not answers_at(head.strip("[]"), int(port)):
        raise InvalidInput(ClusterNotReached("nothing answers there"), where=where)
    asks = _asks_for_token(address, where)
    if own:
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            ray.init(address=address, namespace="dnnc", log_to_driver=False, logging_level=logging.ERROR)
            if hasattr(ray._private.worker, "print_to_stdstream"):  # of lost workers, to standard output, which has data here
                ray._private.worker.print_to_stdstream = lambda *arguments, **options: None
        except Exception as error:  # Ray has no common base of what it raises here
            reason = str(error).strip().splitlines()
            raise InvalidInput(ClusterNotReached(reason[0] if reason else type(error).__name__), where=where) from None
        finally:
            for number, handler in before.items():
                if signal.getsignal(number) is not handler:
                    with contextlib.suppress(ValueError):  # not in the main thread
                        signal.signal(number, handler)
    try:
        nodes = reached(nodes_of(ray))
        if not asks and not all(_is_loopback(node.address) for node in nodes):
            raise InvalidInput(ClusterWithoutToken(), where=where)
        yield ray, nodes, ray.util.get_node_ip_address()
    finally:
        if own:
            ray.shutdown()


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _asks_for_token(address: str, where: str) -> bool:
    """Whether the cluster refuses those without a token: a process without one tries. Raises InvalidInput where no cluster
    answers."""
    environment = {key: value for key, value in module_environment().items() if not key.startswith("RAY_AUTH_TOKEN")}
    try:
        done = subprocess.run(
            [*python_command(), "-c", _WITHOUT_TOKEN, address],
            env={**environment, "RAY_AUTH_MODE": "disabled"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=ACTOR_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise InvalidInput(ClusterNotReached(f"no answer in {ACTOR_SECONDS:g} s"), where=where) from None
    if done.returncode and _TOKEN_ASKED not in done.stderr:
        last = [line for line in done.stderr.splitlines() if line.strip()]
        raise InvalidInput(ClusterNotReached(last[-1] if last else "no answer"), where=where)
    return done.returncode != 0


@contextmanager
def on_cluster(
    build: Build, options: RunOptions, cluster: ClusterOptions, warn: Callable[[Diagnostic], None] = lambda diagnostic: None
) -> Iterator[FarProcesses]:
    """The processes of a build on the nodes of a cluster, not started yet. ``warn`` gets which nodes were chosen for hosts that
    no one stated a node for. Raises InvalidInput and UsageError for hosts without a node, nodes with other versions, and
    providers that a node lacks."""
    where = f"--cluster {cluster.address}"
    of = device_hosts(build.files)
    needs = host_needs(build, of, options.threads)
    with connected(cluster.address) as (ray, nodes, here):
        found, chosen = match_hosts(list(needs.values()), nodes, cluster.hosts, where)
        if chosen:
            warn(HostsChosen(tuple(f"{name} = {found[name]}" for name in chosen)).at(where))
        agents = RayAgents(ray, found, needs, where)
        try:
            agents.require_versions()
            _require_providers(build, of, agents, where)
            addresses = {name: node.address for name, node in found.items()}
            yield FarProcesses(build, options, Hosts(of, addresses, here, cluster.ports, wait=cluster.wait), agents)
        finally:
            agents.close()


def host_needs(build: Build, of: Mapping[str, str], threads: int) -> dict[str, HostNeeds]:
    """What the devices of each host use, by name, in the order of the stages."""
    needs, addresses = dict[str, HostNeeds](), host_addresses(build.files)
    for device in build.devices:
        on_cpu = build.provider(device).name == CPU
        before = needs.get(of[device], HostNeeds(of[device], 0))
        cores = before.cores + build.threads(device, threads)
        needs[of[device]] = HostNeeds(of[device], cores, before.gpus + (not on_cpu), addresses.get(of[device], ""))
    return needs


def version_faults(there: Mapping[str, Any], where: str, packages: Sequence[str] = PACKAGES) -> list[tuple[str, Diagnostic]]:
    """Each host on which Python (but for its last number) or a package has another version than here, with the fault."""
    here, faults = _comparable(versions(packages)), []
    for host, answer in there.items():
        answers = Answers(host, where)
        found = {name: answers.text(text, f"version of {name}") for name, text in answers.table(answer, "versions").items()}
        known = _comparable(found)
        unlike = tuple(f"{name} {known.get(name)} (here {mine})" for name, mine in here.items() if known.get(name) != mine)
        if unlike:
            faults.append((host, VersionsDiffer(host, unlike).at(where)))
    return faults


def _comparable(found: Mapping[str, str]) -> dict[str, str]:
    return {**found, "python": ".".join(found.get("python", "").split(".")[:2])}


def _require_providers(build: Build, of: Mapping[str, str], agents: RayAgents, where: str) -> None:
    """Raises InvalidInput for each host whose onnxruntime lacks a provider of its devices."""
    wanted: dict[str, set[str]] = {}
    for device in build.devices:
        if (name := build.provider(device).name) != CPU:
            wanted.setdefault(of[device], set()).add(name)
    faults = []
    for host, names in wanted.items():
        available = Facts.read(agents.ask(host, "facts"), host, where).providers
        faults += [ProviderMissingThere(host, name, available).at(where) for name in sorted(names - set(available))]
    if faults:
        raise InvalidInput(faults)
