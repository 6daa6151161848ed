"""What the process of each device does in a run, as data (JSON) that any host can carry out.

A *role* is the configuration of a process without what only the host that starts it can know: descriptors, cores and the places
of stage models in memory. ``starter.host`` fills these in.

- ``device``, ``threads``, ``optimize``, ``provider``: the device and how its programs run;
- ``cpus``: the threads of each CPU device of its host, in the order of the topology, to find which cores are its own;
- ``peers``: names of the processes that it reaches by the network, those of devices and ``STARTER``; empty on one host;
- ``lanes``: of each lane of the device's row the actions (kind, stage, offset, channel), transfers first;
- ``stages``: of each stage its number, the microbatches that it works on (``turns``: numbers and round), its ends of links, and
  either ``model`` with ``outputs``, or for a member of a mesh ``segments``, ``outputs`` and ``group``; in a build with states
  ``decoding`` (``dnnc.engines.onnxruntime.decoding.wiring``).

The end of a link is ``[transport, edge, place]`` (``transport.opening``). Its place is the number of the link in shared memory,
and between hosts that number and the name of the process at the other end. ``group`` has the collectives of a stage on a mesh,
their ``transport``, and which ``member`` the device is; where members are on several hosts, also the ends by which it
``sends`` its operands to each peer and ``receives`` theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeAlias

from dnnc.build.build import Build, StageProgram
from dnnc.build.members import MemberProgram
from dnnc.engines.onnxruntime.decoding.wiring import role_of
from dnnc.engines.onnxruntime.transport.edge_group import member_edge
from dnnc.engines.onnxruntime.transport.edges import FEEDER
from dnnc.engines.onnxruntime.transport.opening import EDGES, MEMORY, NETWORK
from dnnc.engines.onnxruntime.transport.sharing import places
from dnnc.engines.onnxruntime.transport.wiring import (
    Link,
    Place,
    output_specs,
    peers_of,
    stage_places,
    uses_of,
)
from dnnc.onnx.elements import BY_NAME
from ir.core.module import Action
from ir.ops.rows import by_turn, lanes

Role: TypeAlias = dict[str, Any]
GROUP_LINKS = 1 << 20
"""The number of the first link between members of a mesh; links of a build have smaller numbers."""
STARTER = ""
"""The name of the process that started the run, and of its host, among those of devices and of hosts."""


@dataclass(slots=True)
class _Wires:
    """The ends of links at one place. ``receives``, ``sends``: by the stage (or member of a mesh) at the other end, one for
    each turn of its replicas, or for each group that these serve, None for one that works on none of this place's microbatches;
    ``feeds``, ``sinks``: from and to the starter."""

    receives: dict[Any, list[Any]] = field(default_factory=dict)
    sends: dict[Any, list[Any]] = field(default_factory=dict)
    feeds: list[Any] = field(default_factory=list)
    sinks: list[Any] = field(default_factory=list)

    @property
    def leaving(self) -> Iterator[Any]:
        """Every end that sends."""
        yield from (end for ends in (*self.sends.values(), self.sinks) for end in ends if end)


def roles(
    build: Build, links: Sequence[Link], threads: int, optimize: bool, hosts: Mapping[str, str] | None = None
) -> list[Role]:
    """The role of each device, in the order of their stages. ``links``: those of the build, numbered by their positions;
    ``threads``: of each device, 0 for as many as its type has; ``optimize``: onnxruntime's graph optimisations; ``hosts``: that
    of each device, which is the starter's where it is not stated."""
    every = stage_places(build)
    rows = {device: _lanes(build, actions) for device, actions in build.schedule.rows}
    wires = _wires(build, links, every, hosts or {})
    numbers = count(GROUP_LINKS)
    groups = {stage.index: _groups(stage, stage.index, hosts or {}, numbers) for stage in build.stages if stage.members}
    prompts = {
        stage.index: _groups(stage, len(build.stages) + stage.index, hosts or {}, numbers)
        for stage in build.prompt
        if stage.members and build.stages[stage.index].serves
    }
    stages = [
        (place.device, _stage(build, place, of_place, groups, prompts)) for place, of_place in zip(every, wires, strict=True)
    ]
    return [
        {
            "device": device,
            "threads": build.threads(device, threads),
            "cpus": {
                cpu: build.threads(cpu, threads)
                for cpu, host in build.cpus.items()
                if hosts is None or host == build.cpus.get(device)
            },
            "optimize": optimize,
            "provider": build.provider(device).to_json(),
            "stages": [stage for of, stage in stages if of == device],
            "peers": sorted({end[2][1] for of, stage in stages if of == device for end in ends_of(stage) if end[0] == NETWORK}),
            "lanes": [[(a.kind, a.stage, a.microbatch, a.channel) for a in lane] for lane in rows[device]],
        }
        for device in dict.fromkeys(place.device for place in every)
    ]


def _lanes(build: Build, actions: Sequence[Action]) -> list[Sequence[Action]]:
    """The lanes of a row, transfers first. Stages that serve groups have lanes of their own: they may work on unlike steps."""
    stages = {action.stage for action in actions}
    apart = [{stage} for stage in sorted(stages)] if any(build.stages[stage].serves for stage in stages) else [stages]
    found = (lanes([action for action in actions if action.stage in some], build.flow.comm)[::-1] for some in apart)
    return [lane for of_stages in found for lane in of_stages]


def _wires(build: Build, links: Sequence[Link], every: Sequence[Place], hosts: Mapping[str, str]) -> list[_Wires]:
    """The ends of each place."""
    wires = [_Wires() for _ in every]
    for number, link in enumerate(links):
        source, target = (STARTER if end == FEEDER else every[end].device for end in (link.source, link.target))
        sends: Any = [MEMORY, link.sent.to_json(), number]
        receives: Any = [MEMORY, link.received.to_json(), number]
        if hosts.get(source, STARTER) != hosts.get(target, STARTER):
            sends, receives = [NETWORK, sends[1], (number, target)], [NETWORK, receives[1], (number, source)]
        if link.source == FEEDER:
            wires[link.target].feeds.append(receives)
        elif link.target == FEEDER:
            wires[link.source].sinks.append(sends)
        else:
            _note(build, wires[link.source].sends, every[link.target], sends)
            _note(build, wires[link.target].receives, every[link.source], receives)
    return wires


def _note(build: Build, ends: dict[Any, list[Any]], other: Place, end: Any) -> None:
    """Puts one end of a link among those of the stage, or of the member of a mesh, at its other end."""
    stage = build.stages[other.stage]
    if stage.members:
        ends[other.stage, other.position] = [end]
        return
    turns = stage.serves or by_turn(range(len(stage.devices)), stage.turns)
    of_stage = ends.setdefault((other.stage, -1), [None] * len(turns))
    of_stage[:] = [end if replica == other.position else before for replica, before in zip(turns, of_stage, strict=True)]


def _groups(stage: StageProgram, number: int, hosts: Mapping[str, str], numbers: Iterator[int]) -> list[dict[str, Any]]:
    """What each member of a stage knows of its collectives. ``number``: of the group; ``numbers``: of the links between
    members."""
    collectives = [collective.to_json() for collective in stage.collectives]
    of = [hosts.get(device, STARTER) for device in stage.devices]
    common: dict[str, Any] = {"collectives": collectives, "stage": number}
    if len(set(of)) == 1:
        offsets = places(stage.collectives, uses_of(stage)).to_json()
        return [{**common, "transport": MEMORY, "places": offsets, "member": member} for member in range(len(of))]
    groups = [{**common, "transport": EDGES, "member": member, "sends": [], "receives": []} for member in range(len(of))]
    for member, host in enumerate(of):
        for peer in peers_of(stage.collectives, member):
            edge, link = member_edge(stage.index, stage.collectives, member, peer).to_json(), next(numbers)
            ends: list[Any] = [[MEMORY, edge, link], [MEMORY, edge, link]]
            if host != of[peer]:
                ends = [[NETWORK, edge, (link, stage.devices[other])] for other in (peer, member)]
            groups[member]["sends"].append((peer, ends[0]))
            groups[peer]["receives"].append((member, ends[1]))
    return groups


def ends_of(stage: Mapping[str, Any]) -> Iterator[Any]:
    """Every end of a link in what a role says of a stage."""
    for ends in (*stage["receives"], *stage["sends"], stage["feeds"], stage["sinks"]):
        yield from (end for end in ends if end)
    for program in programs_of(stage):
        group = program.get("group", {})
        yield from (end for _, end in (*group.get("sends", ()), *group.get("receives", ())))


def programs_of(stage: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What a role says of a stage, and of the prompt program of a member of a mesh: ``segments`` and ``group`` of each."""
    yield stage
    if "segments" in stage and "prompt" in (told := stage.get("decoding", {})):
        yield told["prompt"]


def _stage(
    build: Build,
    place: Place,
    wires: _Wires,
    groups: Mapping[int, list[dict[str, Any]]],
    prompts: Mapping[int, list[dict[str, Any]]],
) -> dict[str, Any]:
    """What the role of a device says of one stage. ``groups``, ``prompts``: of the members of stages, in both programs."""
    stage = build.stages[place.stage]
    common = {
        "stage": place.stage,
        "turns": [place.turns.numbers, place.turns.round],
        "receives": list(wires.receives.values()),
        "sends": list(wires.sends.values()),
        "feeds": wires.feeds,
        "sinks": wires.sinks,
    }
    states = {"decoding": role_of(build, stage, place.position)} if build.decoding is not None else {}
    if not stage.members:
        specs = output_specs(build, place.stage)
        return {**common, **states, "model": stage.model, "outputs": [[s.name, s.element, s.shape] for s in specs]}
    program = stage.members[place.position]
    if stage.index in prompts:
        prompt = build.prompt[stage.index].members[place.position]
        states["decoding"]["prompt"] = {"segments": _segments(prompt), "group": prompts[stage.index][place.position]}
    leaving = {name: (name, element, shape) for end in wires.leaving for name, element, shape, _ in end[1][2]}
    return {
        **common,
        "segments": _segments(program),
        "outputs": list(leaving.values()),
        "group": groups[place.stage][place.position],
        **states,
    }


def _segments(program: MemberProgram) -> list[Any]:
    """Level, model and outputs of each segment of a member."""
    return [
        (
            segment.level,
            segment.model,
            [(v.name, BY_NAME[v.dtype].number if v.dtype in BY_NAME else 0, v.shape) for v in segment.outputs],
        )
        for segment in program.segments
    ]
