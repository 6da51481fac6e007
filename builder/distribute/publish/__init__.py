"""Publish proven images to a registry: images by digest, then proof, then indexes, tags last."""
