"""What a person gives to a run: arrays, samples, profiled workloads; and random ones in their place.

- ``npz``, ``inputs``: arrays read and written, cut into microbatches; ``generate``, ``ranges``: random ones that a model
  accepts;
- ``faults``: what is refused in them, by code;
- ``samples``: microbatches of training by number; ``repeated``: whether they are the same again;
- ``workloads``: profiled graphs of the literature.
"""
