"""What ops, values and transfers cost on given machines: seconds and bytes, asked by searches, schedules and reports alike.

- ``op_time``, ``products``, ``profiled``: seconds of an op: by its facts, of tiled products, as measured;
- ``blocked``: values that convolutions keep in blocks, and seconds to reorder them; ``constants``: ops that compute the same
  in every run;
- ``memory``: bytes that a stage needs on its devices; ``learning``: what a training step adds to a model;
- ``views``: values that lie in the memory of others;
- ``network``, ``exchange``: routes between devices, and groups of devices that exchange parts; ``host_classes``, ``parts``:
  parts of a topology that differ in names alone.
"""
