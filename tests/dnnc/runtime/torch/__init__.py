"""Tests of training on torch.distributed."""
