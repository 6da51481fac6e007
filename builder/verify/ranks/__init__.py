"""Ranks in containers of their own, started by this host's launcher: the hybrid way, and bind.

https://apptainer.org/docs/user/latest/mpi.html
"""
