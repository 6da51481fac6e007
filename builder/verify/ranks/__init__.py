"""Ranks in containers of their own, started by this host's launcher: the hybrid way, and bind.

https://apptainer.org/docs/user/latest/mpi.html
"""

from __future__ import annotations

from builder.verify.ranks.launchers import LAUNCHERS, ImageMpi, Start
from builder.verify.ranks.running import PROGRAM, Ranks, verify_ranks

__all__ = ["LAUNCHERS", "PROGRAM", "ImageMpi", "Ranks", "Start", "verify_ranks"]
