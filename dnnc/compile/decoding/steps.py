"""Builds that keep states: ``--context N`` of a decoder with caches, ``--state IN=OUT`` of any other model.

Without these options a cache is an input and an output as any other. With ``--context``, the model is bound to one token of
each of ``--batch`` sequences and to caches of N positions, and planned so: the *step*. The *prompt* is the same model at
``--chunk`` tokens, cut at the same ops. Where that cannot be written, prompts go through the step, one token at a time, with a
warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dnnc.compile.decoding.configs import LONGEST
from dnnc.compile.decoding.loading import FOLDING, GATHER, load_step
from dnnc.compile.faults import (
    AutoWithoutTokens,
    ContextOverModel,
    GroupsOfOneUser,
    IdsOfCaches,
    LengthFixed,
    SizeFixed,
    StatesAlone,
    WithoutContext,
)
from dnnc.compile.flags import AUTO, CompileOptions
from dnnc.compile.options import asks_training
from dnnc.zoo import require_options
from ir.core import dims as dimensions
from ir.core.attributes import Attribute, AttrKind, attributes
from ir.core.diagnostics import DiagnosticSink, InvalidInput, UsageError
from ir.core.module import Func, Module
from ir.core.objectives import objective_of
from ir.core.ops import Op
from ir.core.types import UNKNOWN, Dim, TensorType, Type
from passes.framework.base import Pass, PassContext
from passes.graph.folding import expand
from passes.prepare.canonicalize import CanonicalizePass
from passes.prepare.states import (
    GROUP_QUERY,
    RELATIVE,
    Pair,
    Role,
    StatesPass,
    array_of,
    cache_axis,
    caches,
    named,
    roles_of,
    without_copies,
)
from passes.prepare.states.faults import CacheNotInPlace, NoCaches

CHUNK = 64
"""The tokens of a prompt that its program takes at once, at most."""
ZOO = "zoo:"
_OF_SIZES = ("ConstantOfShape", "Expand", "Pad", "Range", "Reshape", "Resize", "Slice", "Split", "Tile")
OF_SIZES = frozenset({GROUP_QUERY, *(f"onnx.{name}" for name in _OF_SIZES)})
"""Operators whose integers are sizes; the length of all positions is one for GroupQueryAttention."""

SCATTERS = ("onnx.ScatterElements", "onnx.ScatterND")
"""Operators that write a cache of full length, as a static cache of ``transformers`` has it."""


def keeps_states(options: CompileOptions) -> bool:
    return options.context is not None or bool(options.states)


def of_states(options: CompileOptions) -> CompileOptions:
    """Returns ``options`` as they are. Raises UsageError for options that states exclude, and for sizes of a decoder without
    ``--context``."""
    if not keeps_states(options):
        sizes = {
            "--role": options.roles or None,
            "--batch": options.batch,
            "--groups": options.groups,
            "--chunk": options.chunk,
            "--prompt-tokens": options.prompt_tokens,
            "--genai": options.genai or None,
        }
        if given := tuple(flag for flag, size in sizes.items() if size is not None):
            raise UsageError(WithoutContext(given), where=given[0])
        return options
    excluded = {
        "training": asks_training(options),
        "a range of --dim": options.ranges,
        "--inputs": options.inputs is not None,
    }
    if found := tuple(name for name, asked in excluded.items() if asked):
        raise UsageError(StatesAlone(found), where="--context" if options.context is not None else "--state")
    return options


def of_plan(options: CompileOptions) -> CompileOptions:
    """The options, with the context, the batch and the groups of the plan of ``--plan`` where nobody states others. Raises
    InvalidInput for a file that is no plan; one that is missing is told where it is read."""
    if options.plan is None or not options.plan.exists():
        return options
    from dnnc.build.plan_reader import read_plan, sizes_of

    stated = read_plan(options.plan)
    sizes = sizes_of(stated[0], str(options.plan))
    missing = {name: size for name, size in sizes.items() if getattr(options, name) is None}
    return replace(options, stated=stated, **missing)  # type: ignore[arg-type]


def of_tokens(options: CompileOptions) -> CompileOptions:
    """The options, with the batch and the groups that the objective has by default. Raises UsageError for options of tokens
    that exclude each other."""
    decodes = bool(options.objective) and objective_of(options.objective).decodes
    if not decodes:
        if flags := tuple(f"--{name} auto" for name in ("batch", "groups") if getattr(options, name) == AUTO):
            raise UsageError(AutoWithoutTokens(flags), where=flags[0])
        return options
    if options.context is None and options.plan is None:
        raise UsageError(WithoutContext((f"--objective {options.objective}",)), where="--objective")
    if objective_of(options.objective).alone:
        if options.groups not in (None, 1) or options.batch == AUTO:
            raise UsageError(GroupsOfOneUser(), where="--groups" if options.groups not in (None, 1) else "--batch")
        return replace(options, groups=1)
    return replace(options, batch=options.batch or AUTO, groups=options.groups or AUTO)


def with_states(pipeline: tuple[Pass, ...], options: CompileOptions) -> tuple[Pass, ...]:
    """The pipeline, with the pass ``states`` behind its first ``canonicalize`` and what it leaves simplified again."""
    if not keeps_states(options) or any(step.name == "states" for step in pipeline):
        return pipeline
    states = StatesPass(pairs=options.states, roles=options.roles, groups=options.groups or 1)
    at = next((i for i, step in enumerate(pipeline) if isinstance(step, CanonicalizePass)), None)
    if at is None:
        return (states, FOLDING, *pipeline)
    first = cast("CanonicalizePass", pipeline[at])
    first = replace(first, fold_bytes=max(first.fold_bytes, FOLDING.fold_bytes))
    return (*pipeline[:at], first, states, FOLDING, *pipeline[at + 1 :])


def unsized(options: CompileOptions) -> Func | None:
    """The function of a decoder's file, with the sizes of ``--dim`` alone: the same for every batch, step and context. None
    without ``--context``, and for a model of the zoo, whose sizes are options. Raises as ``load_model``."""
    if options.context is None or options.model.startswith(ZOO):
        return None
    return load_step(options, DiagnosticSink()).entry


def sized(options: CompileOptions, step: int = 1, read: Func | None = None) -> CompileOptions:
    """The options that read the model at ``step`` tokens of each sequence; unchanged without ``--context``. ``read``: what
    ``unsized`` returned for these options, where it is known. Raises as ``load_model``, and InvalidInput for a model without
    caches."""
    context = options.context
    if context is None:
        return options
    if options.model.startswith(ZOO):
        require_options(options.model)  # before sizes are added that nobody wrote
        length = "target_seq" if options.model.removeprefix(ZOO).startswith("t5") else "seq"  # of a step
        sizes = {"context": context, length: step} | ({} if options.batch is None else {"batch": options.batch})
        parts = [part for part in options.model.split(",") if part.partition("=")[0] not in sizes]
        return replace(options, model=",".join([*parts, *(f"{key}={size}" for key, size in sizes.items())]))
    func = without_copies(read or load_step(options, DiagnosticSink()).entry)
    pairs = _pairs(func, options)
    roles = roles_of(func, {pair.source for pair in pairs}, options.roles)
    makers = {value.name: op for op in func.ops for value in op.results}
    if pairs and all(pair.grows is None and cache_axis(pair, makers.get(f"%{pair.result}")) is None for pair in pairs):
        for pair in pairs:
            if (maker := makers.get(f"%{pair.result}")) is not None and maker.name in SCATTERS:
                reason = f"{maker.id} ({maker.name.removeprefix('onnx.')}) writes it, and TensorScatter alone is known to do so"
                raise InvalidInput(CacheNotInPlace(pair.source, reason), where=maker.location.node or maker.id)
        raise InvalidInput(NoCaches(", ".join(pair.source for pair in pairs[:4])), where="--context")
    tokens = _shape(_ids(func, options))[1:2]
    if step > 1 and tokens not in ((), (step,)) and isinstance(tokens[0], int):
        raise InvalidInput(SizeFixed("the file", "tokens of a step", tokens[0], step), where="--context")
    _require_batch_first(func, pairs, roles)
    bound = _sizes(func, pairs, roles, batch=options.batch or 1, step=step, context=context)
    return replace(options, dims={**bound, **options.dims})


def fixed_batch(read: Func | None, options: CompileOptions) -> int | None:
    """The batch that the file of a decoder, or ``--dim``, fixes; None where it is open. ``read``: as of ``sized``."""
    batch = next(iter(_shape(_ids(read, options))), None) if read is not None else None
    return batch if isinstance(batch, int) else None


def require_sizes(module: Module, options: CompileOptions, step: int = 1) -> None:
    """Raises InvalidInput where the file fixes another batch than ``--batch``, caches of another length than ``--context``, or
    another number of tokens than ``step``; UsageError where ``--dim`` does."""
    func = module.entry
    ids = _shape(_ids(func, options))
    if options.context is None or len(ids) != 2:
        return
    if ids[1] == options.context != step and (stated := next((one for one in options.roles if one.endswith("=ids")), "")):
        raise InvalidInput(IdsOfCaches(stated.rpartition("=")[0], ids[1]), where=f"--role {stated}")
    results = {value.name[1:]: _shape(value.type) for value in func.results}
    makers = {value.name[1:]: op for op in without_copies(func).ops for value in op.results}
    axes = {pair: cache_axis(pair, makers.get(pair.result)) for pair in _pairs(func, options)}
    lengths = [results[pair.result][axis] for pair, axis in axes.items() if axis is not None]
    sizes = [("tokens of a step", ids[1], step, "--context")]
    sizes += [("batch", ids[0], options.batch, "--batch")] if options.batch else []
    sizes += [("positions of its caches", length, options.context, "--context") for length in lengths]
    for what, size, asked, flag in sizes:
        if isinstance(size, int) and size != asked:
            needed = sized(replace(options, dims={}), step).dims
            dims = [name for name, given in options.dims.items() if needed.get(name, given) != given]
            if dims and step == 1:
                raise UsageError(SizeFixed(f"--dim {dims[0]}", what, size, asked), where=flag)
            raise InvalidInput(SizeFixed("the file", what, size, asked), where=flag)


def _ids(func: Func, options: CompileOptions) -> Type:
    """The type of the token ids; unknown where no input has them."""
    roles = roles_of(func, {pair.source for pair in _pairs(func, options)}, options.roles)
    return next((arg.type for arg in func.args if roles.get(arg.name[1:]) is Role.IDS), UNKNOWN)


def _pairs(func: Func, options: CompileOptions) -> tuple[Pair, ...]:
    """The states of a model: those that ``--state`` names, and caches that are recognised."""
    stated = named(func, options.states)
    return (*stated, *(pair for pair in caches(func) if pair.source not in {one.source for one in stated}))


def with_past_checked(
    module: Module, options: CompileOptions, context: PassContext, read: Func | None = None, step: int = 1
) -> Module:
    """The module at ``step`` tokens, which states the constants of relative positions of one token (``RELATIVE``). Raises
    InvalidInput where the model computes a number from the length of its past, which is another in place. It is read with one
    more position, too: no constant may differ but in how many slots it has, and but for sizes. (The pass ``states`` judges
    those with slots, and constant positions of a model without an input of positions.) Warns where the file fixes the length
    of the past. ``read``: as of ``sized``."""
    require_sizes(module, options, step)
    longest = dict(module.entry.attributes).get(LONGEST)
    if options.context is not None and longest is not None and longest.value < options.context:
        context.sink.warn(ContextOverModel(longest.value, options.context), where="--context")
    growing = [pair.source for pair in _pairs(module.entry, options) if pair.grows is not None]
    if options.context is None or options.model.startswith(ZOO) or not growing:
        return module
    at = sized(replace(options, context=options.context + 1), step, read)
    inside = replace(context, sink=DiagnosticSink(), statistics={})
    longer = load_step(at, inside.sink)
    types = {arg.name: arg.type for arg in longer.entry.args}
    if fixed := [arg.name[1:] for arg in module.entry.args if arg.name[1:] in growing and types[arg.name] == arg.type]:
        context.sink.warn(LengthFixed(fixed[0]), where=fixed[0])
        return module
    past = np.arange(options.context - step, options.context) if _looks_up(module.entry, options) else None
    pasts = [past, past + 1 if past is not None else None]
    simplified = [expand(FOLDING.run(expand(one), inside)) for one in (module, longer)]
    relative: list[str] = []
    first, second = (dict(_constants(one, past)) for one, past in zip(simplified, pasts, strict=True))
    for place, (resource, array) in first.items():
        other = second.get(place)
        if other is not None and step == 1 and _is_shifted(array, other[1]):
            relative.append(resource)
        if other is not None and array.shape == other[1].shape and not np.array_equal(array, other[1], equal_nan=True):
            reason = f"the model computes {resource} from the length of its past"
            raise InvalidInput(CacheNotInPlace(growing[0], reason), where=place[0])
    if moved := _moved(simplified[0], simplified[1], pasts[0]):
        reason = f"the model computes {moved} from the length of its past"
        raise InvalidInput(CacheNotInPlace(growing[0], reason), where=moved)
    entry = module.first(Func)
    if entry is None:
        return module
    facts: Mapping[str, object] = {
        **dict(entry.attributes),
        RELATIVE: Attribute(AttrKind.STRINGS, tuple(dict.fromkeys(relative))),
    }
    return module.replace(entry, replace(entry, attributes=attributes(facts)))


def _looks_up(func: Func, options: CompileOptions) -> bool:
    """Whether a decoder has no input of positions, so that it may look them up by a constant."""
    states = {pair.source for pair in _pairs(func, options)}
    return Role.POSITIONS not in roles_of(func, states, options.roles).values()


def _are_positions(array: NDArray[Any] | None, past: NDArray[Any] | None) -> bool:
    """Whether the last dimension of ``array`` is the positions of a step. ``past``: as of ``_constants``."""
    return array is not None and past is not None and array.shape[-1:] in ((), past.shape) and bool((array == past).all())


def _is_shifted(array: NDArray[Any], longer: NDArray[Any]) -> bool:
    """Whether ``longer`` has one more number before those of ``array`` in the last dimension."""
    grown = array.ndim > 1 and longer.shape == (*array.shape[:-1], array.shape[-1] + 1)
    return grown and np.array_equal(array, longer[..., 1:], equal_nan=True)


def _moved(module: Module, longer: Module, past: NDArray[Any] | None) -> str:
    """The first value that ops make of constants which are too large to be folded, of one shape whatever the length of the
    past, which chooses its numbers; empty where there is none. ``past``: as of ``_constants``."""
    one, other, twins = module.resources, longer.resources, {op.results[0].name: op for op in longer.entry.ops if op.results}
    depends: dict[str, bool] = {}
    for op in module.entry.ops:
        twin = twins.get(op.results[0].name) if op.results else None
        if twin is None or len(twin.operands) != len(op.operands) or any(op.regions):
            continue
        if not all(name in one or name in depends for name in op.operands if name):
            continue
        read = [number for number, name in enumerate(op.operands) if name in one and twin.operands[number] in other]
        arrays = [(array_of(one[op.operands[number]]), array_of(other[twin.operands[number]])) for number in read]
        if op.name == GATHER and any(_are_positions(array, past) for array, _ in arrays):
            continue
        chosen = any(a is not None and b is not None and not np.array_equal(a, b, equal_nan=True) for a, b in arrays)
        chosen = chosen or any(depends.get(name, False) for name in op.operands)
        if chosen and op.results[0].type == twin.results[0].type:
            return op.results[0].name
        depends.update((value.name, chosen) for value in op.results)
    return ""


def _constants(module: Module, past: NDArray[Any] | None) -> Iterator[tuple[tuple[str, int], tuple[str, NDArray[Any]]]]:
    """The constants that ops read, sizes aside: by the op's first result and the operand, its name and elements. ``past``: the
    positions of the step, if a table is read by them as a constant, which is left aside too."""
    resources = module.resources
    for op in module.entry.ops:
        for number, name in enumerate(op.operands if op.results else ()):
            array = array_of(resources[name]) if name in resources else None
            whole = array is not None and array.dtype.kind == "i"
            position = whole and op.name == GATHER and _are_positions(array, past)
            if array is not None and not position and not (whole and op.name in OF_SIZES):
                yield (op.results[0].name, number), (name, array)


def _sizes(
    func: Func, pairs: Sequence[Pair], roles: Mapping[str, Role], *, batch: int, step: int, context: int
) -> dict[str, int]:
    """A number for each symbol in the inputs of a decoder."""
    types = {arg.name[1:]: arg.type for arg in func.args}
    results = {value.name[1:]: value.type for value in func.results}
    found: dict[str, int] = {}
    for pair in pairs:
        shape, written = _shape(types[pair.source]), _writer(func, pair)
        for axis, dim in enumerate(shape):
            if pair.grows == axis and written is not None:  # its lengths before and after a step are one, where it is in place
                _bind(found, dim, context)
                _bind(found, _shape(results[pair.result])[axis], context)
            elif pair.grows == axis:
                _bind(found, dim, context - step)
            elif axis == 3 and written is not None:
                _bind(found, dim, _width(written, func))
            elif axis == 0:
                _bind(found, dim, batch)
            elif pair.grows is None and len(shape) > 2 and axis == len(shape) - 2:
                _bind(found, dim, context)
    for name, type_ in types.items():
        shape = _shape(type_)
        if name not in {pair.source for pair in pairs} and shape:
            _bind(found, shape[0], batch)
            if roles.get(name) is not Role.GIVEN:
                _bind(found, shape[-1], context if roles.get(name) is Role.MASK else step)
    return found


def _require_batch_first(func: Func, pairs: Sequence[Pair], roles: Mapping[str, Role]) -> None:
    """Raises InvalidInput for a cache whose first dimension is not the batch, as its name tells: once it is a number, another
    dimension may be as large."""
    ids = next((arg for arg in func.args if roles.get(arg.name[1:]) is Role.IDS), None)
    batch = next(iter(_shape(ids.type) if ids is not None else ()), None)
    types = {arg.name[1:]: _shape(arg.type) for arg in func.args}
    for pair in pairs:
        shape = types[pair.source]
        if pair.grows is not None and isinstance(batch, str) and (isinstance(shape[0], int) or batch in shape[1:]):
            reason = f"its first dimension is {shape[0]}, not the batch, {batch}"
            raise InvalidInput(CacheNotInPlace(pair.source, reason), where=pair.source)


def _writer(func: Func, pair: Pair) -> Op | None:
    """The GroupQueryAttention that writes a cache in place; None where there is none."""
    made = (op for op in func.ops if any(value.name == f"%{pair.result}" for value in op.results))
    return next((op for op in made if op.name == GROUP_QUERY), None)


def _width(attention: Op, func: Func) -> int:
    """The width of a head of a GroupQueryAttention; 0 where types do not tell."""
    types = {value.name: value.type for op in func.ops for value in op.results}
    queries = _shape(types.get(attention.operands[0], UNKNOWN))
    heads, shared = int(attention.get("num_heads", 1)), int(attention.get("kv_num_heads", 1))
    packed = len(attention.operands) < 2 or not attention.operands[1]
    width = queries[-1] if queries else 0
    return width // (heads + 2 * shared if packed else heads) if isinstance(width, int) else 0


def _bind(found: dict[str, int], dim: Dim, size: int) -> None:
    """Binds a dimension that is one symbol; others follow from their symbols."""
    if size > 0 and isinstance(dim, str) and dimensions.symbols(dim) == (dim,):
        found.setdefault(dim, size)


def _shape(type_: Type) -> tuple[Dim, ...]:
    return type_.shape or () if isinstance(type_, TensorType) else ()


def chunk_of(options: CompileOptions) -> int:
    """Tokens of a prompt that its program takes at once."""
    return min(options.chunk or CHUNK, (options.context or 2) - 1)


def read_at(
    options: CompileOptions, step: int, pipeline: Sequence[Pass], context: PassContext, read: Func | None = None
) -> Module:
    """The model at ``step`` tokens of each sequence, with costs, expanded. ``read``: as of ``sized``. Raises as ``sized`` and
    the passes."""
    at = sized(options, step, read)
    module = load_step(at, context.sink)
    if step == 1:
        module = with_past_checked(module, options, context, read)
    else:
        require_sizes(module, options, step)
        if _looks_up(module.entry, options):
            with suppress(InvalidInput):  # what the pass states judges may hold, and it refuses the rest
                module = with_past_checked(module, options, context, read, step)
    module = expand(module)
    for one in pipeline[: 1 + next(i for i, one in enumerate(pipeline) if one.name == "cost")]:
        module = expand(one.run(module, context))
    return module
