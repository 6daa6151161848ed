"""Two problems as numbers, shared by ``partition``, ``place`` and ``replay``: a function is divided into stages, and stages
are given to devices. Here are the problems, their exact reductions, and bounds that hold for every solver.

- ``problem``, ``from_ir``: nodes, tensors and kinds of devices; what a stage costs; ``arrays``: their rows, flat;
- ``load``: how compute and transfers of a device add up, and when a plan hands microbatches over;
- ``colocation``: ops that must share a stage; ``reduce``: nodes that some best plan keeps together; ``canonical``: an order of
  nodes by the graph and its costs alone, and the colours that tell nodes apart;
- ``bounds``: what no plan is below; ``fusing``: what an op costs more where a border parts it from what it is fused into;
- ``lattice/``: the ideals that stages lie between, and the dynamic programme over them;
- ``placement``, ``placement_from_ir``, ``placement_search``: stages on concrete devices and links.
"""
