"""Whether an image is proven enough for a site: a policy, held against what was gathered."""
