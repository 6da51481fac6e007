"""Hosts that run images: their records, and the verdict whether an image runs on them."""
