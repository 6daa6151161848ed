"""What is seen of a training while it runs.

- ``record``: the loss of each step, and the measured timeline of the last one;
- ``evaluation``: loss and metrics on data of their own; ``forward_step``: the forward passes alone, which it runs;
- ``best``: the best weights so far, and when to stop early;
- ``nonfinite``: the op that made the first NaN or infinity;
- ``scale``: whether the scale of the loss explains gradients that are not finite;
- ``watching``: how a rank takes part in evaluations;
- ``logs``: files of numbers for other programs: CSV, JSON lines, TensorBoard's.
"""
