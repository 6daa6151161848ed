"""Every value's type: what inference proves, and what the model says of it.

- ``shapes``: the whole of it; ``process``: onnx's inference in bounded memory and time; ``value_types``: the types so far;
- ``loops``: the types of what a Loop carries; ``claims``: the types that a model states itself; ``opaque``: the values whose
  stated types are believed;
- ``reshapes``: those whose elements do not fit; ``type_check``: element types and sizes that no run accepts;
- ``faults``: what is refused, by code.
"""
