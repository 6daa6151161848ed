"""The proof of a training step: the goals of its stages, and what passes between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from dnnc.build.training import Channel, Step
from dnnc.check.proof.explain import NOT_PROVEN, REFUTED, Failure, explain
from dnnc.check.proof.model import Model
from dnnc.check.proof.programs import Line, StageText
from dnnc.check.proof.segments import Unreadable
from dnnc.check.proof.stage import Goal, StageProof, alike, completed, lines_by_channel, received_values, same_type
from dnnc.check.proof.training.model import StepModel, step_model
from dnnc.check.proof.training.rules import step_proof
from dnnc.check.proof.training.units import StepUnit, is_replicated, phase_faults, read_step_stages
from dnnc.check.proof.verdict import StageVerdict
from ir.core.facets import UPDATE, phase_of
from ir.core.module import Mesh, Program, Stage
from ir.core.ops import Op, all_reads
from ir.core.types import TensorType, Type, without_layout
from ir.ops.boxes import box, placements_of
from ir.ops.grads import ACCUMULATE, ASSIGN
from ir.ops.opdefs import is_collective

Progress = Callable[[str, float | None], None]


def prove_programs(step: Step, progress: Progress) -> tuple[tuple[StageVerdict, ...], tuple[Failure, ...]]:
    """A verdict for each stage of ``step``, and what is wrong beside them: that the programs of all members do the step that
    the entry function says, if rows run each phase as they are to."""
    faults = [Failure(REFUTED, fault, origin) for origin, fault in _faults(step)]
    if faults:
        return (), tuple(faults)
    model = step_model(step.module)
    try:
        texts = list(read_step_stages(step))
    except Unreadable as error:
        return (), (Failure(NOT_PROVEN, str(error), ""),)
    proofs = [step_proof(model.model, text) for text in texts]
    received = received_values(texts)
    verdicts = [_verdict(model, proof, received) for proof in completed(proofs, progress)]
    return tuple(verdicts), tuple(_between(step, model, proofs))


# -- what holds of the texts alone -------------------------------------------------------------------------------------


def _faults(step: Step) -> Iterator[tuple[str, str]]:
    """What the phases, means and buckets of the entry function and of the programs do not allow, each with its place."""
    entry = step.module.entry
    for fault in phase_faults(entry.ops, (arg.name for arg in entry.args), (value.name for value in entry.results)):
        yield entry.name, fault
    yield from ((entry.name, fault) for fault in _means(entry.ops, step.microbatches))
    stages = {stage.name: stage for stage in step.stages}
    for program in step.module.of_type(Program):
        if program.stage in stages:
            args, results = ((value.name for value in values) for values in (program.args, program.results))
            for fault in phase_faults(program.ops, args, results, is_replicated(stages[program.stage])):
                yield program.name, fault
            yield from ((program.name, fault) for fault in _buckets(program.ops))
    yield from _shared(step)
    for stage in step.stages:
        orders = {program.name: _exchanges(program) for program in step.module.of_type(Program) if program.stage == stage.name}
        if len(set(orders.values())) > 1:
            yield stage.name, "its members exchange in different orders"


def _shared(step: Step) -> Iterator[tuple[str, str]]:
    """What stages of one device do with resources that they share: the device keeps one tensor of each name. They must hold
    the same part of it, and one stage at most may read it in phase U; what others assign must come from that one, behind it."""
    for rank, device in enumerate(step.devices):
        held: dict[str, object] = {}
        shared = dict[str, None]()
        stages = step.stages_of(rank)
        for stage in stages if len(stages) > 1 else ():
            for part in step.local(stage, rank).parts:
                shared |= {part.name: None} if part.name in held else {}
                if held.setdefault(part.name, part.box) != part.box:
                    yield device, f"its stages hold different parts of {part.name}"
        for name in shared:
            assigned = {stage.index: made for stage in stages if (made := _updated(stage, name))}
            updating = [stage for stage in stages if assigned and _reads(stage, name)]
            if len(updating) > 1:
                yield (
                    device,
                    f"{updating[0].name} and {updating[1].name} both read {name} in phase U, which changes it in place",
                )
            for stage in stages if len(updating) == 1 else ():
                value = assigned.get(stage.index)
                if value and stage is not updating[0] and updating[0].index not in _sources(stage, value):
                    yield device, f"{stage.name} does not assign what {updating[0].name} makes of {name}"


def _updated(stage: Stage, name: str) -> str:
    """What a stage assigns to a resource in phase U; empty if it does not."""
    found = (op for op in stage.ops if op.name == ASSIGN and op.operands[0] == name and phase_of(op.facets) == UPDATE)
    return next((op.operands[1] for op in found), "")


def _reads(stage: Stage, name: str) -> bool:
    """Whether phase U of a stage reads a resource."""
    update = (op for op in stage.ops if phase_of(op.facets) == UPDATE)
    return any(name in (op.operands[1:] if op.name == ASSIGN else all_reads(op)) for op in update)


def _sources(stage: Stage, value: str) -> set[int]:
    """The stages from which phase U of a stage receives what it makes a value of."""
    needed, found = {value}, set[int]()
    for op in reversed(stage.ops):
        if phase_of(op.facets) == UPDATE and any(result.name in needed for result in op.results if result.name):
            needed.update(all_reads(op))
            found |= {op.get("peer")} if op.name == "comm.recv" else set()
    return found


def _means(ops: Sequence[Op], microbatches: int) -> Iterator[str]:
    for op in ops:
        if op.name == ACCUMULATE and op.get("microbatches") != microbatches:
            yield f"{op.id} is a mean over {op.get('microbatches')} microbatches, but a step has {microbatches}"


def message_faults(step: Step) -> Iterator[Failure]:
    """Programs that do not exchange what their stage says: the runtime goes by the stage."""
    stages = {stage.name: stage for stage in step.stages}
    for program in step.module.of_type(Program):
        if program.stage in stages and _messages(program.ops) != _messages(stages[program.stage].ops):
            yield Failure(REFUTED, f"it does not exchange what {program.stage} says, by which the runtime goes", program.name)


def _messages(ops: Sequence[Op]) -> dict[tuple[str, int], tuple[object, ...]]:
    """What the runtime takes of each message and collective of a stage."""
    keys = ("peer", "mesh", "axis", "dim", "split_dim", "concat_dim", "reduction", "through", "bucket")
    found: dict[tuple[str, int], tuple[object, ...]] = {}
    for op in ops:
        if op.get("channel") is not None:
            name = op.results[0].name if op.name == "comm.recv" else ""
            found[op.name, op.get("channel")] = (phase_of(op.facets), name, *map(op.get, keys))
    return found


def _exchanges(program: Program) -> tuple[tuple[str, int], ...]:
    return tuple((phase_of(op.facets), op.get("channel")) for op in program.ops if is_collective(op))


def _buckets(ops: Sequence[Op]) -> Iterator[str]:
    """Sums that travel in one message but differ in what one message does, or of which one needs another."""
    first: dict[int, tuple[int, Op]] = {}
    held: dict[int, set[str]] = {}
    for place, op in enumerate(ops):
        number = op.get("bucket")
        if number is None:
            continue
        keys = ("mesh", "axis", "reduction", "through")
        last, one = first.get(number, (place - 1, op))
        if last != place - 1 or any(op.get(key) != one.get(key) for key in keys) or op.operands[0] in held.get(number, ()):
            yield f"the sums of bucket {number} are not one sum: {one.id}, {op.id}"
        first[number] = place, one
        held.setdefault(number, set()).add(op.id)


# -- stages ------------------------------------------------------------------------------------------------------------


def _verdict(model: StepModel, proof: StageProof, received: Mapping[int, str]) -> StageVerdict:
    text = proof.text
    goals = _goals(model, text, received)
    failure = next(
        (explain(model.model, proof, goal) for goal in goals if not isinstance(goal, Goal) or not proof.reached(goal)),
        next(_mistyped(model.model, proof), None),
    )
    ops = sum(line.op.dialect != "comm" for unit in text.units[:1] for line in unit.lines)
    held = [name for unit in _units(text)[:1] for name in unit.held]
    weights = sum(name in model.assigned or name not in _constants(model.model) for name in held)
    return StageVerdict(text.stage.index, text.stage.devices, len(text.units), ops, len(proof.collectives), weights, failure)


def _mistyped(model: Model, proof: StageProof) -> Iterator[Failure]:
    """Values of the programs whose types are not those of the parts that they are: the Python of a stage reshapes, splits,
    casts and sums as the types say."""
    for derived in proof.derived:
        unit = derived.unit
        for name, term in unit.env.items():
            expected = [unit.inner[term]] if term in unit.inner else []
            for part in derived.facts.of(term):
                expected += proof.boxes.types(model.types[part.node], part.placements, unit.members)
            for _, contents in unit.constants.get(term, ())[:1]:  # the others are of one type with it: one term
                expected += dict.fromkeys(TensorType(one.dtype, one.shape) for one in contents)
            if (other := next((type_ for type_ in expected if not same_type(unit.types[name], type_)), None)) is not None:
                yield Failure(
                    REFUTED, f"{name} is {unit.types[name]}, what it holds is {without_layout(other)}", unit.program.name
                )


def _constants(model: Model) -> set[str]:
    return {model.resources[node].name for node in model.contents if node in model.resources}


def _units(text: StageText) -> list[StepUnit]:
    return [unit for unit in text.units if isinstance(unit, StepUnit)]


def _goals(model: StepModel, text: StageText, received: Mapping[int, str]) -> Iterator[Goal | Failure]:
    """What a stage must show, in the order of its text; a Failure for what it cannot show."""
    members = sorted(member for unit in text.units for member in unit.members)
    if members != list(range(max(1, len(text.mesh.devices)))):
        yield Failure(REFUTED, f"its programs are of the members {members}", "")
        return
    for channel, own in lines_by_channel(text, lambda op: op.name == "comm.send").items():
        lines, name = alike(own), received.get(channel, "")
        if lines is None:
            yield Failure(REFUTED, f"its members do not all send on channel {channel} alike", "")
        elif name not in model.model.node_of:
            yield Failure(REFUTED, f"the other side of channel {channel} receives '{name}', which is no value of the step", "")
        else:
            op = lines[0].op
            of = op.get("of", text.units[0].types[op.operands[0]])
            terms = tuple(line.operands[0] for line in lines)
            yield Goal(f"sends {op.operands[0]} on channel {channel}", terms, model.model.node_of[name], of)
    outputs = dict(model.model.outputs)
    for place, declared in enumerate(text.stage.results):
        values = [unit.program.results[place : place + 1] for unit in text.units]
        if not all(values) or declared.name not in outputs or len({value[0].name for value in values}) != 1:
            yield Failure(REFUTED, f"it delivers {declared.name}, which is no output of the step", "")
        else:  # one member tells its own, so all must have it whole
            terms = tuple(unit.env[value[0].name] for unit, value in zip(text.units, values, strict=True))
            yield Goal(f"delivers {declared.name}", terms, outputs[declared.name], without_layout(declared.type))
    yield from _updates(model, text)


def _updates(model: StepModel, text: StageText) -> Iterator[Goal | Failure]:
    """Each resource that a step changes, of a stage that holds some of it: each member assigns its part of the new value."""
    units = _units(text)
    for name in dict.fromkeys(name for unit in units for name in unit.in_place):
        yield Failure(REFUTED, f"an optimizer changes {name} in place, and no assignment behind it says what it is to be", "")
    held = dict.fromkeys(name for unit in units for name in unit.held)
    for name in dict.fromkeys([*(name for unit in units for name in unit.assigned), *held]):
        own = [unit.assigned.get(name) for unit in units]
        final = model.assigned.get(name)
        if final is None and not any(own):
            continue
        parts = {unit.parts[term][1] for unit in units for term in unit.held.get(name, ())}
        assigned = [one for one in own if one is not None]
        if final is None:
            yield Failure(REFUTED, f"it assigns {name}, which the step does not change", "")
        elif len(assigned) < len(own):
            members = [unit.members for unit, one in zip(units, own, strict=True) if one is None]
            told = ", ".join(str(member) for some in members for member in some)
            yield Failure(REFUTED, f"it holds {name}, but member {told} does not assign what that becomes", "")
        elif any(one.phase != final.phase for one in assigned):
            yield Failure(REFUTED, f"it assigns {name} in phase {assigned[0].phase}, the step in phase {final.phase}", "")
        elif len(parts) != 1:
            yield Failure(REFUTED, f"it reads different parts of {name}", "")
        else:
            (of,) = parts
            terms = tuple(one.term for one in assigned)
            whole = model.model.types[model.node(name)]
            yield Goal(f"assigns {assigned[0].value} to {name}", terms, model.node(name), whole if of is None else of)


# -- between stages ----------------------------------------------------------------------------------------------------


def _between(step: Step, model: StepModel, proofs: Sequence[StageProof]) -> Iterator[Failure]:
    """What does not fit between stages: the sides of channels, who delivers the loss, and what nobody updates."""
    by_stage = {proof.text.stage.index: proof for proof in proofs}
    ends = {
        kind: [
            (proof, channel, alike(lines))
            for proof in proofs
            for channel, lines in lines_by_channel(proof.text, lambda op, kind=kind: op.name == kind).items()  # type: ignore[misc]
        ]
        for kind in ("comm.send", "comm.recv")
    }
    counts = [Counter(channel for _, channel, _ in ends[kind]) for kind in ("comm.send", "comm.recv")]
    sends = {channel: (proof, lines) for proof, channel, lines in ends["comm.send"]}
    receives = {channel: (proof, lines) for proof, channel, lines in ends["comm.recv"]}
    for number in sorted({*counts[0], *counts[1]}):
        channel = step.channels.get(number)
        if (
            channel is None
            or counts[0][number] != 1
            or counts[1][number] != 1
            or not sends[number][1]
            or not receives[number][1]
        ):
            yield Failure(REFUTED, f"channel {number} does not lead from all members of one stage to all of one other", "")
            continue
        maker, reader = by_stage[channel.source.index], by_stage[channel.target.index]
        if (maker, reader) != (sends[number][0], receives[number][0]):
            yield Failure(REFUTED, f"the sides of channel {number} name other peers", "")
        elif fault := _channel_fault(step, model.model, channel, (maker, sends[number][1]), (reader, receives[number][1])):
            indices = channel.source.index, channel.target.index
            yield Failure(REFUTED, f"channel {number} from stage {indices[0]} to {indices[1]}: {fault}", "")
    delivered = Counter(value.name for proof in proofs for value in proof.text.stage.results)
    for name, _ in model.model.outputs:
        if delivered[name] != 1:
            yield Failure(REFUTED, f"{name} is delivered by {delivered[name]} stages", "")
    for name in model.assigned:
        if not any(name in unit.assigned for proof in proofs for unit in _units(proof.text)):
            yield Failure(REFUTED, f"the step changes {name}, but no stage does", "")


Side = tuple[StageProof, "list[Line] | None"]


def _channel_fault(step: Step, model: Model, channel: Channel, maker: Side, reader: Side) -> str:
    """Why what the members of a stage receive is not what those of another send; empty where it is."""
    (source, sends), (target, receives) = maker, reader
    assert sends is not None
    assert receives is not None
    out, into = sends[0].op, receives[0].op
    once = {phase_of(op.facets) == UPDATE for op in (out, into)}
    if len(once) > 1:
        return "one side sends once a step, the other receives for each microbatch"
    carried = [target.carried(line.op) for line in receives]
    if carried[0] is None or any(part != carried[0] for part in carried):
        return f"{into.results[0].name} : {into.results[0].type} is no value of the step, or differs by member"
    whole = model.types[carried[0].node]
    return _crossing(step, channel, (source, out.get("of", whole)), (target, into.get("of", whole)))


def _crossing(step: Step, channel: Channel, maker: tuple[StageProof, Type], reader: tuple[StageProof, Type]) -> str:
    """Whether each member of the reader gets the box that it takes a message for: from the member that the runtime names
    (``Step.maker``), which may be a reader that passes on what it got."""
    (source, sent), (target, received) = maker, reader
    whole = without_layout(sent)
    if whole != without_layout(received):
        return f"it leaves as {whole} and arrives as {without_layout(received)}"
    turns = 1 if channel.update else min(step.microbatches, len(source.text.stage.devices) * len(target.text.stage.devices))
    lies = {id(source): placements_of(sent, source.mesh), id(target): placements_of(received, target.mesh)}
    terms = [any(not hasattr(p, "dim") and str(p) != "R" for p in each) for each in lies.values()]

    def has(proof: StageProof, rank: int) -> object:
        mesh: Mesh = proof.mesh
        member = mesh.devices.index(step.devices[rank]) if mesh.axes else 0
        return box(whole, lies[id(proof)], mesh, member), member if any(terms) else 0

    if any(terms) and (lies[id(source)] != lies[id(target)] or source.mesh.axes != target.mesh.axes):
        return "terms cross between unequal meshes or layouts"
    for microbatch in range(turns):
        makers, readers = step.ends(channel, microbatch)
        for rank in readers:
            giver = step.maker(channel, rank, microbatch)
            if giver not in makers and giver not in readers:
                return f"member {rank} gets it from rank {giver}, which does not have it"
            if has(source if giver in makers else target, giver) != has(target, rank):
                return f"rank {rank} gets another part of it from rank {giver} than it takes it for"
    return ""
