"""Images taken from a registry by a site: only what is proven, checked by our own code."""
