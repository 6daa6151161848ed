"""The intermediate representation: types, ops, modules, their text, and the checks that keep them honest."""
