"""Writes the build of a planned and lowered module: a directory of ONNX models, weights and the plan.

- ``build``: writes the directory, whole or not at all; ``load_test``: opens each of its models in onnxruntime;
- ``export``: a function as an ONNX model; ``branches``, ``overwritten``: changes that onnxruntime needs to run it correctly;
  ``labelled``: a model whose nodes have unique names, for profiles;
- ``weights_file``: weights in one flat file;
- ``members``, ``member_weights``: writes the models of the members of meshes, and their weights;
- ``annotate``, ``one_session``: the unsplit model with the stage of each node, for programs other than dnnc.
"""

from dnnc.engines.onnxruntime.write.build import WEIGHTS, check_target, write_build, write_model, write_plan

__all__ = [
    "WEIGHTS",
    "check_target",
    "write_build",
    "write_model",
    "write_plan",
]
