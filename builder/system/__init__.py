"""This machine, which knows nothing of images: processes, locks, files, the home."""
