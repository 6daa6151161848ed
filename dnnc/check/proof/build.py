"""The proof of a whole build: the goals of its stages, the two sides of each channel, and the outputs of the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dnnc.build.build import Build, read_program
from dnnc.build.decoding import PROMPT, prompt_name
from dnnc.build.snapshot import TORCH, Snapshot
from dnnc.check.faults import BuildWithoutWeights
from dnnc.check.proof.constants import Weights, parts_of_weights
from dnnc.check.proof.explain import NOT_PROVEN, REFUTED, Failure, explain
from dnnc.check.proof.model import Model, read_model
from dnnc.check.proof.moves import crossing
from dnnc.check.proof.programs import Files, Line, StageText, read_stages
from dnnc.check.proof.rows import row_faults
from dnnc.check.proof.segments import Unreadable
from dnnc.check.proof.stage import Goal, StageProof, alike, completed, lines_by_channel, received_values
from dnnc.check.proof.verdict import NO_PROMPT, PROMPTS, TRUSTED, ProofReport, StageVerdict
from ir.core.diagnostics import InvalidInput
from ir.core.module import Module, Plan, Program, Stage
from ir.core.names import bare
from ir.system.collector import collector_paused
from passes.graph.folding import expand

Progress = Callable[[str, float | None], None]


def prove(folder: str | Path, progress: Progress = lambda label, fraction: None) -> ProofReport:
    """What can be shown of the build at ``folder``, of inference or of training, for all inputs. Raises InvalidInput for what
    is no build with programs, and what ``prove_build`` and ``prove_training`` raise."""
    files = Snapshot.open(folder, progress)
    if files.engine != TORCH:
        return prove_build(Build.of(files), progress)
    from dnnc.check.proof.training import prove_training

    return prove_training(files, progress)


def prove_build(build: Build, progress: Progress = lambda label, fraction: None) -> ProofReport:
    """What can be shown of a build for all inputs. Raises InvalidInput for one without weights, or whose ``plan.ir`` is not
    valid."""
    start = time.perf_counter()
    if build.weights == "none":
        raise InvalidInput(BuildWithoutWeights(), where=str(build.folder))
    progress("read the programs", None)
    weights = Weights(build)
    trusts: tuple[str, ...] = TRUSTED
    verdicts, failures = _proven(read_program(build.files), build.files, weights, progress)
    if build.decoding is not None and build.decoding.chunk > 1:
        if PROMPT in build.files.contents:
            own, wrong = _proven(read_program(build.files, PROMPT), PromptFiles(build.files), weights, progress)
            verdicts = (*verdicts, *(replace(verdict, prompt=True) for verdict in own))
            failures, trusts = (*failures, *wrong), (PROMPTS, *TRUSTED[1:])
        else:
            trusts = (*TRUSTED, NO_PROMPT)
    build.files.confirm()
    return ProofReport(str(build.folder), verdicts, failures, weights.own_copy, time.perf_counter() - start, trusts)


@dataclass(frozen=True, slots=True)
class PromptFiles:
    """The files of a build, in which the models of the prompt program have the names of those of the step."""

    files: Files

    def read(self, name: str) -> bytes:
        return self.files.read(prompt_name(name))

    def weights_for(self, model: str) -> dict[str, int]:
        return self.files.weights_for(prompt_name(model))


def prove_module(module: Module) -> ProofReport:
    """What can be shown of the programs that ``localize`` wrote, before they are a build: their parts of weights are those that
    ``comm.part`` says."""
    start = time.perf_counter()
    verdicts, failures = _proven(module, None, None, lambda label, fraction: None)
    return ProofReport(module.name, verdicts, failures, False, time.perf_counter() - start)


def prover(module: Module) -> Mapping[str, int]:
    """``passes.framework.base.Prover``: of programs of inference, or of a training step."""
    plan = module.first(Plan)
    if plan is not None and plan.in_steps:
        from dnnc.build.training import Step
        from dnnc.check.proof.training import prove_step

        report = prove_step(Step(module))
    else:
        report = prove_module(module)
    if error := report.error():
        raise error
    counted = [(stage.ops, stage.collectives, stage.weights) for stage in report.stages]
    ops, collectives, weights = (sum(column) for column in zip(*counted, strict=True))
    return {"stages": len(counted), "ops": ops, "collectives": collectives, "weights": weights}


@collector_paused()
def _proven(
    module: Module, files: Files | None, weights: Weights | None, progress: Progress
) -> tuple[tuple[StageVerdict, ...], tuple[Failure, ...]]:
    """A verdict for each stage, and what is wrong between them."""
    entry = expand(module.without(Stage, Program))
    model = read_model(entry, entry.entry)
    try:
        texts = list(read_stages(module, files))
    except Unreadable as error:
        return (), (Failure(NOT_PROVEN, str(error), ""),)
    proofs = [StageProof(model, text) for text in texts]
    by_text = {id(text): proof for text, proof in zip(texts, proofs, strict=True)}
    if weights is not None:
        progress("compare the weights", None)
        for text, unit, term, part in parts_of_weights(model, texts, weights):
            proof = by_text[id(text)]
            proof.add(proof.number_of[id(unit)], term, part)
    received = received_values(texts)
    verdicts = [_verdict(model, proof, received) for proof in completed(proofs, progress)]
    return tuple(verdicts), (*_between(model, proofs), *row_faults(module, texts))


def _verdict(model: Model, proof: StageProof, received: Mapping[int, str]) -> StageVerdict:
    goals = _goals(model, proof.text, received)
    failure = next(
        (explain(model, proof, goal) for goal in goals if not isinstance(goal, Goal) or not proof.reached(goal)), None
    )
    text = proof.text
    ops = sum(line.op.dialect != "comm" for unit in text.units[:1] for line in unit.lines)
    constants = {name for unit in text.units[:1] for same in unit.constants.values() for name, _ in same}
    constants |= {bare(name) for unit in text.units[:1] for name, _ in unit.parts.values()}
    weights = len(constants & {bare(resource.name) for resource in model.resources.values()})
    return StageVerdict(text.stage.index, text.stage.devices, len(text.units), ops, len(proof.collectives), weights, failure)


def _goals(model: Model, text: StageText, received: Mapping[int, str]) -> Iterator[Goal | Failure]:
    """What a stage must show, in the order of its text; a Failure for what it cannot show. ``received``: by channel, what its
    other side takes it for."""
    members = sorted(member for unit in text.units for member in unit.members)
    if (members if text.mesh.axes else sorted({*members})) != list(range(max(1, len(text.mesh.devices)))):
        yield Failure(REFUTED, f"its programs are of the members {members}", "")
        return
    for channel, own in lines_by_channel(text, lambda op: op.name == "comm.send").items():
        lines, name = alike(own), received.get(channel, "")
        if lines is None:
            yield Failure(REFUTED, f"its members do not all send on channel {channel} alike", "")
        elif name not in model.node_of:
            yield Failure(REFUTED, f"the other side of channel {channel} receives '{name}', which is no value of the model", "")
        else:
            if not text.mesh.axes and lines[0].op.operands[0] != name:
                yield Failure(REFUTED, _called(lines[0].op.operands[0], name, f"sends on channel {channel}"), "")
            of = lines[0].op.get("of", text.units[0].types[lines[0].op.operands[0]])
            what = f"sends {lines[0].op.operands[0]} on channel {channel}"
            yield Goal(what, tuple(line.operands[0] for line in lines), model.node_of[name], of)
    outputs = dict(model.outputs)
    for place, declared in enumerate(text.stage.results):
        values = [unit.program.results[place : place + 1] for unit in text.units]
        if not all(values) or len({value[0].type for value in values}) != 1:
            yield Failure(REFUTED, f"its members do not all deliver {declared.name} alike", "")
        elif declared.name not in outputs:
            yield Failure(REFUTED, f"it delivers {declared.name}, which is no output of the model", "")
        else:
            # An output that is a weight has its sigil in one text and none in the other; the runtime knows the bare name.
            if not text.mesh.axes and values[0][0].name[1:] != declared.name[1:]:
                yield Failure(REFUTED, _called(values[0][0].name, declared.name, "delivers"), "")
            terms = tuple(unit.env[value[0].name] for unit, value in zip(text.units, values, strict=True))
            yield Goal(f"delivers the output {declared.name}", terms, outputs[declared.name], values[0][0].type)


def _called(own: str, name: str, what: str) -> str:
    """The fault of a stage without a mesh whose program has ``own`` where the other side says ``name``: the runtime takes the
    output of this name of the stage's ONNX model."""
    return f"it {what} what its program calls {own}, but the runtime takes what its model calls {name}"


def _between(model: Model, proofs: Sequence[StageProof]) -> Iterator[Failure]:
    """What does not fit between stages: the sides of channels, and who delivers the outputs of the model."""
    ends: dict[str, dict[int, list[tuple[StageProof, list[Line] | None]]]] = {"comm.send": {}, "comm.recv": {}}
    for proof in proofs:
        for kind, by_channel in ends.items():
            for channel, own in lines_by_channel(proof.text, lambda op, kind=kind: op.name == kind).items():  # type: ignore[misc]
                by_channel.setdefault(channel, []).append((proof, alike(own)))
    for channel in sorted({*ends["comm.send"], *ends["comm.recv"]}):
        makers, readers = (ends[kind].get(channel, []) for kind in ends)
        if len(makers) != 1 or len(readers) != 1 or makers[0][1] is None or readers[0][1] is None:
            yield Failure(REFUTED, f"channel {channel} does not lead from all members of one stage to all of one other", "")
        elif fault := _channel_fault(model, makers[0][0], makers[0][1], readers[0][0], readers[0][1]):
            indices = makers[0][0].text.stage.index, readers[0][0].text.stage.index
            yield Failure(REFUTED, f"channel {channel} from stage {indices[0]} to {indices[1]}: {fault}", "")
    delivered = [value.name for proof in proofs for value in proof.text.stage.results]
    for name, _ in model.outputs:
        if delivered.count(name) != 1:
            yield Failure(REFUTED, f"the output {name} of the model is delivered by {delivered.count(name)} stages", "")


def _channel_fault(model: Model, maker: StageProof, sends: Sequence[Line], reader: StageProof, receives: Sequence[Line]) -> str:
    """Why what the members of ``reader`` receive is not what those of ``maker`` send; empty where it is."""
    out, into = sends[0].op, receives[0].op
    if out.get("peer") != reader.text.stage.index or into.get("peer") != maker.text.stage.index:
        return "its sides name other peers"
    carried = [reader.carried(line.op) for line in receives]
    if carried[0] is None or any(part != carried[0] for part in carried):
        return f"{into.results[0].name} : {into.results[0].type} is no value of the model, or differs by member"
    whole = model.types[carried[0].node]
    sent, received = out.get("of", whole), into.get("of", whole)
    return crossing((maker.mesh, sent), (reader.mesh, received))
