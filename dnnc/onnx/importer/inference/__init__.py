"""Every value's type: what inference proves, and what the model says of it.

- ``faults``: what is refused, by code; ``shapes``: the whole of it; ``process``: onnx's inference in bounded memory and time; ``value_types``: what is known so far;
- ``loops``: what a Loop carries; ``claims``: what a model says of its own values; ``opaque``: of which of
  them it is believed.
"""
