"""Helpers for this machine, independent of images: processes, locks, files, the home."""
