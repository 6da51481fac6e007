"""Ranks in separate containers, started by this host's launcher: hybrid and bind model.

https://apptainer.org/docs/user/latest/mpi.html
"""
