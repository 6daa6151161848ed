"""Data of a run: arrays, samples and profiled workloads from files, and random arrays in their place.

- ``npz``, ``entries``: ``.npz`` files, and how values are stored in them; ``inputs``: their arrays as microbatches;
- ``generate``, ``ranges``: random arrays that a model accepts, and the indices that it accepts;
- ``faults``: what is refused in them, by code;
- ``samples``: microbatches of training by number; ``repeated``: digests that show whether they are the same again;
- ``workloads``: profiled graphs of the placement literature.
"""
