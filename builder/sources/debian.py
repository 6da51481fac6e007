"""Upstream tarballs in Debian's source packages, which are signed and on every mirror.

`debian-source:PACKAGE/VERSION` is the `.orig.tar.*` of a package. VERSION is the upstream version
as Debian writes it, without epoch and revision: `openmpi/5.0.7`, `ucx/1.18.1+ds`. Debian often
repacks the upstream files, so this file is a separate source with its own checksum.

The checksum comes from a suite's index of sources. The checksum of this index is in the suite's
signed Release file: https://wiki.debian.org/DebianRepository/Format
"""

from __future__ import annotations

import lzma
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from email import message_from_string
from email.message import Message
from pathlib import Path

from builder.model.errors import MissingPrerequisite, Refused, StepFailed
from builder.model.inputs import DEBIAN_SOURCE, LockedSource
from builder.sources.download import Downloader, NotFetched
from builder.sources.store import SourceStore, Unfetched
from builder.system.process import Processes
from builder.system.web import server_of

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_INDEX = "main/source/Sources.xz"
_UPSTREAM = re.compile(r"^[0-9]+:|-[^-]*$")  # epoch and revision: the rest is upstream's version
_ORIG = r"{package}_{version}\.orig\.tar\.(?:xz|gz|bz2|lzma|zst)"
_RELEASE_LIMIT = 16 << 20
_GPGV_TIMEOUT_S = 60.0


@dataclass(kw_only=True)
class DebianSources:
    """The source package indices of suites, each read from a mirror when first needed.

    `store.debian` is the mirror's URL. Raises `Unfetched` (exit code 4) if the mirror cannot be
    reached or lacks the package, `Refused` (5) if a signature or a checksum is wrong.
    """

    store: SourceStore
    suites: Sequence[str]
    downloader: Downloader
    processes: Processes
    keyring: Path = KEYRING
    say: Callable[[str], object] = lambda _: None
    _indices: dict[str, str] = field(default_factory=dict)
    _reading: threading.Lock = field(default_factory=threading.Lock)

    def resolve(self, url: str) -> LockedSource:
        """Return the source for a `debian-source:` URL, without recipes and mirrors."""
        package, _, version = url.removeprefix(DEBIAN_SOURCE).partition("/")
        versions: set[str] = set()
        for suite in self.suites:
            for fields in _source_packages(self._index(suite), package):
                upstream = _UPSTREAM.sub("", fields["Version"])
                if upstream == version:
                    return _locked_source(url, package, version, fields)
                versions.add(f"{upstream} ({suite})")
        available = ", ".join(sorted(versions)) or f"none, no package is called {package}"
        raise Unfetched(
            f"{url}: not in Debian's {', '.join(self.suites) or 'suites'}; available: {available}",
            hint="use the upstream version as Debian writes it, without epoch and revision",
        )

    def _index(self, suite: str) -> str:
        with self._reading:
            if suite not in self._indices:
                self._indices[suite] = self._fetch_index(suite)
            return self._indices[suite]

    def _fetch_index(self, suite: str) -> str:
        """Return the text of a suite's source index; check its signature and checksum."""
        if not self.store.debian:
            raise Unfetched(f"no Debian mirror is known for the sources of {suite}")
        self.say(f"reading Debian's index of sources of {suite}")
        sha256, size = _listed_index(self._release(suite), suite)
        index = LockedSource(
            url=f"{DEBIAN_SOURCE}{suite}/0",
            path=f"dists/{suite}/{_INDEX}",
            file="Sources.xz",
            sha256=sha256,
            size=size,
        )
        mirror = SourceStore(path=self.store.path, debian=self.store.debian)
        packed = mirror.ensure(index, downloader=self.downloader)
        return lzma.decompress(packed.read_bytes()).decode()

    def _release(self, suite: str) -> str:
        """Return the part of a suite's InRelease file that Debian's keys signed."""
        url = f"{self.store.debian}/dists/{suite}/InRelease"
        self.store.path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(".partial", ".debian-", self.store.path) as folder:
            signed, plain = Path(folder) / "InRelease", Path(folder) / "Release"
            try:
                self.downloader.fetch(url, signed, limit=_RELEASE_LIMIT)
            except NotFetched as error:
                reason = str(error).replace(server_of(self.store.debian), "the Debian mirror")
                raise Unfetched(f"cannot fetch the Release file of {suite}: {reason}") from error
            self._check_signature(signed, plain, suite)
            return plain.read_text()

    def _check_signature(self, signed: Path, plain: Path, suite: str) -> None:
        if not self.keyring.exists():
            raise MissingPrerequisite(
                f"{self.keyring}: Debian's keys are not on this machine",
                hint="apt-get install debian-archive-keyring, or: build-images setup",
            )
        argv = ["gpgv", "--keyring", str(self.keyring), "--output", str(plain), str(signed)]
        try:
            self.processes.capture(argv, timeout_s=_GPGV_TIMEOUT_S)
        except StepFailed as error:
            text = "\n".join([f"the Release file of {suite} is not signed by Debian:", *error.tail])
            raise Refused(text) from error


def _listed_index(release: str, suite: str) -> tuple[str, int]:
    """Return SHA-256 and size of the source index from a suite's Release file."""
    names = set(re.findall(r"^(?:Suite|Codename): (\S+)$", release, re.MULTILINE))
    if suite not in names:
        raise Refused(f"the mirror's Release file of {suite} is for {', '.join(sorted(names))}")
    sums = release.partition("\nSHA256:\n")[2]
    match = re.search(rf"^ ([0-9a-f]{{64}})\s+(\d+)\s+{re.escape(_INDEX)}$", sums, re.MULTILINE)
    if not match:
        raise Unfetched(f"the Release file of {suite} does not list {_INDEX}")
    return match[1], int(match[2])


def _source_packages(index: str, name: str) -> Iterator[Message]:
    """Yield the fields of each source package with this name."""
    for paragraph in index.split("\n\n"):
        if paragraph.startswith(f"Package: {name}\n"):
            yield message_from_string(paragraph)


def _locked_source(url: str, package: str, version: str, fields: Message) -> LockedSource:
    pattern = _ORIG.format(package=re.escape(package), version=re.escape(version))
    for line in sorted(fields["Checksums-Sha256"].strip().splitlines()):
        sha256, size, name = line.split()
        if re.fullmatch(pattern, name):
            path = f"{fields['Directory']}/{name}"
            return LockedSource(url=url, file=name, sha256=sha256, size=int(size), path=path)
    raise Unfetched(f"{url}: the Debian package has no upstream .orig.tar")
