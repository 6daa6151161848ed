"""The operating system: files that somebody else wrote, scratch, child processes, requests to end.

- ``files``: the one door for every input of the command; ``scratch``: files that are not whole yet;
- ``child``, ``forked``: our own processes; a call in a child process, bounded in time and memory;
- ``signals``, ``collector``: SIGTERM as an exception; work without the cycle collector.
"""
