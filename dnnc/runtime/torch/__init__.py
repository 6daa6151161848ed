"""Training on torch.distributed: one process per device, which follows its row of the plan's schedule.

```
  step        what a rank needs of plan.ir: its row, programs, parts of weights, channels and groups
  exchange    tensors between ranks: collectives, and what crosses between stages
  trainer     the interpreter of rows
  data        microbatches of a step, by number
  checkpoint  whole tensors by weight name, written and read
  rank        a process under torchrun, from its arguments to its exit
```

``dnnc train`` (``launch``) starts ``torchrun`` with the ``train.py`` of a build, which calls ``rank.main``.
"""
