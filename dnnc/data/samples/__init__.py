"""The microbatches of training, by number: microbatch k depends on the source and the seed, not on the plan.

- ``source``: the sources by name, and what each step adds to them: the seed of dropouts, the number of labels that count;
- ``order``: which samples a microbatch has: shuffled in each epoch, and what becomes of a last batch that they do not fill;
- ``shards``, ``columns``: samples in files, mapped into memory, of which each rank reads its part;
- ``stream``: batches that a function of a person's yields, one after another; ``datasets``: samples that are asked for by
  number, as PyTorch's datasets and loaders have them;
- ``one_pass``: all samples once, for an evaluation;
- ``given``: microbatches in files, which a Python program's data become while they train;
- ``arrays``: what an array must be to fit an input.
"""

from dnnc.data.samples.given import MICROBATCHES, Feed
from dnnc.data.samples.one_pass import Pass, verify_pass, write_samples
from dnnc.data.samples.source import POOL, SYNTHETIC, Data, Microbatches, data_inputs, given_data, open_data

__all__ = [
    "MICROBATCHES",
    "POOL",
    "SYNTHETIC",
    "Data",
    "Feed",
    "Microbatches",
    "Pass",
    "data_inputs",
    "given_data",
    "open_data",
    "verify_pass",
    "write_samples",
]
