"""A module as text and back: ``parse(print(m)) == m``.

- ``parser``, ``reader``, ``tokens``, ``literals``: text to module, by the rules of ``grammars``;
- ``printer``: module to text; ``aliases``, ``likeness``, ``renaming``: shorten what repeats;
- ``records``, ``dense``: topologies, schedules and plans as ``{key = value}``; elements of tensors;
- ``json_text``: JSON that somebody else wrote; ``positions``: places in TOML and JSON; ``units``: numbers with units;
- ``faults``: why a text does not parse.
"""
