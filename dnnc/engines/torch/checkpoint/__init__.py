"""Checkpoints: weights, the optimizer's state and where training stands.

- ``tensors``: one safetensors file of tensors, or of parts of tensors;
- ``stored``: a checkpoint that is read, whatever plan it was trained by and whatever plan reads it;
- ``saving``: the ranks of a training write one, beside its steps;
- ``exporting``: the model with the weights of one, as an ONNX file.

A checkpoint is a folder ``stepN`` of safetensors files: ``rankR.safetensors`` has the parts that rank R writes, by weight name;
optimizer state has names of its own (``fc.weight.exp_avg``). ``index.json`` lists these files with their digests; it is written
last, and the folder has its name once it is whole. One file of whole tensors is a checkpoint too: a build's
``weights.safetensors`` is that of step 0, and earlier versions wrote no other.

Why not ``torch.distributed.checkpoint``: its index is a pickle, which runs the code of whoever wrote it, its parts are those
of ``DTensor``, which has no uneven shares, and what reads parts of safetensors is needed for builds anyway.
"""

from dnnc.engines.torch.checkpoint.stored import INDEX, INITIAL, Checkpoint, is_checkpoint, publish
from dnnc.engines.torch.checkpoint.tensors import Box, Part, Position, from_array, write_tensors

__all__ = [
    "INDEX",
    "INITIAL",
    "Box",
    "Checkpoint",
    "Part",
    "Position",
    "from_array",
    "is_checkpoint",
    "publish",
    "write_tensors",
]
