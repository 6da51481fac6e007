"""What is in Buildah's storage, read from its own records: images, the layers that they share.

The files are those of https://github.com/containers/storage: `overlay-images/images.json` and
`overlay-layers/layers.json`, or with `vfs` for `overlay`. Drivers may lie beside each other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.build.engines.drivers import VFS
from builder.model.exact_json import part


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredImage:
    """An image: `layer` is its topmost layer. `created` is a time in UTC as ISO 8601.

    An image without names is a step that a later build may go on from.
    """

    id: str
    names: tuple[str, ...]
    layer: str
    created: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    """Images by id, and layers by id: the layer below, and bytes that are its own.

    With vfs each layer takes the bytes of those below it, too: it is `copied` from them.
    """

    images: Mapping[str, StoredImage]
    layers: Mapping[str, tuple[str, int]]
    copied: bool = False

    def chain(self, image: StoredImage) -> set[str]:
        """The layers that an image consists of."""
        found: set[str] = set()
        layer = image.layer
        while layer in self.layers and layer not in found:
            found.add(layer)
            layer = self.layers[layer][0]
        return found

    def garbage(self, kept: Iterable[str], *, before: str) -> list[StoredImage]:
        """The images that are needed for none of the `kept` names; the topmost ones first.

        What was made since `before` stays: steps of images that are being worked on.
        """
        names = set(kept)
        needed: set[str] = set()
        for image in self.images.values():
            if names & {*image.names} or image.created >= before:
                needed |= self.chain(image)
        unneeded = [
            one
            for one in self.images.values()
            if not names & {*one.names} and one.created < before and one.layer not in needed
        ]
        return sorted(unneeded, key=lambda one: -len(self.chain(one)))

    def bytes_of(self, images: Iterable[StoredImage]) -> int:
        """The bytes that are free when these images are gone: other images keep their layers."""
        gone = {one.id for one in images}
        stay: set[str] = set()
        leave: set[str] = set()
        for image in self.images.values():
            (leave if image.id in gone else stay).update(self.chain(image))
        return sum(map(self._bytes, leave - stay))

    def _bytes(self, layer: str) -> int:
        below, own = self.layers[layer]
        return own + (self._bytes(below) if self.copied and below in self.layers else 0)


def read_storage(folder: Path, driver: str) -> Storage:
    """What a storage holds by a driver; nothing, where there is none."""
    images: dict[str, StoredImage] = {}
    layers: dict[str, tuple[str, int]] = {}
    for one in _list(folder / f"{driver}-images/images.json"):
        names = tuple(part(one, "names") or ())
        created, layer = str(one.get("created", "")), str(one.get("layer", ""))
        number = str(one["id"])
        images[number] = StoredImage(id=number, names=names, layer=layer, created=created)
    for one in _list(folder / f"{driver}-layers/layers.json"):
        size = int(str(one.get("diff-size") or 0))
        layers[str(one["id"])] = (str(one.get("parent", "")), size)
    return Storage(images=images, layers=layers, copied=driver == VFS)


def left_by_vfs(folder: Path, driver: str) -> list[Path]:
    """The folders that vfs has left in a storage whose driver is overlay now, the records first.

    The other way round nothing is left: overlay may work again, or on another host.
    """
    folders = [folder / f"{VFS}-images", folder / f"{VFS}-layers", folder / VFS]
    return [path for path in folders if path.is_dir()] if driver != VFS else []


def _list(path: Path) -> list[dict[str, object]]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return []
    return [one for one in found if isinstance(one, dict) and "id" in one]
