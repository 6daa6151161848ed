"""``disagreement``: compares a module with its model, on the given arguments and on random ones.

- *In inference*: the outputs of the model in ONNX Runtime equal those of the module in the mode of inference.
- *In training*: the loss, the gradient of each parameter and the new running averages equal those of the module in its present
  mode under autograd. Dropouts drop nothing. The loss is the sum of all outputs times random numbers. The passes ``training``,
  ``canonicalize`` and ``differentiate`` make the training step of the model, which runs op by op in PyTorch. Where dnnc has no
  step, because an operator has no gradient, the model's forward pass runs under autograd. Where an op has no form in PyTorch,
  training is not compared.

A number may be off by ``CLOSE`` of the largest number of its tensor. A gradient or an average that is further off is shaken: it
may be off by ``NOISE`` times what it changes by when each weight changes by one unit in its last place. Of an output of
integers or booleans, the elements that differ may be as many as change when each weight changes by ``NOISE`` such units (by
``SHAKE`` of itself where that is less, but by one unit at least), and at most ``FLIPPED`` of all, or one element.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from dnnc.engines.torch.checkpoint import from_array
from dnnc.engines.torch.module.closeness import CLOSE, counts, distance, largest, shaken
from dnnc.engines.torch.module.exporting import RUNNING, Exported, as_it_was
from dnnc.engines.torch.module.places import first_line
from dnnc.engines.torch.module.rewriting import Rewriting
from dnnc.engines.torch.statements.run import run_function
from dnnc.onnx.importer.bodies import OnnxBodies
from dnnc.onnx.importer.evaluate import OnnxEvaluator
from dnnc.onnx.importer.read import import_model
from dnnc.onnx.model import Arrays
from dnnc.onnx.opdefs import DIALECTS
from dnnc.onnx.ort import load_onnxruntime, make_session
from dnnc.onnx.weights import read_resource
from ir.core.attributes import attributes
from ir.core.diagnostics import Diagnostic, DiagnosticSink, DnncError, InvalidInput
from ir.core.facets import UPDATE, InTraining, OptimizerState, phase_of
from ir.core.module import Module, Resource, Splat
from ir.core.names import unique
from ir.core.ops import Op, Value
from ir.core.types import DType, TensorType
from ir.ops.grads import ACCUMULATE, ASSIGN, averages_in_order
from passes.costs.learning import is_float
from passes.differentiate import DifferentiatePass
from passes.framework.base import Pass, PassContext
from passes.framework.manager import PassCrash, PassManager
from passes.graph.graph import renamed
from passes.prepare.canonicalize import CanonicalizePass
from passes.training import NOTHING_TRAINS, TrainingPass, with_stated

_ORDERED = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)  # torch compares no other integers
NOISE = 50.0
FLIPPED = 0.1
SMALL = 1e-4
"""The distance of a gradient is relative to its largest number, but at least to this part of the largest of all gradients."""
IN_INFERENCE = "in inference"
"""Words of a difference between the results of module and model, both in the mode of inference."""
CANNOT_TRAIN = "cannot train in PyTorch"
"""Words of a module whose backward pass fails."""
_LOSS = "agreement.loss"
_PROBE = "@agreement.probe"
_SHOWN = 3


class Difference(NamedTuple):
    """How a model differs from its module; both empty where they agree. ``hint``: of dnnc's refusal to train the model."""

    text: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Case:
    """A module, its model, and ``leaves``, the flat arguments of a call; ``spec`` tells how they nest."""

    module: torch.nn.Module
    exported: Exported
    leaves: tuple[Any, ...]
    spec: Any
    of_inputs: bool = False
    """Whether gradients of the arguments are compared too: true for a part of a larger module."""

    @property
    def close(self) -> float:
        values = [*self.module.parameters(), *(one for one in self.leaves if isinstance(one, torch.Tensor))]
        return max((CLOSE[value.dtype] for value in values if value.dtype in CLOSE), default=1e-3)

    def called(self, leaves: Sequence[Any]) -> list[Any]:
        """The flat results of the module on these arguments, with dropouts that drop nothing."""
        args, kwargs = tree_unflatten([one.clone() if isinstance(one, torch.Tensor) else one for one in leaves], self.spec)
        with Rewriting(dropout=False, exporting=False):
            return tree_flatten(self.module(*args, **kwargs))[0]


def case_of(
    module: torch.nn.Module, exported: Exported, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, of_inputs: bool = False
) -> Case:
    leaves, spec = tree_flatten((args, dict(kwargs)))
    return Case(module, exported, tuple(leaves), spec, of_inputs)


def disagreement(case: Case, file: Path) -> Difference:
    """How ``file``, which holds the model ``case.exported``, differs from the module."""
    step = _Step.of(case, file)
    refusal = step.refused if step else None
    session = _session(file)
    for leaves in _arguments(case.leaves):
        try:
            with as_it_was(case.module):
                wanted = _infers(case, leaves)
        except InvalidInput:
            raise
        except Exception as error:  # random arguments need not suit a module
            if leaves is case.leaves:
                return Difference(f"forward fails {IN_INFERENCE}: {first_line(error)}")
            continue
        if any(one is None for one in wanted):
            return Difference(f"forward gives fewer results {IN_INFERENCE} than in training")
        if session is not None and (told := _differs_in_inference(case, session, leaves, wanted)):
            return Difference(told)
        if refusal is not None:
            return Difference(f"dnnc cannot train it: {refusal.message}", refusal.hint)
        if step is not None and (told := _differs_in_training(case, step, leaves)):
            return Difference(told)
    return Difference()


def _arguments(leaves: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The arguments, and random ones of the same shapes. Each tensor is drawn from its own elements; floats are scaled.
    Integers in ascending order are drawn in ascending order from the same first one, as offsets of bags have to be. Integers
    that differ from each other along the last dimension are put in another order along it: they may be a permutation."""
    yield leaves
    generator = torch.Generator().manual_seed(1)

    def other(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.numel() == 0:
            return value
        flat = value.detach().cpu().reshape(-1)
        drawn = flat[torch.randint(flat.numel(), (flat.numel(),), generator=generator)]
        if value.dtype in CLOSE:
            random = torch.randn(flat.numel(), generator=generator)
            drawn = random.to(value.dtype) if bool((flat == flat[0]).all()) else drawn * (1 + 0.1 * random).to(value.dtype)
        elif value.dim() == 1 and value.dtype in _ORDERED and bool((flat[1:] >= flat[:-1]).all()):
            drawn = drawn.sort().values.index_fill(0, torch.tensor(0), flat[0])
        elif value.dim() and value.dtype in _ORDERED[1:] and _differ(rows := flat.reshape(-1, value.shape[-1])):
            drawn = rows.gather(1, torch.rand(rows.shape, generator=generator).argsort(1))
        return drawn.reshape(value.shape).to(value.device)

    yield tuple(map(other, leaves))


def _differ(rows: torch.Tensor) -> bool:
    """Whether the elements of each row differ from each other."""
    ordered = rows.sort(1).values
    return rows.shape[1] > 1 and bool((ordered[:, 1:] != ordered[:, :-1]).all())


# -- in inference -------------------------------------------------------------------------------------------------------


def _infers(case: Case, leaves: Sequence[Any]) -> list[Any]:
    case.module.eval()
    with torch.enable_grad():  # without it encoders take a path of their own
        found = case.called(leaves)
    wanted = [found[i] if i < len(found) else None for i in case.exported.outputs]
    return [one.detach() if isinstance(one, torch.Tensor) else one for one in wanted]


def _session(file: Path) -> Any:
    """A session of ONNX Runtime; None where it does not load the model."""
    ort = load_onnxruntime()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # it kills the process on an EmbeddingBag
    options.log_severity_level = 4
    try:
        return make_session(str(file), options)
    except Exception:
        return None


def _differs_in_inference(case: Case, session: Any, leaves: Sequence[Any], wanted: Sequence[Any]) -> str:
    given = [leaves[i] for i in case.exported.inputs]
    if any(not isinstance(one, torch.Tensor) or one.dtype == torch.bfloat16 for one in given):
        return ""
    feed = {port.name: one.detach().cpu().numpy() for port, one in zip(session.get_inputs(), given, strict=True)}
    try:
        arrays = session.run(None, feed)
    except Exception:  # sizes of an example that the model does not take again; nothing is computed otherwise
        return ""
    for number, (one, array) in enumerate(zip(wanted, arrays, strict=True)):
        if not isinstance(one, torch.Tensor) or one.dtype == torch.bfloat16:
            continue
        if array.size != one.numel():
            return f"{IN_INFERENCE}, output {number} has the shape {array.shape}, that of PyTorch {tuple(one.shape)}"
        off = distance(torch.from_numpy(array).reshape(one.shape), one.cpu())
        if counts(one):
            few = off <= max(FLIPPED, 1 / max(1, one.numel()))
            if off and not (few and any(off <= share for share in _flipped(case, leaves, number, one))):
                return f"{IN_INFERENCE}, {off:.1%} of the elements of output {number} differ from PyTorch's"
        elif off > case.close:
            return f"{IN_INFERENCE}, output {number} is off by {off:.2g} of the largest number of PyTorch's"
    return ""


def _flipped(case: Case, leaves: Sequence[Any], number: int, wanted: torch.Tensor) -> Iterator[float]:
    """The shares of an output of integers that change when each weight changes by NOISE units, or less, see above."""
    for seed in (1, 2, 3, 4):
        with as_it_was(case.module), shaken(case.module, seed, NOISE):
            yield distance(_infers(case, leaves)[number], wanted)


# -- in training --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """A training step by PyTorch or by dnnc: its loss, its gradients by weight, its new averages by name. ``scale``: the root
    of the sum of squares of the terms of the loss. In a step by PyTorch ``averages`` has all buffers, and ``moved`` names
    those that changed."""

    loss: torch.Tensor
    gradients: Mapping[str, torch.Tensor]
    averages: Mapping[str, torch.Tensor]
    scale: float = 0.0
    moved: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Step:
    """The training step of a model; ``refused`` says why dnnc cannot train it; None where it can.

    ``values``: weights and constants by name. ``inputs``: the step's names of the model's inputs. ``gradients`` and
    ``averages``: by weight or average the value of the step that is its gradient or its new value. ``probes``: by the place of
    an output of floats the resource by which the loss multiplies it."""

    module: Module
    values: Mapping[str, torch.Tensor]
    inputs: tuple[str, ...]
    gradients: Mapping[str, str]
    averages: Mapping[str, str]
    probes: Mapping[int, str]
    differentiated: bool = True
    """Whether the step computes gradients. If not, autograd does, and running averages are not compared."""
    refused: Diagnostic | None = None

    @classmethod
    def of(cls, case: Case, file: Path) -> _Step | None:
        """The step of the model in ``file``; None where nothing trains or no output is of floats."""
        learns = any(value.requires_grad for value in case.module.parameters())
        if not learns and not case.of_inputs:
            return None
        sink = DiagnosticSink()
        ports = zip(case.exported.model.graph.inputs, case.exported.inputs, strict=True)
        arrays = Arrays({port.name or "": tuple(case.leaves[i].shape) for port, i in ports}, str(file))
        module = import_model(file, dims={}, sink=sink, arrays=arrays).module
        probed, inputs, probes = _probed(module, case.of_inputs)
        if not probes:
            return None
        context = PassContext(sink=sink, evaluate=OnnxEvaluator(), bodies=OnnxBodies(), dialects=DIALECTS)
        trained: Module | None = None
        refused: Diagnostic | None = None
        try:
            trained = PassManager((TrainingPass(loss=f"output:{_LOSS}", optimizer="sgd"),)).run(probed, context)
        except DnncError as error:
            told = error.diagnostics[0]
            refused = None if told.message == NOTHING_TRAINS else told
        after = trained and _passed(DifferentiatePass(), _passed(CanonicalizePass(), trained, context) or trained, context)
        if after is None:  # dnnc does not train it: compared is what PyTorch makes of the forward pass alone
            forward = trained or with_stated(probed)
            func = forward.entry
            forward = forward.replace(func, replace(func, results=func.results[-1:]))
            found = (one for one in forward.of_type(Resource) if one.name[1:].rpartition(".")[2] not in RUNNING)
            learned = {one.name: one.name for one in found if _learns(one, trained is None)}
            values = {one.name: from_array(read_resource(one, file.parent).copy()) for one in forward.of_type(Resource)}
            return cls(forward, values, inputs, learned, {}, probes, False, refused)
        func = after.entry
        func = replace(func, ops=averages_in_order(func.ops))
        makers = {value.name: op for op in func.ops for value in op.results}
        gradients = {op.operands[0]: _gradient(makers, op) for op in func.ops if op.name == "grad.sgd"}
        averages = {
            op.operands[0]: op.operands[1] for op in after.entry.ops if op.name == ASSIGN and phase_of(op.facets) != UPDATE
        }
        ops = tuple(op for op in func.ops if phase_of(op.facets) != UPDATE and op.results)
        types = {value.name: value.type for op in ops for value in op.results}
        wanted = (*gradients.values(), *averages.values())
        results = (*func.results, *(Value(name, types[name]) for name in wanted))
        after = after.replace(after.entry, replace(func, ops=ops, results=results))
        values = {one.name: from_array(read_resource(one, file.parent).copy()) for one in after.of_type(Resource)}
        return cls(after, values, inputs, gradients, averages, probes)

    def run(self, given: Sequence[torch.Tensor], probes: Mapping[int, torch.Tensor]) -> Trained:
        """Run the step on these arguments. Raises InvalidInput for an op that has no form in PyTorch."""
        held = {name: probes[number] for number, name in self.probes.items()}
        values = {**self.values, **held, **dict(zip(self.inputs, given, strict=True))}
        if not self.differentiated:
            weights = [values[name].requires_grad_() for name in self.gradients]
            (loss,) = run_function(self.module.entry, self.module, values)
            some = torch.autograd.grad(loss, weights, allow_unused=True) if loss.requires_grad else ()
            made = zip(self.gradients, some, strict=bool(some))
            return Trained(loss.detach(), {name: one for name, one in made if one is not None}, {})
        with torch.no_grad():
            loss, *found = run_function(self.module.entry, self.module, values)
        count = len(self.gradients)
        return Trained(
            loss, dict(zip(self.gradients, found[:count], strict=True)), dict(zip(self.averages, found[count:], strict=True))
        )


def _passed(step: Pass, module: Module, context: PassContext) -> Module | None:
    """The module after the pass; None where the pass refuses it, as it will in ``dnnc compile``, which says why."""
    try:
        return PassManager((step,)).run(module, context)
    except (DnncError, PassCrash):
        return None


def _learns(resource: Resource, unmarked: bool) -> bool:
    """Whether a resource trains. ``unmarked``: no resource of the module is marked, so those of floats count as trained."""
    if unmarked:
        return is_float(resource.type)
    return any(isinstance(facet, OptimizerState) for facet in resource.facets)


def _gradient(makers: Mapping[str, Op], update: Op) -> str:
    maker = makers[update.operands[1]]
    if maker.name != ACCUMULATE:
        raise AssertionError(f"a step of one microbatch in one stage updates by {maker.name}")
    return maker.operands[0]


def _probed(module: Module, of_inputs: bool) -> tuple[Module, tuple[str, ...], dict[int, str]]:
    """The module with a loss: the sum of all outputs of floats, each times a tensor of its own (its probe). ``of_inputs``: turn
    arguments of floats into weights, so that they have gradients. Also returns the names of the arguments and of the probes."""
    func, new, probes, ops = module.entry, list[Resource](), dict[int, str](), list[Op]()
    symbols = {symbol.name for symbol in module.symbols}
    names: dict[str, str] = {}
    for arg in func.args if of_inputs else ():
        if isinstance(arg.type, TensorType) and arg.type.dtype.is_float:
            names[arg.name] = unique(f"@{arg.name[1:]}", symbols)
            new.append(Resource(names[arg.name], arg.type, Splat(0.0)))
    terms = []
    for number, result in enumerate(func.results):
        type_ = result.type
        if not isinstance(type_, TensorType) or not type_.dtype.is_float or type_.elements is None:
            continue
        probe = Resource(f"{_PROBE}{number}", replace(type_, dtype=DType.F32), Splat(0.0), facets=(InTraining("frozen"),))
        wide, scaled, term = (Value(f"%agreement.{word}{number}", probe.type) for word in ("wide", "scaled", "term"))
        term = replace(term, type=TensorType(DType.F32, ()))
        ops += [
            Op("onnx.Cast", (names.get(result.name, result.name),), (wide,), attributes(to=1)),
            Op("onnx.Mul", (wide.name, probe.name), (scaled,)),
            Op("onnx.ReduceSum", (scaled.name,), (term,), attributes(keepdims=0)),
        ]
        new.append(probe)
        probes[number] = probe.name
        terms.append(term.name)
    loss = Value(f"%{_LOSS}", TensorType(DType.F32, ()))
    ops.append(Op("onnx.Sum", tuple(terms), (loss,)))
    args = tuple(arg for arg in func.args if arg.name not in names)
    after = replace(func, args=args, ops=(*renamed(func.ops, names), *ops), results=(*func.results, loss))
    after = replace(after, results=tuple(replace(one, name=names.get(one.name, one.name)) for one in after.results))
    whole = module.replace(func, after)
    return replace(whole, symbols=(*new, *whole.symbols)), tuple(names.get(a.name, a.name) for a in func.args), probes


def _by_torch(
    case: Case, leaves: Sequence[Any], probes: Mapping[int, torch.Tensor], inputs: Sequence[str], averages: bool
) -> Trained:
    """A training step of the module in its present mode, by PyTorch. ``averages``: also compare its buffers before and after.
    Buffers and gradients of the module are restored."""
    module, named = case.module, dict(case.module.named_parameters())
    held = {name: value.grad for name, value in named.items()}
    before = {name: value.detach().clone() for name, value in module.named_buffers()}
    given = [_leaf(one, case.of_inputs) for one in leaves]
    with as_it_was(module), torch.enable_grad():
        try:
            for value in named.values():
                value.grad = None
            found = case.called(given)
            outputs = [found[i] for i in case.exported.outputs]
            terms = [outputs[i].float() * probe.to(outputs[i].device) for i, probe in probes.items()]
            loss = torch.stack([term.sum().cpu() for term in terms]).sum()
            scale = sum(float(term.detach().square().sum()) for term in terms) ** 0.5
            if loss.requires_grad:
                torch.autograd.backward(loss)
            gradients = {f"@{name}": _of(value) for name, value in named.items() if value.requires_grad}
            if case.of_inputs:
                numbers = zip(inputs, (given[i] for i in case.exported.inputs), strict=True)
                gradients |= {name: _of(one) for name, one in numbers if one.dtype in CLOSE}
            buffers = {name: value for name, value in module.named_buffers() if averages and value.is_floating_point()}
            moved = frozenset(f"@{name}" for name, value in buffers.items() if not torch.equal(value, before[name]))
            after = {f"@{name}": value.detach().clone().cpu() for name, value in buffers.items()}
            return Trained(loss.detach().cpu(), gradients, after, scale, moved)
        finally:
            for name, value in named.items():
                value.grad = held[name]


def _leaf(value: Any, learns: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(learns and value.dtype in CLOSE)


def _of(value: torch.Tensor) -> torch.Tensor:
    found = torch.zeros_like(value) if value.grad is None else value.grad.detach().to_dense()
    return found.clone().cpu()


def _differs_in_training(case: Case, step: _Step, leaves: Sequence[Any]) -> str:
    generator = torch.Generator().manual_seed(2)
    shapes = {number: step.values[name].shape for number, name in step.probes.items()}
    probes = {number: torch.randn(shape, generator=generator) for number, shape in shapes.items()}
    given = [leaves[i].detach().cpu() for i in case.exported.inputs]
    try:
        found = step.run(given, probes)
    except InvalidInput:
        return ""
    except Exception as error:  # of torch, whose words alone would name nothing of the module
        return f"its training step does not run: {first_line(error)}"

    def by_torch() -> Trained:
        return _by_torch(case, leaves, probes, step.inputs, averages=step.differentiated)

    try:
        wanted = by_torch()
    except InvalidInput:
        raise
    except Exception as error:  # random arguments need not suit a module
        return f"it {CANNOT_TRAIN}: {first_line(error)}" if leaves is case.leaves else ""
    worst = _differences(found, wanted, _names(case.module))
    far = {key: off for key, off in worst.items() if off > case.close}
    if not far:
        return ""
    noise: dict[str, float] = {}
    for seed in (1, 2):
        with shaken(case.module, seed):
            moved = _differences(by_torch(), wanted, _names(case.module))
        noise = {key: max(noise.get(key, 0.0), off) for key, off in moved.items()}
    far = {key: off for key, off in far.items() if off > NOISE * noise.get(key, 0.0)}
    if not far:
        return ""
    shown = ", ".join(sorted(far)[:_SHOWN]) + (", .." if len(far) > _SHOWN else "")
    return f"in training, {shown}: off by {max(far.values()):.2g} of the largest number of PyTorch's"


def _names(module: torch.nn.Module) -> dict[str, list[str]]:
    """By the name of each weight all names of that weight: tied weights have several."""
    found: dict[int, list[str]] = {}
    for name, value in module.named_parameters(remove_duplicate=False):
        found.setdefault(id(value), []).append(f"@{name}")
    return {name: names for names in found.values() for name in names}


def _differences(found: Trained, wanted: Trained, names: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """How far each part of ``found`` is from that of ``wanted``. A missing gradient is zero. A gradient that is nearly zero
    beside large ones is measured relative to these, because rounding alone may make it."""
    worst = {"the outputs": distance(found.loss, wanted.loss, wanted.scale)}
    top = max(map(largest, wanted.gradients.values()), default=0.0)
    for name, gradient in wanted.gradients.items():
        made = next((found.gradients[one] for one in names.get(name, (name,)) if one in found.gradients), None)
        made = torch.zeros_like(gradient) if made is None else made.to(gradient.dtype)
        worst[f"the gradient of '{name[1:]}'"] = distance(made, gradient, SMALL * top)
    for name in {*found.averages, *wanted.moved}:
        one, other = found.averages.get(name), wanted.averages.get(name)
        worst[f"the average '{name[1:]}'"] = float("inf") if one is None or other is None else distance(one, other)
    return worst
