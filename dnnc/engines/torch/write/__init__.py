"""Training builds, written: ``stage_file`` the Python of a program, ``build`` the directory, ``schedule_csv`` rows for
torch."""
