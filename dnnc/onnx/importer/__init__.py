"""From an ONNX file to a module, with every fault named at its node.

- ``model_file``, ``read``: opening a file; its graph as ``@main`` with weights as resources;
- ``wellformed``, ``checks``, ``attribute_values``, ``refusals``: faults of a model, told in the words of who repairs it;
  ``faults``: all of them, by code;
- ``graphs``: walks over a model's graphs and those inside them;
- ``functions``, ``function_opsets``: model-local functions, expanded in the opset of the model;
- ``inference``: every value's type, in bounded memory and time;
- ``model_dims``, ``contradictions``: symbolic dimensions, and those that contradict each other;
- ``evaluate``: one operator on constants; ``bodies``: the ops that define a composite operator.
"""
