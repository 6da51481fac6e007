"""Pipelines for CI systems, made of the plan: a job for each image, one for each set to publish.

From planned images to the text of one YAML file. All that varies between images is decided here;
the YAML holds jobs, and no logic. The same images give the same text. docs/ci.md describes it.
"""
