"""The options of commands: of several commands (``shared``), of one command (``compile``, ``solve``, ``train``), of a training
step (``training``), and plain values from text (``values``)."""
