"""Serialised ONNX files, walked without reading the data of their tensors.

- ``varint``: base-128 numbers; ``wire``: where tensor data lies in a file; ``places``: where external data lies.
"""
