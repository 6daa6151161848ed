"""The operating system: files that somebody else wrote, scratch, child processes, requests to end.

- ``files``: opens every input of the command; ``digests``: open files and their digests;
- ``scratch``: temporary files, and files that become whole in one step;
- ``host``: cores and memory of this process; ``surroundings``: loads torch without touching the user's folders;
- ``child``, ``forked``: our own processes; a call in a child process, bounded in time and memory;
- ``signals``, ``collector``: SIGTERM as an exception; work without the cycle collector;
- ``lazy``: packages that import their modules at first use.
"""
