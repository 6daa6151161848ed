"""Walks serialised ONNX files without reading the data of their tensors.

- ``varint``: base-128 numbers; ``wire``: cuts tensor data out of a model; ``places``: reads and replaces the locations of
  external data.
"""
