"""A module as text and back: ``parse(print(m)) == m``.

- ``parser``, ``reader``, ``literals``: text to module, by the rules of ``grammars``;
- ``printer``: module to text; ``aliases``, ``likeness``, ``renaming``: what is said once in place of many times;
- ``records``, ``dense``: topologies, schedules and plans as ``{key = value}``; elements of tensors;
- ``json_text``: JSON that somebody else wrote.
"""
