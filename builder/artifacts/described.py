"""What an OCI layout says of itself, held against what is in it: platform, sizes, digests, kinds.

https://github.com/opencontainers/image-spec/blob/v1.1.0/manifest.md, .../config.md
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from builder.artifacts.oci import CONFIG, MANIFEST, Layout, blob_path, packing_of, read_layout
from builder.model.exact_json import member, part

_VERSION = "1.0.0"
_VARIANTS = {"arm64": "v8"}  # those of the platforms that images are made for


def layout_faults(path: Path, architecture: str) -> list[str]:
    """Where a layout contradicts itself, or is for another platform than `architecture` (amd64).

    The digests of its layers are not compared here: `flatten` does that as it reads them.
    """
    layout = read_layout(path)
    try:
        index = json.loads((path / "index.json").read_text())
        [descriptor] = [one for one in index["manifests"] if one["mediaType"] == MANIFEST]
        manifest = json.loads(blob_path(path, layout.digest).read_bytes())
        return [
            *_wrong_version(path),
            *_wrong_platform(descriptor, layout, architecture),
            *_wrong_sizes(path, [descriptor, manifest["config"], *manifest["layers"]]),
            *_wrong_kinds(path, manifest),
            *_wrong_annotations(layout, manifest),
        ]
    except (LookupError, TypeError, ValueError, AttributeError, OSError) as error:
        return [f"index, manifest or configuration is malformed ({error!r})"]


def _wrong_version(path: Path) -> Iterator[str]:
    """The file by which programs know a layout."""
    try:
        version = json.loads((path / "oci-layout").read_text())["imageLayoutVersion"]
    except FileNotFoundError:
        version = None
    if version != _VERSION:
        yield f"its file oci-layout says version {version}, expected {_VERSION}"


def _wrong_platform(
    descriptor: Mapping[str, object], layout: Layout, architecture: str
) -> Iterator[str]:
    expected = {"architecture": architecture, "os": "linux"}
    index = descriptor.get("platform") or expected
    platforms = {"configuration": layout.config, "index": index}
    for where, platform in platforms.items():
        for key, value in expected.items():
            if (found := part(platform, key)) != value:
                yield f"its {where} is for the {key} {found}, expected {value}"
        variant = part(platform, "variant")
        if variant not in {None, "", _VARIANTS.get(architecture, "")}:
            yield f"its {where} is for the variant {variant} of {architecture}"


def _wrong_sizes(path: Path, descriptors: list[Mapping[str, object]]) -> Iterator[str]:
    for one in descriptors:
        size = blob_path(path, str(one["digest"])).stat().st_size
        if one["size"] != size:
            yield f"the blob {one['digest']} has {size} bytes, and {one['size']} are said"


def _wrong_kinds(path: Path, manifest: Mapping[str, object]) -> Iterator[str]:
    if manifest.get("mediaType", MANIFEST) != MANIFEST or manifest["schemaVersion"] != 2:  # noqa: PLR2004
        yield f"its manifest is a {manifest.get('mediaType')}, expected {MANIFEST}"
    if (config := member(manifest, "config", "mediaType")) != CONFIG:
        yield f"its configuration is a {config}, expected {CONFIG}"
    for layer in member(manifest, "layers"):
        kind = packing_of(blob_path(path, layer["digest"]))
        if layer["mediaType"] != kind:
            yield f"the layer {layer['digest']} is a {kind}, and {layer['mediaType']} is said"


def _wrong_annotations(layout: Layout, manifest: Mapping[str, object]) -> Iterator[str]:
    """Annotations that are labels, too, say the same."""
    labels = labels_of(layout)
    for name, text in (part(manifest, "annotations") or {}).items():
        if name in labels and labels[name] != text:
            yield f"the annotation {name} is {text!r}, and the label {labels[name]!r}"


def labels_of(layout: Layout) -> dict[str, str]:
    """The labels of an image."""
    return dict(part(layout.config, "config", "Labels") or {})
