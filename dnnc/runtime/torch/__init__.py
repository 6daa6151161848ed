"""Training on torch.distributed: one process per device, which follows its row of the plan's schedule.

```
  exchange    tensors between ranks: collectives, and what crosses between stages
  trainer     the interpreter of rows
  slowed      waits that make a rank as slow as another machine
  files       what ranks read of a build, and of a checkpoint
  data        microbatches of a step, by number
  record      losses as steps are done, and the measured timeline
  job         what a rank is told by who starts it, and how it meets the others
  telling     what a rank tells who started it
  rank        a process, from its arguments to its exit
  meeting     how hosts prove to each other that they belong together
  starting    the processes of ranks: started, watched, ended
  launch      a training: its ranks, what they tell, why they end
  failures    why training ended
  batch       the batch of a step in one piece
  check       the same steps of the unsplit model, compared
```

What a rank needs to know of a plan says ``dnnc.program.training``; checkpoints are ``dnnc.backend.torch.checkpoint``, since a
build begins with one. ``dnnc train`` (``launch``) starts ``rank`` for each device of the host.
"""

from dnnc.surroundings import load_torch_elsewhere

load_torch_elsewhere()

__all__: list[str] = []
