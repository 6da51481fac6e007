"""Policies of sites: an image is held against one before it is pulled."""
