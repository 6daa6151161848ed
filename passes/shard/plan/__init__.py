"""Plans as they stand in a module: ``decide`` (choices told as decisions by name), ``written``, and ``proof`` of a bound."""
