"""The Python door: what ``import dnnc`` offers, and what the command line calls.

- ``feeding``: training data of a program, as ranks read them;
- ``plan``: a plan of a model for machines, and the build that it writes; ``options``: what a plan may be asked for;
- ``model``: models that are Python objects; ``build``: a build, which starts, checks and trains;
- ``exporting``: a model with the weights of a checkpoint; ``reporting``: the page of a build;
- ``session``: a running build, as an ``onnxruntime.InferenceSession``; ``terms``: messages in Python's terms.
"""
