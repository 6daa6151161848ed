"""Training on torch.distributed: one process per device, which follows its row of the plan's schedule.

```
  exchange    tensors between ranks: collectives, and what crosses between stages
  trainer     the interpreter of rows
  slowed      waits that make a rank as slow as another machine
  files       what ranks read of a build, and of a checkpoint
  data        microbatches of a step, by number
  record      losses as steps are done, and the measured timeline
  rank        a process under torchrun, from its arguments to its exit
  agent       torchrun, which reports how ranks ended
  launch      starts torchrun, follows it, ends it
  failures    why training ended
  check       the same steps of the unsplit model, compared
```

What a rank needs to know of a plan says ``dnnc.program.training``; checkpoints are ``dnnc.backend.torch.checkpoint``, since a
build begins with one. ``dnnc train`` (``launch``) starts ``torchrun`` with the module ``rank``.
"""
