"""What runs a build: ``onnxruntime`` for inference, ``torch`` for training; ``cluster``: over several hosts; ``hosts``:
what is stated of these, their answers and faults, which the command line reads without a third party."""
