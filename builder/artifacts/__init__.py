"""Built images as files: OCI layouts, flattened trees, digests, the bill of materials.

Pure Python over the formats themselves: no engine is needed to read or compare an artifact.
"""
