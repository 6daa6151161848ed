"""Is each operator's predicted time true? ``python -m tests.bench.operators [NAME..] [--machines SPEC] [--seconds FILE]``.

Every operator of production models (``cases.py``, in the forms and sizes in which they appear) is a model of its own, priced by
the passes ``canonicalize`` and ``cost`` and the device type of ``--machines``, and run by onnxruntime with one thread. Printed
are predicted and measured seconds and their ratio, those farthest off first; then the share of cases whose ratio is not between
1/2 and 2, and the median ratio.
"""
