"""A cell becomes a Dockerfile and a Singularity definition, which are linted."""
