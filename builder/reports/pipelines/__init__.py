"""Pipelines for CI systems, made from the plan: a job per image, and a job per publication.

Planned images become the text of one YAML file. All differences between images are decided here;
the YAML has jobs, but no logic. The same images give the same text. docs/ci.md describes it.
"""
