"""The commands of ``dnnc``, a file for each or for a few that share their work; ``dnnc.cli.app`` lists them.

- ``compile``, ``execute`` (run and check), ``train``, ``simulate``, ``report``, ``inspect``, ``zoo``: plans and builds;
- ``topology``, ``machine`` (detect, measure, merge), ``cluster``, ``whatif``, ``profile``, ``calibrate``: machines;
- ``solve`` (and verify-plan), ``tag``: research; ``ir_tools`` (import, opt, passes): the compiler itself.

A command reads its options, calls the function that does the work (of ``dnnc.api`` or another room), and prints what came back.
"""
