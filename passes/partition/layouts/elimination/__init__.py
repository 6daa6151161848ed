"""The choices of least ``seconds + price * bytes``: variables of tables are eliminated, once for what repeats.

``folded`` is the search. ``charges`` and ``model`` make the tables of a problem; ``structure`` says which copies of a repeated
part meet their neighbours alike. ``elimination`` adds tables up and minimises over variables one by one; ``stretches`` makes
the table of many equal copies half by half.
"""
