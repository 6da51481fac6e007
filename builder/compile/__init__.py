"""Compile a cell to a Dockerfile and a Singularity definition, and lint both."""
