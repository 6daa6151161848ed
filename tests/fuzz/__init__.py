"""Structural fuzzing of every surface that takes a file: ``python -m tests.fuzz SURFACE --seconds N``.

``mutate`` changes text, trees and bytes; one file per surface makes inputs of its grammar; ``surfaces`` is their table;
``harness`` runs the command on them in forked processes and judges how each run ends. Two are of another kind: ``kills`` ends
commands by signals, ``choices`` compares plans with those of fewer choices.
"""
