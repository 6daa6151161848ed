"""From a model and a topology to a build.

- ``load``: a model by its spelling; ``given``: arrays that bind its sizes; ``configs``: what files beside it say;
- ``flags``, ``options``, ``training``: what a person asks, as data, and the passes that it means;
- ``uncounted``: inputs and outputs that a plan does not count; ``witness``: the numbers that prove its bound;
- ``samples``: the microbatches of a step of so many samples;
- ``ranges``: builds that take any size in a range; ``decoding``: builds that keep states;
- ``notes``: what else a certificate tells; ``context``: what passes run with; ``driver``: read, plan, write, explain.
"""
