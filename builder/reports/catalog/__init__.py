"""The catalogue: a static web site of images, made from their output folders.

It proves nothing itself: it shows the evidence, and says if evidence is not for the artifacts
beside it. All texts are escaped; the pages load nothing from other sites.
docs/catalog.md describes it.
"""
