"""The local store of base images, which mmdebstrap makes once for each content key."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import shlex
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from builder.artifacts import oci
from builder.build.mirror import NONE, SECURITY, SECURITY_VARIABLE, DebianMirror
from builder.model import BaseImage, Bootstrap
from builder.model.architectures import ARCHITECTURES
from builder.model.cells import base_tag
from builder.model.errors import MissingPrerequisite, StepFailed
from builder.model.package_indices import IndexState
from builder.model.records import read, write
from builder.sources.site_store import SiteStore
from builder.system.files import (
    as_root_of_own,
    fsync,
    fsync_files,
    note_use,
    read_json,
    remove_tree,
)
from builder.system.home import LENT_AT
from builder.system.locks import locked
from builder.system.process import Processes

# Time stamps in a base are clamped to this, so that the same packages give the same bytes:
# https://reproducible-builds.org/specs/source-date-epoch/
SOURCE_DATE_EPOCH = 1
PATH_IN_IMAGES = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KEYRINGS = Path("/usr/share/keyrings")
RECORD = "base.json"
_FORMAT = "3"

# Kept in the image for the build steps: packages and apt's caches do not stay in a layer, where
# they would make up a third of it. mmdebstrap itself needs the packages.
_APT_CONF = "80build-images"
_APT_OPTIONS = """\
APT::Keep-Downloaded-Packages "false";
DPkg::Post-Invoke { "rm -f /var/cache/apt/*.bin || true"; };
"""
# If apt's own user may not enter the root file system, apt leaves these folders to root.
_OF_APT = 'chroot "$1" chown _apt /var/cache/apt/archives/partial /var/lib/apt/lists/partial'


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredBase:
    """A base in the store. `name` is its name in specs, `digest` that of its OCI manifest.

    A base from a registry, stored by `load`, has neither a `key` nor a time in `made`. `indices`
    are the states of the package indices that it was made with, if they are known.
    """

    name: str
    arch: str
    key: str
    archive: Path
    digest: str
    made: str
    indices: tuple[IndexState, ...] = ()

    @property
    def tag(self) -> str:
        """Its unique name in an engine."""
        return base_tag(self.digest)

    @property
    def names(self) -> tuple[str, ...]:
        """All its names in an engine, which cannot name an image by digest."""
        return (self.tag,) if "@" in self.name else (self.name, self.tag)

    def touch(self) -> None:
        """Record that it was used: `gc` keeps recently used bases."""
        note_use(self.archive.parent / RECORD)

    def check(self) -> None:
        """Raise `StepFailed` if the store has another base in its place now.

        A copy outside of the store has no record beside it, and nobody replaces it.
        """
        record = read_json(self.archive.parent / RECORD)
        if record.get("digest", self.digest) != self.digest:
            raise StepFailed(
                f"{self.archive}: not the base that this run began with ({self.digest})",
                hint="another build-images has replaced it: run the same command again",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Bootstrapping:
    """Settings with which mmdebstrap fills a store: mirror, log and progress listener.

    Folders made before `not_before`, a time in UTC as ISO 8601, are made anew. `environment` has
    further variables for mmdebstrap, such as a proxy for packages. `shared` is the site's store,
    which bases and native tools are taken from, unless they are made anew, and added to.
    """

    store: Path
    mirror: DebianMirror
    processes: Processes
    log: Path
    say: Callable[[str], None]
    not_before: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    shared: SiteStore = field(default_factory=SiteStore)

    def take(
        self, tag: str, folder: Path, what: str, read_taken: Callable[[], Mapping[str, object]]
    ) -> Mapping[str, object]:
        """Fill a folder from the site's store; return its record, empty if the store has none.

        `read_taken` reads the record, and raises `ValueError` for a damaged entry.
        """
        if self.not_before or not self.shared.take(tag, folder):
            return {}
        try:
            about = read_taken()
        except (ValueError, LookupError, OSError, tarfile.TarError) as error:
            self.say(f"{what}: the entry in the site's store is damaged: {error}")
            for path in folder.iterdir():
                remove_tree(path) if path.is_dir() else path.unlink()
            return {}
        self.say(f"{what} from the site's store")
        return about

    def ensure(
        self,
        name: str,
        record: str,
        make: Callable[[Path, str], Mapping[str, object]],
        tag: str,
        share: Callable[[Path], None],
    ) -> Path:
        """Return the store's folder of a name; fill it first if it is missing or too old.

        `make` receives the folder to fill and the time, and returns the content of its record.
        `share` receives the folder to add to the site's store, if that lacks the tag or has an
        older one.
        """
        folder = self.store / name
        with locked(
            self.store,
            name,
            waiting=lambda holder: self.say(f"waiting for {holder}, which makes {name}"),
            stopped=lambda: self.processes.stopping,
        ):
            known = read_json(folder / record)
            is_whole = known.keys() >= {"name", "digest", "made"}
            is_old = not is_whole or str(known["made"]) < self.not_before
            if is_old:
                now = dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec="seconds")
                with staging(self.store, name) as unfinished:
                    text = json.dumps(make(unfinished, now), indent=1)
                    (unfinished / record).write_text(text)
            if (is_old and self.not_before) or self.shared.lacks(tag):
                share(folder)
        return folder

    def mmdebstrap(
        self,
        base: BaseImage,
        target: Path,
        *,
        variant: str,
        arch: str,
        packages: Sequence[str],
        options: Sequence[str],
        what: str,
        hint: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Make a tar of a base's release; apt checks the signatures.

        mmdebstrap gets a mount namespace of its own: processes that walk through the file system
        meanwhile do not keep its /proc busy, and nothing stays mounted. It unpacks in a folder
        that only its user may enter.
        """
        argv = [
            *(*as_root_of_own(), "env", f"TMPDIR={target.parent}", "mmdebstrap", "--mode=root"),
            f"--variant={variant}",
            "--format=tar",
            f"--architectures={ARCHITECTURES[arch].debian}",
            *([f"--include={','.join(packages)}"] if packages else []),
            '--aptopt=Acquire::Retries "5"',  # kept in the image, for the build steps too
            *options,
            bootstrap_of(base).suite,
            str(target),
            *_source_lines(base, self.mirror),
        ]
        env = {**(environment or {}), **self.environment}
        self.processes.logged(argv, log=self.log, env=env, what=f"mmdebstrap of {what}", hint=hint)


def ensure_base(
    base: BaseImage,
    arch: str,
    name: str,
    way: Bootstrapping,
    *,
    native: Path | None = None,
    indices: Callable[[], tuple[IndexState, ...]] = tuple,
) -> StoredBase:
    """Return the base from the store; make it first if it is missing or too old.

    `native` is a folder of native tools for an emulated architecture; the base is the same without
    them. `indices` is called afterwards and returns the indices that were used.
    """
    key = base_key(base, arch, way.mirror)
    tag, what = f"base-{key}", f"base {base.name} for {arch}"

    def make(folder: Path, now: str) -> Mapping[str, object]:
        if about := way.take(tag, folder, what, lambda: _taken(folder, key, arch, now)):
            return about
        way.say(f"making base {base.name} for {arch} with mmdebstrap")
        rootfs, archive = folder / "rootfs.tar", folder / f"{base.name}-{arch}.oci.tar"
        options = folder / _APT_CONF
        options.write_text(_APT_OPTIONS)
        way.mmdebstrap(
            base,
            rootfs,
            variant="minbase",
            arch=arch,
            packages=bootstrap_of(base).packages,
            options=[
                "--skip=output/dev,check/qemu",  # /dev is the runtime's; QEMU was checked
                "--dpkgopt=force-unsafe-io",  # no sync: a killed bootstrap is discarded
                f"--customize-hook=upload {options} /etc/apt/apt.conf.d/{_APT_CONF}",
                f"--customize-hook={_OF_APT}",
                *(_lending(native) if native else []),
            ],
            what=f"{base.name} for {arch}",
            hint="is the mirror reachable, and does it carry this suite and architecture?",
            environment={"SOURCE_DATE_EPOCH": str(SOURCE_DATE_EPOCH)},
        )
        digest = oci.write_archive(
            rootfs,
            archive,
            architecture=ARCHITECTURES[arch].oci,
            environment={"PATH": PATH_IN_IMAGES},
            name=base.name,
        )
        rootfs.unlink()
        options.unlink()
        stored = StoredBase(
            name=name,
            arch=arch,
            key=key,
            archive=archive,
            digest=digest,
            made=now,
            indices=indices(),
        )
        return write(stored)

    name_here, put = f"{base.name}-{arch}-{key[:12]}", partial(way.shared.put, tag, title=what)
    folder = way.ensure(name_here, RECORD, make, tag, put)
    return _read(folder / RECORD, name)


def _taken(folder: Path, key: str, arch: str, now: str) -> Mapping[str, object]:
    """Return the record of a base from the site's store; raise `ValueError` for a damaged one."""
    stored = _read(folder / RECORD, "")
    if (stored.key, stored.arch) != (key, arch) or not stored.archive.is_file():
        raise ValueError("another base")
    # Another machine's clock may be ahead, and this base would be too new for `--refresh`.
    return {**read_json(folder / RECORD), "made": min(now, stored.made)}


def stored_base(name: str, *, store: Path) -> StoredBase | None:
    """Return the newest base of a name in specs, from any mirror; None if there is none.

    It is for use without a mirror: a base from another machine was made with that machine's
    mirror. A base from a registry is found by the digest in its name.
    """
    bases, digest = [], name.partition("@")[2]
    for record in store.glob(f"*/{RECORD}"):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            about = json.loads(record.read_text())
            if about["digest"] == digest if digest else about["name"] == name:
                bases.append(_read(record, name))
    present = (base for base in bases if base.archive.is_file())
    return max(present, key=lambda base: base.made, default=None)


def bootstrap_of(base: BaseImage) -> Bootstrap:
    """Return the bootstrap of a base that is made here."""
    assert base.bootstrap is not None
    return base.bootstrap


def base_key(base: BaseImage, arch: str, mirror: DebianMirror) -> str:
    """Return a SHA-256 over all inputs of mmdebstrap except the mirror's state."""
    content = [_FORMAT, base.name, arch, asdict(bootstrap_of(base)), asdict(mirror)]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read(record: Path, name: str) -> StoredBase:
    """Return the base of a record under the name that specs use, which may differ."""
    stored = read(StoredBase, json.loads(record.read_text()))
    return replace(stored, archive=record.parent / stored.archive.name, name=name)


@contextlib.contextmanager
def staging(store: Path, name: str) -> Iterator[Path]:
    """Yield a new folder for unfinished work; rename it to `name` if no error occurs.

    Its own files are synced to disk before that, since an existing record is trusted.
    """
    partial = store / f".{name}.partial"
    remove_tree(partial)
    partial.mkdir(parents=True)
    try:
        yield partial
        fsync_files(partial)
        if (store / name).is_symlink():  # a link into the shared folder
            (store / name).unlink()
        remove_tree(store / name)
        partial.rename(store / name)
        fsync(store)
    finally:
        remove_tree(partial)


def _lending(native: Path) -> list[str]:
    """Return options that mount native tools in the root file system while it is made."""
    shown = f'"$1{LENT_AT}"'
    show = f"mkdir {shown} && mount --bind {shlex.quote(str(native))} {shown}"
    return [
        f"--extract-hook={show} && mount -o remount,bind,ro {shown}",
        f"--customize-hook=umount {shown} && rmdir {shown}",
    ]


def _source_lines(base: BaseImage, mirror: DebianMirror) -> list[str]:
    """Return the lines of sources.list(5), which the image keeps."""
    declared = bootstrap_of(base)
    keyring, components = KEYRINGS / declared.keyring, " ".join(declared.components)
    if not keyring.exists():
        raise MissingPrerequisite(
            f"{keyring}: the keyring for the signatures of {base.name} is missing",
            hint="apt-get install debian-archive-keyring, or: build-images setup",
        )
    return [
        f"deb [signed-by={keyring}] {archive} {suite} {components}"
        for archive, suite in sources(base, mirror)
    ]


def sources(base: BaseImage, mirror: DebianMirror) -> list[tuple[str, str]]:
    """Return the archives that a base's packages come from, each with its suite.

    The pocket `security` is left out if the user asked for that.
    """
    declared = bootstrap_of(base)
    archives = [(mirror.main, declared.suite)]
    for pocket in declared.pockets:
        archive = mirror.security if pocket == SECURITY else mirror.main
        if archive is None:
            raise MissingPrerequisite(
                f"{base.name} needs the pocket {SECURITY}, but no security mirror is known",
                hint=(
                    f"set {SECURITY_VARIABLE} to its URL (the folder that holds dists/), "
                    f"or to {NONE} to do without security updates"
                ),
            )
        if archive:
            archives.append((archive, f"{declared.suite}-{pocket}"))
    return archives
