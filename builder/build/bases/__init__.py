"""Base images that are made here: from a Debian mirror to an OCI archive in the store."""
