"""``dnnc compile``: the main job, from a model and a topology to a directory of programs."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import typer

from dnnc.cli.console import print_proof, progress, put, put_json, show_warnings, talk
from dnnc.cli.faults import NothingToProve
from dnnc.cli.options import compile as arguments
from dnnc.cli.options import shared as opt
from dnnc.cli.options import training as train
from dnnc.cli.tracing import Tracing, timing_text
from ir.core.diagnostics import DiagnosticSink, ExitCode, UsageError

if TYPE_CHECKING:
    from dnnc.check.proof import ProofReport
    from dnnc.compile.driver import CompileResult
    from dnnc.compile.flags import CompileOptions
    from ir.core.ops import Op


def compile_(
    model: opt.ModelArgument,
    topology: opt.TopologyOption,
    out: arguments.Out,
    dim: opt.DimOption = None,
    limit: opt.LimitOption = None,
    cut: arguments.Cut = None,
    pin: arguments.Pin = None,
    stages: arguments.Stages = None,
    mesh: arguments.Mesh = None,
    strategy: arguments.ByName = None,
    shares: arguments.Shares = None,
    microbatches: arguments.Microbatches = None,
    samples: arguments.StepSamples = None,
    loss: train.Loss = "",
    optimizer: train.Optimizer = None,
    learning_rate: train.LearningRate = None,
    momentum: train.Momentum = None,
    weight_decay: train.WeightDecay = None,
    beta1: train.Beta1 = None,
    beta2: train.Beta2 = None,
    epsilon: train.Epsilon = None,
    nesterov: train.Nesterov = False,
    beta2_decay: train.Beta2Decay = None,
    threshold: train.Threshold = None,
    epsilon1: train.Epsilon1 = None,
    epsilon2: train.Epsilon2 = None,
    learning_rate_schedule: train.LearningRateSchedule = "",
    clip_norm: train.ClipNorm = None,
    ema: train.Ema = None,
    loss_scale: train.LossScaleText = "",
    group: train.Groups = None,
    no_decay: train.NoDecay = False,
    schedule: train.Schedule = "",
    chunks: train.Chunks = None,
    recompute: train.Recompute = None,
    sync: train.Synchronisation = None,
    trainable: train.Trainable = None,
    frozen: train.Frozen = None,
    batchnorm: train.BatchNorm = None,
    dropout: train.Dropout = None,
    dtype: train.Dtype = None,
    explain: arguments.Explain = False,
    plan: arguments.Replayed = None,
    plan_only: arguments.PlanOnly = False,
    weights: arguments.WeightFiles = opt.Weights.SHARED,
    objective: opt.CompileObjective = None,
    split: arguments.SplitOption = None,
    replicas: arguments.Replicas = None,
    pieces: arguments.Pieces = None,
    comm: arguments.CommOption = None,
    passes: arguments.Passes = "",
    time_limit: arguments.TimeLimit = None,
    inputs: arguments.Inputs = None,
    profile: arguments.Profile = None,
    search: arguments.SearchOption = arguments.Search.CERTIFIED,
    search_prior: arguments.SearchPrior = None,
    iterations: arguments.Iterations = None,
    load_test: arguments.LoadTest = True,
    report: arguments.ReportPage = True,
    prove: arguments.Prove = False,
    state: arguments.States = None,
    role: arguments.Roles = None,
    context: arguments.Context = None,
    batch: arguments.Batch = None,
    groups: arguments.Groups = None,
    chunk: arguments.Chunk = None,
    genai: arguments.Genai = False,
    prompt_tokens: arguments.PromptTokens = None,
    print_before: opt.PrintBeforeOption = None,
    print_after: opt.PrintAfterOption = None,
    print_on_change: opt.PrintChangeOption = False,
    print_folder: opt.PrintFolderOption = None,
    json: opt.JsonOption = False,
    timing: opt.TimingOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Compile MODEL for the machines of TOPOLOGY into DIR: a plan with its proof, its timeline, and one program per stage (none
    of a profile, which has seconds in place of operators)."""
    from ir.system.scratch import remove_dead_scratch

    given = locals()
    remove_dead_scratch()
    tracing = Tracing.of(print_before, print_after, print_on_change, print_folder)
    options = arguments.options_of(
        given,
        dims=opt.parse_sizes(dim),
        limits=opt.parse_limits(limit),
        cuts=tuple(cut or ()),
        pins=opt.parse_pairs(pin, "--pin", "NODE=DEVICE"),
        stages=opt.parse_stages(stages, mesh not in (None, "", "none")),
        pipeline=passes,
        prior=search_prior,
        states=tuple(state or ()),
        roles=tuple(role or ()),
        batch=opt.parse_count(batch, "--batch"),
        groups=opt.parse_count(groups, "--groups"),
    )
    if prove and (plan_only or weights is opt.Weights.NONE):
        raise UsageError(NothingToProve("--plan-only" if plan_only else "--weights none"), where="--prove")
    _compile(options, tracing, prove=prove, json=json, timing=timing, quiet=quiet)


def _compile(options: CompileOptions, tracing: Tracing, *, prove: bool, json: bool, timing: bool, quiet: bool) -> None:
    """Compiles, and shows what is asked for. Exits by ``INTERRUPTED`` where an interrupt ended the search; raises CheckFailed
    for a build that ``prove`` does not find proven."""
    from dnnc.compile.driver import compile_model

    sink = DiagnosticSink()
    try:
        with progress(not quiet and not tracing.to_stderr) as report:
            result = compile_model(options, sink=sink, progress=report, manager=tracing.manager_options())
    finally:
        show_warnings(sink.diagnostics, quiet)
    if timing:
        talk(timing_text(result.seconds))
    proof = _proof(result, quiet) if prove else None
    if json:
        fields = result_json(result, options)
        put_json("compile", fields if proof is None else {**fields, "proof": proof.to_json()}, version=2)
    elif not quiet:
        _print_result(result, options)
        if proof is not None:
            print_proof(proof)
    if proof is not None and (error := proof.error()) is not None:
        raise error
    if result.interrupted:
        talk("dnnc: interrupted: this is the best plan so far; its bound holds", quiet)
        raise typer.Exit(ExitCode.INTERRUPTED)


def _proof(result: CompileResult, quiet: bool) -> ProofReport:
    """What can be shown of the build that was written."""
    from dnnc.check.proof import prove

    with progress(not quiet) as say:
        return prove(result.out, say)


def result_json(result: CompileResult, options: CompileOptions) -> dict[str, Any]:
    """``--json``: the objective is in seconds per sample, of training per step of ``samples_per_step``, by which plans of other
    batches compare; ``period`` is that of a microbatch. Memory is in bytes; null stands for infinite. ``ops`` of a stage are
    names, in the model's order (``dnnc.compile/1`` counted them)."""
    from dnnc.build.plan_json import ops_of_stages
    from dnnc.report import idle_devices, mesh_axes, mesh_shares
    from passes.costs.learning import samples_of
    from passes.stages.load import stage_seconds, step_period

    plan, axes, shares = result.plan, mesh_axes(result.module), mesh_shares(result.module)
    members = ops_of_stages(result.module, plan)
    step = {
        "microbatches": plan.microbatches,
        "samples_per_step": plan.microbatches * samples_of(result.module.entry),
        "period": step_period(plan),
    }
    return {
        "model": options.model,
        "topology": options.topology,
        "out": str(result.out),
        "pipeline": result.pipeline,
        "kind": plan.objective,
        "comm": plan.comm,
        "objective": plan.value,
        "bound": plan.bound,
        "gap": plan.gap,
        "status": plan.status,
        "single": plan.single,
        **(step if plan.in_steps else {}),
        "stages": [
            {
                "index": stage.index,
                "devices": list(stage.devices),
                "device_type": stage.device_type,
                "serves": list(stage.serves),
                "ops": members[stage.index],
                "seconds": stage_seconds(stage, plan.comm),
                "compute": stage.compute,
                "mesh": axes.get(stage.index),
                "shares": shares.get(stage.index),
                "collectives": stage.collectives,
                "receive": stage.receive,
                "send": stage.send,
                "memory": stage.memory,
                "weights": stage.weights,
                "workspace": stage.workspace,
                "buffers": stage.buffers,
            }
            for stage in plan.stages
        ],
        "idle": list(idle_devices(plan, result.topology)),
        "certificate": dict(plan.certificate),
        "seconds": result.seconds,
        **({"explanation": explanation_json(result)} if result.explanation is not None else {}),
    }


def explanation_json(result: CompileResult) -> dict[str, Any]:
    """``--explain`` with ``--json``: every layer, the ops of one block, and other plans."""
    from dnnc.report import block_json, comparison_rows, layers_json

    assert result.explanation is not None
    explanation = result.explanation
    block = explanation.block
    return {
        "layers": layers_json(explanation.layers),
        "block": {"layer": block.name, "stage": block.stage, "ops": block_json(block)} if block else None,
        "comparison": comparison_rows(result.plan, explanation.alternatives),
    }


def _print_explanation(result: CompileResult) -> None:
    from dnnc.report import block_table, comparison_rows, comparison_table, layers_table, print_table

    assert result.explanation is not None
    explanation = result.explanation
    training = result.plan.minimises.trains
    put(f"what each layer computes and exchanges, per {'microbatch, backward pass included' if training else 'sample'}")
    print_table(layers_table(explanation.layers))
    if explanation.block is not None:
        put(f"\none block, {explanation.block.name}: layouts per mesh axis, S(dim) a shard, R whole, P a term")
        print_table(block_table(explanation.block))
    put("\nother plans, on one mesh of these devices")
    print_table(comparison_table(comparison_rows(result.plan, explanation.alternatives)))
    put("")


def _advice(result: CompileResult, options: CompileOptions) -> str:
    """What to try where a mesh that the search was free on gains nothing over one device; empty where it gains, or where
    the plan was asked for by name."""
    from passes.framework.registry import NO_MESH

    plan = result.plan
    if options.mesh in ("", NO_MESH) or options.strategy or plan.value < plan.single * (1 - 1e-9):
        return ""
    unsplit = plan.on_meshes and not any(_is_split(op) for op in result.module.entry.ops)
    handover = max(result.topology.type(device.type).handover for device in result.topology.devices)
    if unsplit and plan.value <= (plan.single + handover) * (1 + 1e-6):
        return "  no split is worth its exchange; more samples at a time may help"
    if plan.value > plan.single * (1 + 1e-6):  # unequal devices, or weights that do not fit each of them whole
        if plan.minimises.trains:
            return "  slower than one device; a smaller mesh may be faster"
        joint = options.mesh == "auto" and options.stages == 0
        return "" if joint else "  slower than one device; --mesh auto --stages auto may leave devices out"
    return ""


def _is_split(op: Op) -> bool:
    """Whether an axis splits the op."""
    from ir.core.facets import ShardRule

    shard = op.facet(ShardRule)
    return shard is not None and any(name.strip() != "replicate" for name in shard.rule.split(";"))


def _print_result(result: CompileResult, options: CompileOptions) -> None:
    """The table of stages, how good the plan is, what it leaves unused, and what to do next."""
    from dnnc.compile.load import is_profiled
    from dnnc.report import idle_text, mesh_axes, plan_headline, print_table, shares_lines, stages_table
    from passes.framework.registry import ANY_FORM, ANY_MESH, NO_MESH

    if result.explanation is not None:
        _print_explanation(result)
    print_table(stages_table(result.plan, mesh_axes(result.module)))
    put(shares_lines(result.module))
    put(plan_headline(result.plan))
    if advice := _advice(result, options):
        put(advice)
    asked = ""
    if options.plan is None:
        asked = f"--stages {options.stages} was asked for" if options.stages else ""
        asked = f"--shares {options.shares} was asked for" if options.shares not in ("", "equal") else asked
        asked = f"--mesh {options.mesh} was asked for" if options.mesh not in ("", ANY_FORM, ANY_MESH, NO_MESH) else asked
        if not asked and (restricted := dict(result.plan.certificate).get("restricted")):
            asked = f"{restricted.partition(';')[0].removeprefix('by ')} was asked for"
        meshed = result.plan.on_meshes or "on meshes" in dict(result.plan.certificate).get("kinds", "")
        if not asked and result.plan.minimises.alone and not meshed:
            asked = "no stage there makes one sample faster; meshes were not searched"
    if idle := idle_text(result.plan, result.topology, asked):
        put(idle)
    folder = shlex.quote(str(result.out))
    replay = f"--plan {folder}/plan.json"
    if is_profiled(options.model, result.module):
        put(f"wrote the plan to {folder}, and no programs: a profile has seconds in place of operators")
        put(f"next: dnnc simulate {folder}")
        return
    if options.plan_only and result.plan.minimises.trains:
        loss = f"--loss {shlex.quote(options.training.loss)}" if options.training.loss else "--plan-only"
        put(f"wrote the plan to {folder}; edit {folder}/plan.json and replay it with {replay} {loss}")
    elif options.plan_only:
        put(f"wrote the plan to {folder}; edit {folder}/plan.json and replay it with {replay}, or compile without --plan-only")
    elif result.plan.minimises.trains:
        put(f"wrote {folder}; next: dnnc train {folder} --steps 3 --check, dnnc train {folder} --steps 100 --data FILE.npz")
    elif options.weights == "none":
        put(f"wrote {folder} without weights: it can be inspected, not run; compile with --weights shared to run it")
    elif result.manifest["weights"] == "none":
        put(f"wrote {folder} without weights, which the model only declares: it can be inspected, neither run nor checked")
    else:
        from dnnc.build.decoding import hides

        states = result.module.states.items()
        needs = any(not state.result and not hides(name) for name, state in states)  # what an encoder made
        generate = f"generate {folder} --ids 1,2,3{' --states FILE.npz' if needs else ''}"
        first = generate if "decoding.context" in dict(result.module.entry.attributes) else f"run {folder}"
        put(f"wrote {folder}; next: dnnc {first}, dnnc check {folder}")
