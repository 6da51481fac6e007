"""Rehearsal: try everything of a build that does not need its base image.

If no registry provides a cell's base, the cell is only compiled and linted, which finds few faults.
This room tries the rest: sources, Python and conda packages against their indexes, names of
packages, edits of real sources, options of compilers, imports, and the libraries that wheels expect
from the host. It executes no step of a recipe, except on a stand-in for the base, on request.
"""
