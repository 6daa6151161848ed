"""Training steps on meshes: the programs of all members, run side by side in torch, update parts as the unsplit step does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

import ir
from dnnc.engines.torch.statements.run import run_function
from dnnc.onnx.arrays import dtype_of_array, to_array, to_dense
from dnnc.zoo import catalogue
from ir import Func, Inline, Mesh, Module, Op, Program, Resource, TensorType, Value
from ir.core.module import Stage
from ir.ops.boxes import box, members_along, placements_of, shape_of
from ir.ops.grads import ACCUMULATE, ASSIGN
from ir.ops.opdefs import COLLECTIVES
from tests.passes.differentiate.oracle import Tensors, differentiated, values_of

MACHINE = """module @machine {
  topology @t {
    type core {rates = {f32 = 1000000000.0, f64 = 1000000000.0}, memory_bandwidth = 1000000000.0}
    host h
    device a {type = core, host = h}
    device b {type = core, host = h}
    device c {type = core, host = h}
    device d {type = core, host = h}
    link bus {ends = [a, b, c, d], bandwidth = 1000000000.0, latency = 0.0}
  }
}
"""


class Members:
    """All members of a mesh in lockstep: op after op, each on its own tensors."""

    def __init__(self, module: Module, values: Tensors) -> None:
        (self.mesh,) = [mesh for mesh in module.of_type(Mesh)]
        programs = {device: program for program in module.of_type(Program) for device in program.devices}
        self.module, self.values = module, values
        self.programs = [programs[device] for device in self.mesh.devices]
        self.held: list[Tensors] = [{} for _ in self.programs]
        self.parts: list[dict[str, tuple[str, tuple[slice, ...]]]] = [{} for _ in self.programs]
        self.assigned: list[dict[str, tuple[tuple[slice, ...], torch.Tensor]]] = [{} for _ in self.programs]

    def run(self) -> None:
        texts = [list(program.ops) for program in self.programs]
        while any(texts):
            for member, text in enumerate(texts):
                while text and not self.meets(text[0]):
                    self.op(member, text.pop(0))
            if any(texts):
                self.collective([text.pop(0) for text in texts])

    def meets(self, op: Op) -> bool:
        return op.name.removeprefix("comm.") in COLLECTIVES

    def read(self, member: int, name: str) -> torch.Tensor:
        held = self.held[member]
        return held[name] if name in held else self.values[name]

    def op(self, member: int, op: Op) -> None:
        held = self.held[member]
        if op.name == "comm.part":
            where = self.place(member, op.get("of"))
            held[op.results[0].name] = self.values[op.operands[0]][where]
            self.parts[member][op.results[0].name] = (op.operands[0], where)
        elif op.name == "comm.member":
            program = self.programs[member]
            number = program.devices.index(self.mesh.devices[member])
            values = op.get("values")
            held[op.results[0].name] = torch.tensor(to_array(values.type, values.data)[number])
        elif op.name == ASSIGN:
            name, where = self.parts[member].get(op.operands[0], (op.operands[0], ()))
            self.assigned[member][name] = (where, self.read(member, op.operands[1]))
        elif op.name == ACCUMULATE:
            held[op.results[0].name] = self.read(member, op.operands[0])
        else:
            given = {name: self.read(member, name) for name in op.operands if name}
            for value, made in zip([v for v in op.results if v.name], self.torch(op, given), strict=True):
                held[value.name] = made

    def torch(self, op: Op, given: Tensors) -> Sequence[torch.Tensor]:
        """The results of one op; small integers, such as shapes, are constants to it."""
        symbols, args, names, values = [], [], {"": ""}, {}
        for number, (name, tensor) in enumerate(given.items()):
            type_ = TensorType(dtype_of_array(tensor.numpy()), tuple(tensor.shape))
            if type_.dtype.is_integer and tensor.numel() <= 64:
                data = to_dense(tensor.numpy()).data
                assert isinstance(data, bytes)
                symbols.append(Resource(f"@c{number}", type_, Inline(data)))
                names[name] = f"@c{number}"
            else:
                args.append(Value(f"%a{number}", type_))
                names[name] = f"%a{number}"
            values[names[name]] = tensor
        results = tuple(value for value in op.results if value.name)
        alone = replace(op, operands=tuple(names[name] for name in op.operands), facets=())
        func = Func("@one", tuple(args), results, (alone,))
        return run_function(func, Module("@one", (*symbols, func), self.module.attributes), values)

    def place(self, member: int, type_: TensorType) -> tuple[slice, ...]:
        found = box(type_, placements_of(type_, self.mesh), self.mesh, member)
        return tuple(slice(start, start + length) for start, length in found)

    def collective(self, ops: Sequence[Op]) -> None:
        kinds = {op.name for op in ops}
        assert len(kinds) == 1, kinds
        inputs = [self.read(member, op.operands[0]) for member, op in enumerate(ops)]
        for member, op in enumerate(ops):
            group = members_along(self.mesh, member, op.get("axis"))
            theirs, own = [inputs[m] for m in group], group.index(member)
            self.held[member][op.results[0].name] = _together([ops[m] for m in group], theirs, own)


def _together(ops: Sequence[Op], tensors: Sequence[torch.Tensor], own: int) -> torch.Tensor:
    """What one member of a group gets; ``ops`` are those of its members, whose parts may differ in length."""
    op = ops[own]

    def part(tensor: torch.Tensor, dim: int) -> torch.Tensor:
        lengths = [(shape_of(one.results[0].type) or ())[dim] for one in ops]
        return tensor.narrow(dim, sum(lengths[:own]), lengths[own])

    if op.name in ("comm.all_reduce", "comm.reduce_scatter"):
        stacked = torch.stack(list(tensors))
        total = stacked.sum(0) if op.get("reduction", "sum") == "sum" else stacked.amax(0)
        return total if op.name == "comm.all_reduce" else part(total, op.get("dim"))
    if op.name == "comm.all_gather":
        return torch.cat(list(tensors), op.get("dim"))
    return torch.cat([part(tensor, op.get("split_dim")) for tensor in tensors], op.get("concat_dim"))


MODELS = {
    "vit": ("vit-base,batch=4,image=8,patch=4,layers=1,hidden=16,heads=4,ffn=32,classes=4", "cross-entropy:"),
    "bert": (
        "bert-base,batch=4,layers=1,hidden=16,heads=4,vocab=12,seq=4,positions=4,intermediate=32",
        "mse:last_hidden_state",
    ),
    "t5": ("t5-base,batch=4,layers=1,hidden=16,heads=4,vocab=12,seq=4,target_seq=2,ffn=32", "cross-entropy:logits"),
    "mixtral": (
        "mixtral-8x7b,batch=4,layers=1,hidden=16,heads=4,kv_heads=2,vocab=12,seq=4,ffn=32,experts=2,top=1",
        "cross-entropy:logits",
    ),
    "resnet50": ("resnet50,batch=4,width=4,image=32,classes=3", "cross-entropy:"),
    "mlp": ("mlp,batch=8,layers=2,inputs=8,hidden=16,outputs=4", "cross-entropy:"),
    "unequal": ("mlp,batch=16,layers=2,inputs=8,hidden=16,outputs=4", "cross-entropy:"),
    "gpt2": ("gpt2,batch=4,layers=1,hidden=8,heads=4,vocab=12,seq=4,positions=4", "cross-entropy:logits"),
}


@pytest.mark.parametrize(
    ("name", "mesh", "recompute"),
    [
        ("mlp", "2", "none"),
        ("mlp", "2x2", "stage"),
        ("unequal", '2,shares="3,2"', "none"),
        ("gpt2", "2", "none"),
        ("gpt2", "4", "stage"),
        pytest.param("gpt2", "2x2", "none", marks=pytest.mark.slow),
        ("bert", "2", "none"),
        ("vit", "2", "none"),
        *(pytest.param(name, "2x2", "none", marks=pytest.mark.slow) for name in ("t5", "mixtral")),
        pytest.param("resnet50", "2", "none", marks=pytest.mark.slow),
    ],
)
def test_members_update_their_parts_as_the_unsplit_step_does(name: str, mesh: str, recompute: str) -> None:
    spec, loss = MODELS[name]
    module = catalogue.build(f"{spec},dtype=f64").extend(list(ir.parse_module(MACHINE).symbols))
    base = differentiated(module, f'training{{loss="{loss}",optimizer=sgd}},canonicalize,cost')
    whole = differentiated(base, "differentiate{learning-rate=1.0}")
    step = f"differentiate{{learning-rate=1.0,recompute={recompute}}}"
    split = differentiated(base, f"partition{{objective=training,stages=1,mesh={mesh}}},{step},lower,localize")
    members_update_as_unsplit(split, whole)


def updated(whole: Module, values: Tensors) -> Tensors:
    """Every weight after one microbatch of the unsplit step."""
    func = whole.entry
    updates = {op.operands[0]: op.operands[1] for op in func.ops if op.name == ASSIGN}
    same = [replace(op, name="onnx.Identity", attributes=()) if op.name == ACCUMULATE else op for op in func.ops if op.results]
    results = tuple(Value(new, whole.resources[name].type) for name, new in updates.items())
    return dict(zip(updates, run_function(replace(func, ops=tuple(same), results=results), whole, values), strict=True))


def test_sums_over_hosts_are_made_inside_each_first() -> None:
    """On a mesh of hosts by devices of a host with a slow link between hosts, each device sums a half of what its host has
    summed: the gradients cross the link once."""
    machine = MACHINE.replace("    host h\n", "    host h\n    host g\n    switch s\n    switch r\n")
    machine = machine.replace("device c {type = core, host = h}", "device c {type = core, host = g}")
    machine = machine.replace("device d {type = core, host = h}", "device d {type = core, host = g}")
    machine = machine.replace(
        "    link bus {ends = [a, b, c, d], bandwidth = 1000000000.0, latency = 0.0}\n",
        "    link left {ends = [a, b, s], bandwidth = 1000000000.0, latency = 0.0001}\n"
        "    link right {ends = [c, d, r], bandwidth = 1000000000.0, latency = 0.0001}\n"
        "    link between {ends = [s, r], bandwidth = 1000000.0, latency = 0.0}\n",
    )
    spec, loss = MODELS["mlp"]
    module = catalogue.build(f"{spec},dtype=f64").extend(list(ir.parse_module(machine).symbols))
    base = differentiated(module, f'training{{loss="{loss}",optimizer=sgd}},canonicalize,cost')
    split = differentiated(
        base, "partition{objective=training,stages=1,mesh=2x2,strategy=data},differentiate{learning-rate=1.0},lower"
    )
    (stage,) = split.of_type(Stage)
    between = [op for op in stage.ops if op.name == "comm.all_reduce" and op.get("axis") == "x"]
    halves = {op.operands[0].split(".grad")[0] for op in between if "S(0)" in str(op.results[0].type)}
    assert {"%fc1.weight", "%fc2.weight"} <= halves
    members_update_as_unsplit(differentiated(split, "localize"), differentiated(base, "differentiate{learning-rate=1.0}"))


def members_update_as_unsplit(split: Module, whole: Module) -> None:
    """All members of ``split``, which exchange something, against the step of the whole model."""
    values = values_of(split, classes=2) | values_of(whole, classes=2)
    members = Members(split, values)
    assert any(members.meets(op) for program in members.programs for op in program.ops)
    members.run()
    wanted = updated(whole, values)
    for member in range(len(members.programs)):
        assert members.assigned[member].keys() == wanted.keys()
        for weight, (where, found) in members.assigned[member].items():
            assert torch.allclose(found, wanted[weight][where], rtol=1e-6, atol=1e-7), (member, weight)
