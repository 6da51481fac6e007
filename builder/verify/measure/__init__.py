"""The stage that measures the speed of programs in each format of an image, and bare.

Only a collapse of the speed is a failure: see `Measured.collapse_in`.
"""
