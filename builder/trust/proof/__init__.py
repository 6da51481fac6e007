"""Signatures and statements about images, in cosign's two formats, with local keys or cosign."""
