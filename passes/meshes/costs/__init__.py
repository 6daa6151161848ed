"""What the members of a mesh spend and hold: asked by searches, by stated plans, by reports and by ``verify-plan``.

- ``member_work``: what members spend on their parts of an op;
- ``bill``, ``price``: what a sharded function costs under given decisions, collective by collective;
- ``footprint``: what a stage on a mesh needs of a device, by the kinds of bytes of ``passes.costs.memory``;
- ``cross_mesh``: what passes between two stages, and what it costs at both ends;
- ``count``: what the collectives of a lowered stage cost, counted from its ops.
"""
