"""Files for the use of images at a site: batch scripts, modules, manifests.

Planned images become texts by path. The same images give the same texts, and nothing is started.
docs/sites.md shows each file.
"""
