"""Pull images from a registry: only proven ones, each byte checked by our own code."""
