"""Sources: files that builds need from elsewhere, pinned by checksum and kept in a store."""
