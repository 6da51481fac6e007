"""Bill of materials and evidence of an image, bound to it by their digests in its manifest.

What they say is signed. Without the digests, those of another image that somebody copied into the
folder would be signed as this one's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from builder.model.digests import digest_of
from builder.model.errors import BadInput
from builder.system.regular_files import read_regular

SBOM = "sbom.cdx.json"
_HINT = "build the image again; of evidence alone, build-images verify makes it anew"


def artifact_path(folder: Path, artifact: Mapping[str, Any]) -> Path:
    """Return where an artifact of a manifest lies: in its folder, whatever path the manifest says.

    A manifest can be anybody's, and what it names may be sent to a registry.
    """
    return folder / Path(str(artifact["path"])).name


def bound_names(manifest: Mapping[str, Any]) -> list[str]:
    """Return the names of the files that a manifest binds, relative to its folder."""
    return [str(manifest.get("sbom", SBOM)), *map(str, manifest.get("evidence") or [])]


def with_digests(
    folder: Path, manifest: Mapping[str, Any], written: Iterable[str]
) -> dict[str, Any]:
    """Return a manifest with the digests of the files that were `written` now.

    Those of others stay as they are: what was put in their place since is not bound.
    """
    new = {name: digest_of((folder / name).read_bytes()) for name in written}
    known = {**(manifest.get("digests") or {}), **new}
    return {
        **manifest,
        "digests": {one: known[one] for one in bound_names(manifest) if one in known},
    }


def read_bound(folder: Path, manifest: Mapping[str, Any], name: str) -> bytes:
    """Return the bytes of a file that a manifest binds; raises `BadInput` if they are others."""
    try:
        content = read_regular(folder / name, follow=True)
    except OSError as error:
        raise BadInput(f"{folder / name}: cannot be read ({error.strerror})", hint=_HINT) from error
    digest = (manifest.get("digests") or {}).get(name)
    if digest is None:
        raise BadInput(f"{folder / name}: manifest.json has no digest of it", hint=_HINT)
    if digest_of(content) != digest:
        raise BadInput(f"{folder / name}: not the file that manifest.json names", hint=_HINT)
    return content
