"""Writes training builds: ``build`` the directory, ``stage_file`` the Python of one program, ``schedule_csv`` a schedule for
PyTorch's own pipeline runtime."""
