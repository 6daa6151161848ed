"""A function divided into stages, and stages given to devices: the problems that ``partition``, ``place`` and ``replay``
share, as numbers, and what holds of them whoever solves them.

- ``problem``, ``from_ir``: nodes, tensors and kinds of devices; what a stage costs; ``arrays``: their rows, flat;
- ``load``: how compute and transfers of a device add up;
- ``colocation``: ops that must share a stage; ``reduce``: nodes that some best plan keeps together; ``canonical``: an order of
  nodes by the graph and its costs alone, and the colours that tell nodes apart;
- ``bounds``: what no plan is below; ``fusing``: what an op costs more where a border parts it from what it is fused into;
- ``lattice/``: the ideals that stages lie between, and the dynamic programme over them;
- ``placement``, ``placement_from_ir``, ``placement_search``: stages on concrete devices and links.
"""
