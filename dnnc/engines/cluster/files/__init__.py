"""The files of a build on other hosts: each host gets the bytes that its stages read, and keeps them.

- ``parts``: which bytes those are, and how they are sent and received;
- ``cache``: where a host keeps them, found by their content.
"""
