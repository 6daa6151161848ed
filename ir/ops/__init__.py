"""What ops mean: definitions, traits, and the rules that several passes and engines ask for.

- ``opdefs``, ``operators``: arity, attributes and checks of an op; what is true of ONNX's operators beyond their schemas;
- ``grads``, ``optimizers``, ``grad_kernels``: the dialect of training steps: its own ops, those that update weights, backward
  kernels; ``recipe``, ``rates``: what an update does beside, and schedules of its learning rate;
- ``rows``, ``row_faults``: the actions of a schedule, and what keeps rows from being followed;
- ``boxes``: which part of a tensor a member of a mesh holds;
- ``builder``: builds modules; the one mutable thing.
"""
