"""The side of a run that starts the devices' processes, feeds them and collects what they compute.

- ``roles``: what each process does, as data; ``host``: the processes of one host and what they share; ``starting``: all
  processes and the starter's ends of links; ``processes``: what a process says and how it ends;
- ``pipeline``: a run of many microbatches, with its events; ``collector``: its outputs; ``results``: what it gives;
- ``recovery``: goes on after a loss;
- ``served``: a pipeline that a thread of its own serves; ``stream``: microbatches one by one, from any thread.
"""
