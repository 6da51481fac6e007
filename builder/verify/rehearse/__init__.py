"""A rehearsal: everything of a build that can be tried without its base image.

Cells whose base no registry gives are compiled and linted, and that shows little of what goes
wrong. This room tries the rest: sources, Python and conda packages against their indexes, names of
packages, edits of real sources, options of compilers, imports, and the libraries that wheels leave
to the host. Nothing of a recipe is executed but its steps on a base that stands in for its own,
where that is asked for.
"""
