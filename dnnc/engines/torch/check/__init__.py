"""``dnnc train --check``: the same steps of the unsplit model, compared weight by weight.

- ``check``: the comparison; ``batch``: the batch in one piece; ``averages``: running averages of replicas;
  ``optimizers``: updates by torch.optim.
"""
