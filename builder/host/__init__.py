"""Hosts of images: their records, and the verdict on an image before it runs there."""
