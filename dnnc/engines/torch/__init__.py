"""Training on torch.distributed: one process per device, which follows its row of the plan's schedule.

```
  module      PyTorch modules as models, and trained weights back into the module
  statements  ops as statements of Python
  write       the directory of a training build
  checkpoint  weights and optimizer state, each rank its part
  launch      how the ranks of a training are started, meet, are followed and end
  rank        a process, from its arguments to its exit
  files       what ranks read of a build, and of a checkpoint
  trainer     the interpreter of rows
  exchange    tensors between ranks: collectives, and what crosses between stages
  slowed      waits that make a rank as slow as another machine
  watch       losses as steps are done, evaluations, logs, where NaN comes from
  probe       a process that measures what ranks do
  check       the same steps of the unsplit model, compared
```

Microbatches of a step, by number, are ``dnnc.data.samples``; what a rank needs to know of a plan is ``dnnc.build.training``.
"""

from ir.system.surroundings import load_torch_elsewhere

load_torch_elsewhere()

__all__: list[str] = []
