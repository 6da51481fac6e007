"""Bill of materials and evidence of an image, bound to it by their digests in its manifest.

What they say is signed. Without the digests, those of another image that somebody copied into the
folder would be signed as this one's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from builder.model.digests import digest_of
from builder.model.errors import BadInput
from builder.model.manifest import Manifest
from builder.model.results import Artifact
from builder.system.atomic import read_regular

_HINT = "build the image again; of evidence alone, build-images verify makes it anew"


def artifact_path(folder: Path, artifact: Artifact) -> Path:
    """Return where an artifact of a manifest lies: in its folder, whatever path the manifest says.

    A manifest can be anybody's, and what it names may be sent to a registry.
    """
    return folder / artifact.path.name


def with_digests(folder: Path, manifest: Manifest, written: Iterable[str]) -> Manifest:
    """Return a manifest with the digests of the files that were `written` now.

    Those of others stay as they are: what was put in their place since is not bound.
    """
    new = {name: digest_of((folder / name).read_bytes()) for name in written}
    known = {**manifest.digests, **new}
    digests = {name: known[name] for name in manifest.bound_names if name in known}
    return dataclasses.replace(manifest, digests=digests)


def read_bound(folder: Path, manifest: Manifest, name: str) -> bytes:
    """Return the bytes of a file that a manifest binds; raises `BadInput` if they are others."""
    try:
        content = read_regular(folder / name, follow=True)
    except OSError as error:
        raise BadInput(f"{folder / name}: cannot be read ({error.strerror})", hint=_HINT) from error
    digest = manifest.digests.get(name)
    if digest is None:
        raise BadInput(f"{folder / name}: manifest.json has no digest of it", hint=_HINT)
    if digest_of(content) != digest:
        raise BadInput(f"{folder / name}: not the file that manifest.json names", hint=_HINT)
    return content
