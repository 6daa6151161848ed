"""Writes training builds: ``build`` the directory, ``stage_file`` the Python of one program (``recurrent``: gradients of an
LSTM in it), ``schedule_csv`` a schedule for PyTorch's own pipeline runtime."""
