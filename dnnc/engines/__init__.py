"""What runs a build: ``onnxruntime`` for inference, ``torch`` for training; ``cluster``: over several hosts."""
