"""What every engine knows of other hosts: nothing here runs anything, and no engine is imported.

- ``options``: which cluster a run is on, as the command or a program states it;
- ``answers``: reads what another host answers, each field with its type and range;
- ``faults``: what is refused of hosts and clusters, and why.
"""
