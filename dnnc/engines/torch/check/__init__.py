"""``dnnc train --check``: the same steps of the unsplit model, compared weight by weight.

- ``check``: the comparison; ``unsplit``: the model that is compared with; ``batch``: its batch in one piece;
  ``averages``: running averages of replicas; ``optimizers``: updates by torch.optim.
"""
