"""The options of commands: of several commands (``shared``), of one command in a file of its name, of a training step
(``training``), and plain values from text (``values``)."""
