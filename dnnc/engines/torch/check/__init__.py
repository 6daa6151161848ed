"""``dnnc train --check``: the same steps of the unsplit model, compared weight by weight.

- ``check``: the comparison; ``single_steps``: that of 16 bits, step by step; ``oracle``: the unsplit training step;
  ``unsplit``: the model that is compared with; ``batch``: its batch in one piece; ``averages``: running averages of replicas;
  ``optimizers``: updates by torch.optim.
"""
