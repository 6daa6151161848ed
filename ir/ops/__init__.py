"""What ops mean: definitions, traits, and the rules that several passes and engines ask for.

- ``opdefs``, ``operators``: arity, attributes and checks of an op; what is true of ONNX's operators beyond their schemas;
- ``grads``, ``grad_kernels``: the dialect of training steps, and its backward kernels;
- ``rows``, ``row_faults``: the actions of a schedule, and what keeps rows from being followed;
- ``boxes``: which part of a tensor a member of a mesh holds;
- ``builder``: builds modules; the one mutable thing.
"""
