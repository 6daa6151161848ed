"""Links of two speeds: stages on devices in groups, over all ideals or along one order (``solver``; ``kernels``: its loops)."""
