"""Differences between two builds: layer by layer, or between the contents of two images.

The contents of an image are kept in a small file of its folder, and those of the build before in a
folder `previous`, with the manifest and the bill of materials of that build.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

from builder.artifacts.flatten import entries_of_layout
from builder.artifacts.manifests import read_manifest, why_none
from builder.artifacts.oci import Layout, labels_of, opened_layer, read_layout
from builder.artifacts.tree import (
    TreeEntry,
    changed_paths,
    clean,
    comparable,
    entry_of,
    first_difference,
)
from builder.model.digests import sha256_of
from builder.model.errors import BadInput, StepFailed, counted, shortened
from builder.model.manifest import FILES, MANIFEST, SBOM, Manifest, compared_values
from builder.model.records import read, write
from builder.system.files import read_json, replacing
from builder.system.terminal import printable

CONFIG, LAYERS, COMPRESSION, ORDER = "config", "layers", "compression", "order"


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """The first difference in one layer (from 1, the lowest), in the config, or in a tarball.

    `what` is content, mode, mtime, owner, type, link, attributes or missing, for `path`; else
    config, layers, compression or order. `more` counts the other paths that differ.
    """

    where: str
    what: str
    text: str
    path: str = ""
    more: int = 0

    def __str__(self) -> str:
        also = f", and {self.more} more" if self.more else ""
        return f"{self.where}: {self.path}{': ' if self.path else ''}{self.text}{also}"


class _Member(NamedTuple):
    """A member of a layer with its owner, which equality of entries leaves out, and its time."""

    entry: TreeEntry
    owner: str
    mtime: str


def layout_differences(before: Layout, after: Layout) -> list[Difference]:
    """Return the differences of two layouts: one for each layer, and one for the config."""
    differences = [*_config_differences(before.config, after.config)]
    if len(before.layers) != len(after.layers):
        text = f"{len(after.layers)} layers, not {len(before.layers)}"
        differences.append(Difference(where="image", what=LAYERS, text=text))
    pairs = zip(before.layers, after.layers, strict=False)
    for number, (old, new) in enumerate(pairs, start=1):
        if old.name != new.name:
            with opened_layer(old) as old_tar, opened_layer(new) as new_tar:
                first, second = _members(old_tar), _members(new_tar)
            differences.append(_difference(f"layer {number}", first, second))
    return differences


def tarball_difference(before: IO[bytes], after: IO[bytes]) -> Difference:
    """Return the first difference of two tar streams whose compressed files differ."""
    return _difference("tarball", _members(before), _members(after))


def _config_differences(
    before: Mapping[str, object], after: Mapping[str, object]
) -> Iterator[Difference]:
    for key in sorted((before.keys() | after.keys()) - {"rootfs"}):
        old, new = before.get(key), after.get(key)
        if old != new:
            name, text = key, f"{new!r}, not {old!r}"
            if isinstance(old, dict) and isinstance(new, dict):
                inner = next(n for n in sorted(old | new) if old.get(n) != new.get(n))
                name, text = f"{key}.{inner}", f"{new.get(inner)!r}, not {old.get(inner)!r}"
            yield Difference(where="config", what=CONFIG, text=f"{name} is {shortened(text, 200)}")


def _difference(
    where: str, before: Mapping[str, _Member], after: Mapping[str, _Member]
) -> Difference:
    paths = sorted(p for p in before.keys() | after.keys() if before.get(p) != after.get(p))
    if paths:
        what, text = _first_difference(before.get(paths[0]), after.get(paths[0]))
        more = len(paths) - 1
        return Difference(where=where, path=f"/{paths[0]}", what=what, text=text, more=more)
    if list(before) != list(after):
        return Difference(where=where, what=ORDER, text="the same files in another order")
    text = "the same bytes in a different compression: another version of zlib?"
    return Difference(where=where, what=COMPRESSION, text=text)


def _first_difference(before: _Member | None, after: _Member | None) -> tuple[str, str]:
    """Return the first property in which the members of one path differ, and its description."""
    if before is None or after is None:
        return "missing", "is new" if before is None else "is missing"
    if before.entry != after.entry:
        return first_difference(after.entry, before.entry)
    if before.owner != after.owner:
        return "owner", f"owner {after.owner}, not {before.owner}"
    return "mtime", f"mtime {after.mtime}, not {before.mtime}"


def _members(stream: IO[bytes]) -> dict[str, _Member]:
    members = {}
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            data = archive.extractfile(member) if member.isreg() else None
            entry = entry_of(member, clean(member.name), sha256_of(data) if data else "")
            members[entry.path] = _Member(entry, entry.owner, f"{member.mtime:.0f}")
    return members


# ---- The contents of two images ----

CONTENTS = "contents.json.gz"
PREVIOUS = "previous"
_DIGITS = 16  # of a file's SHA-256, which tell two contents apart


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageContents:
    """Labels and files of an image; `files` has kind, mode, size, content and target by path.

    `digest` is that of its OCI layout.
    """

    digest: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, tuple[object, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, layout: Layout, entries: Mapping[str, TreeEntry]) -> ImageContents:
        """Return the contents of an image, from its layout and its tree."""
        files = {
            path: (one.kind, one.mode, one.size, one.content[:_DIGITS], one.target)
            for path, one in entries.items()
        }
        return cls(digest=layout.digest, labels=labels_of(layout), files=files)

    def tree(self) -> dict[str, TreeEntry]:
        """Return the files as entries of a tree."""
        return {
            path: TreeEntry(
                path=path,
                kind=str(kind),
                mode=int(str(mode)),
                size=int(str(size)),
                content=str(content),
                target=str(target),
            )
            for path, (kind, mode, size, content, target) in self.files.items()
        }


def keep_contents(folder: Path, layout: Path, entries: Mapping[str, TreeEntry]) -> None:
    """Write the contents of a verified image to its folder."""
    text = json.dumps(write(ImageContents.of(read_layout(layout), entries)))
    with replacing(folder / CONTENTS, alone=True) as partial:
        partial.write_bytes(gzip.compress(text.encode(), mtime=0))


def keep_previous(folder: Path) -> None:
    """Keep what describes an image, and mark it as unfinished: another build replaces it."""
    if (folder / MANIFEST).exists():
        previous = folder / PREVIOUS
        shutil.rmtree(previous, ignore_errors=True)
        previous.mkdir()
        for name in (SBOM, CONTENTS, MANIFEST):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(folder / name, previous / name)
    for name in (MANIFEST, CONTENTS):
        (folder / name).unlink(missing_ok=True)


def previous_of(folder: Path) -> Path:
    """Return the folder with what is kept of the build before an image's last one."""
    if not (folder / PREVIOUS / MANIFEST).exists():
        raise BadInput(f"{folder.name}: no earlier build is kept", hint="name two images")
    return folder / PREVIOUS


KINDS = ("package", "file", "size", "label", "check")
_SHOWN = 20  # differences of a kind
_MB = 1e6


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageChange:
    """An item that differs between two images, with its values, empty where an image has none.

    `what` is one of `KINDS`.
    """

    what: str
    name: str
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        if self.what == "file":
            return f"{self.name}: {self.after}"
        if self.what == "size" and self.before and self.after:
            old, new = int(self.before), int(self.after)
            return f"{self.name}: {old / _MB:.2f} MB → {new / _MB:.2f} MB ({new - old:+} bytes)"
        return f"{self.name}: {self.before or 'none'} → {self.after or 'none'}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedImage:
    """The compared parts of an image: `values` by kind and name, and files, None if not known.

    Images with the same `layers`, digests of the unpacked ones, have the same files.
    """

    image: str
    started: str = ""
    values: Mapping[str, Mapping[str, str]]
    files: Mapping[str, TreeEntry] | None = None
    layers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageChanges:
    """The differences between two images; `unknown` has the reasons for kinds not compared."""

    before: ComparedImage
    after: ComparedImage
    changes: tuple[ImageChange, ...]
    unknown: Mapping[str, str]

    @property
    def is_equal(self) -> bool:
        """True if everything could be compared, and nothing differs."""
        return not self.unknown and not self.changes

    def as_json(self) -> str:
        """Return all differences as JSON."""
        return json.dumps(
            {
                "before": {"image": self.before.image, "started": self.before.started},
                "after": {"image": self.after.image, "started": self.after.started},
                "files_compared": "file" not in self.unknown,
                "packages_compared": "package" not in self.unknown,
                "changes": [asdict(change) for change in self.changes],
            },
            indent=1,
        )

    def as_text(self) -> str:
        """Return the first differences of each kind."""
        lines = [f"- {self.before.image}  {self.before.started}"]
        lines += [f"+ {self.after.image}  {self.after.started}"]
        for kind in KINDS:
            listed = [printable(str(change)) for change in self.changes if change.what == kind]
            if reason := self.unknown.get(kind):
                lines.append(f"{kind}s: not compared: {reason}")
            else:
                number = counted(len(listed), "difference") if listed else "equal"
                lines.append(f"{kind}s: {number}")
            lines += [f"  {text}" for text in listed[:_SHOWN]]
            if len(listed) > _SHOWN:
                lines.append(f"  and {len(listed) - _SHOWN} more; --json lists all")
        return "\n".join(lines)


_NO_LIST = "an earlier version kept no list of them"
_UNKNOWN = {"package": "a bill of materials is missing", "file": _NO_LIST, "label": _NO_LIST}


def image_changes(before: Path, after: Path) -> ImageChanges:
    """Compare the images in two folders: packages, files, sizes, labels and checks."""
    return changes_of(_in_folder(before), _in_folder(after), _UNKNOWN)


def changes_of(
    before: ComparedImage, after: ComparedImage, unknown: Mapping[str, str]
) -> ImageChanges:
    """Compare two images; `unknown` has the reason why a kind is not known, by the kind."""
    known = [kind for kind in KINDS if kind in before.values and kind in after.values]
    changes = [
        change
        for kind in ("package", "size", "check", "label")
        if kind in known
        for change in _changed(kind, before.values[kind], after.values[kind])
    ]
    if before.files is not None and after.files is not None:
        changes += _changed_files(before.files, after.files)
        known.append("file")
    elif before.layers and before.layers == after.layers:
        known.append("file")
    lacking = {kind: unknown[kind] for kind in KINDS if kind not in known}
    return ImageChanges(before=before, after=after, changes=tuple(changes), unknown=lacking)


def _in_folder(folder: Path) -> ComparedImage:
    manifest = _manifest(folder)
    contents = _contents(folder, manifest)
    labels = contents.labels if contents.files else None
    return ComparedImage(
        image=manifest.image,
        started=manifest.started,
        values=compared_values(manifest, read_json(folder / SBOM), labels),
        files=contents.tree() if contents.files else None,
    )


def _changed_files(
    before: Mapping[str, TreeEntry], after: Mapping[str, TreeEntry]
) -> Iterator[ImageChange]:
    for path, difference in changed_paths(after, before).items():
        if path in before and path in after:
            text = difference
        else:
            text = "gone" if path in before else "new"
        yield ImageChange(what="file", name=f"/{path}", after=text)


def _manifest(folder: Path) -> Manifest:
    manifest = read_manifest(folder)
    if manifest is None:
        raise BadInput(why_none(folder))
    return manifest


def _contents(folder: Path, manifest: Manifest) -> ImageContents:
    """Return the contents of an image: as they were kept, else from its layout, else none."""
    if (contents := _kept_contents(folder, manifest)) or not (folder / FILES["oci"]).exists():
        return contents or ImageContents()
    layout = read_layout(folder / FILES["oci"])
    return ImageContents.of(layout, comparable(entries_of_layout(layout, {})))


def _kept_contents(folder: Path, manifest: Manifest) -> ImageContents | None:
    with contextlib.suppress(OSError, ValueError, EOFError, zlib.error):
        text = gzip.decompress((folder / CONTENTS).read_bytes())
        contents = read(ImageContents, json.loads(text))
        if contents.digest == manifest.artifacts["oci"].digest:
            return contents
    return None


def read_labels(folder: Path, manifest: Manifest) -> Mapping[str, str] | None:
    """Return the labels of an image, from its layout or as they were kept; else None."""
    with contextlib.suppress(StepFailed, LookupError, TypeError, AttributeError):
        layout = read_layout(folder / FILES["oci"])
        if layout.digest == manifest.artifacts["oci"].digest:
            return labels_of(layout)
    contents = _kept_contents(folder, manifest)
    return contents.labels if contents else None


def _changed(
    what: str, before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[ImageChange]:
    for name in sorted({*before, *after}):
        old, new = before.get(name, ""), after.get(name, "")
        if old != new:
            yield ImageChange(what=what, name=name, before=old, after=new)
