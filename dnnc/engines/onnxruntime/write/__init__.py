"""From a planned and lowered module to a directory of programs that run.

- ``build``: the directory, written whole or not at all; ``load_test``: every model of it, opened in onnxruntime;
- ``export``: a function as an ONNX model; ``labelled``, ``branches``, ``overwritten``: what onnxruntime needs of one;
- ``segments``, ``members``, ``member_weights``: stages on meshes; ``weights_file``: weights in one flat file;
- ``annotate``, ``one_session``: the unsplit model with its stages, for programs that do not run dnnc.
"""

from dnnc.engines.onnxruntime.write.build import WEIGHTS, check_target, write_build, write_model, write_plan

__all__ = [
    "WEIGHTS",
    "check_target",
    "write_build",
    "write_model",
    "write_plan",
]
