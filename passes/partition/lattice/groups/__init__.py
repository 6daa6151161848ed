"""Throughput over links of two speeds: devices in groups, over all ideals or along one order (``solver``, its ``kernels``)."""
