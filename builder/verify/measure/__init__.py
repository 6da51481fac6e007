"""The stage that measures an image: how fast its programs are in each format, and bare.

Nothing is gated by it but a collapse: see `Measured.collapse_in`.
"""
