"""SHA-256 of bytes in memory, in streams and in files, and OCI descriptors, which have it."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import IO

LARGEST = 1 << 50  # bytes; a larger size is invalid
_CHUNK = 1 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class HashedWriter:
    """Write a file from start to end; count and hash the bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._hash, self.size = file, hashlib.sha256(), 0

    @property
    def digest(self) -> str:
        """The digest `sha256:...` of the bytes written so far."""
        return f"sha256:{self._hash.hexdigest()}"

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)


class HashedReader(io.RawIOBase):
    """Read a file from start to end; count and hash the bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file, self._hash, self.size = file, hashlib.sha256(), 0

    @property
    def digest(self) -> str:
        """The digest `sha256:...` of the bytes read so far."""
        return f"sha256:{self._hash.hexdigest()}"

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        self.size += len(data)
        return data


def digest_of(data: bytes) -> str:
    """Return the digest `sha256:...` of bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def digest_of_file(path: Path) -> str:
    """Return the digest `sha256:...` of a file."""
    return f"sha256:{sha256_of_file(path)}"


def sha256_of(data: IO[bytes]) -> str:
    """Return the SHA-256 of the rest of a stream, in hexadecimal."""
    digest = hashlib.sha256()
    while chunk := data.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return sha256_of(file)


def canonical_json(value: object) -> bytes:
    """Return a value's JSON with sorted keys, without spaces: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def sha256_of_json(content: object) -> str:
    """Return the SHA-256 of a value's `canonical_json`, in hexadecimal."""
    return hashlib.sha256(canonical_json(content)).hexdigest()


def is_digest(text: object) -> bool:
    """Return whether a value is a digest; only SHA-256 is accepted."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Descriptor:
    """Media type, digest and size in bytes of a manifest or a blob.

    `platform` is as in an index: `os`, `architecture`.
    https://github.com/opencontainers/image-spec/blob/v1.1.0/descriptor.md
    """

    media_type: str
    digest: str
    size: int
    artifact_type: str = ""
    platform: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, content: bytes, media_type: str, annotations: Mapping[str, str] = MappingProxyType({})
    ) -> Descriptor:
        """Return the descriptor of bytes."""
        return cls(
            media_type=media_type,
            digest=digest_of(content),
            size=len(content),
            annotations=dict(annotations),
        )

    @classmethod
    def read(cls, value: object) -> Descriptor:
        """Return the descriptor of untrusted JSON; raises `ValueError`."""
        if not isinstance(value, dict):
            raise ValueError("a descriptor is missing")  # noqa: TRY004 - as for each fault below
        kind, digest, size = value.get("mediaType"), value.get("digest"), value.get("size")
        if not is_digest(digest):
            raise ValueError("a descriptor has no sha256 digest")
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < LARGEST:
            raise ValueError(f"the descriptor of {digest} has no size")
        if not isinstance(kind, str) or not kind:
            raise ValueError(f"the descriptor of {digest} has no media type")
        return cls(
            media_type=kind,
            digest=str(digest),
            size=size,
            artifact_type=_texts(value).get("artifactType", ""),
            # Control characters could manipulate a terminal.
            platform={k: v for k, v in _texts(value.get("platform")).items() if v.isprintable()},
            annotations=_texts(value.get("annotations")),
        )

    def bare(self) -> Descriptor:
        """Return media type, digest and size only, as in a `subject`."""
        return Descriptor(media_type=self.media_type, digest=self.digest, size=self.size)

    def as_json(self) -> dict[str, object]:
        """Return the JSON of manifests and indexes."""
        fields: dict[str, object] = {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size,
            "artifactType": self.artifact_type,
            "platform": dict(self.platform),
            "annotations": dict(self.annotations),
        }
        return {key: value for key, value in fields.items() if value or key == "size"}


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {key: text for key, text in value.items() if isinstance(text, str)}
