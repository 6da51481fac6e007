"""Container images for supercomputers: declared once, built, proven, in three formats."""

__version__ = "0.1.0"
