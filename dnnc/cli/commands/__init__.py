"""The commands of ``dnnc``, a file for each or for a few that share their work; ``dnnc.cli.app`` lists them.

A command reads its options, calls the function that does the work (of ``dnnc.api`` or another room), and prints what came back.
"""
