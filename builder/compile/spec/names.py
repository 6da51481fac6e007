"""What files in a spec's folder are called."""

from __future__ import annotations

from builder.model import PlannedImage


def base_archive(image: PlannedImage) -> str:
    """The name, in the spec's folder, of the OCI archive that the definition starts from."""
    return f"{image.base.name}-{image.cell.arch}.oci.tar"
