"""Sources: external files that builds need, pinned by checksum and stored locally."""
