"""The builder's home: the folders for its tools, caches and records on this machine."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from builder.model.errors import BadInput, BuildImagesError, MissingPrerequisite

SHARED_HOME = Path("/var/lib/build-images")
SHARED = "/opt/build-images"
SHARED_VARIABLE = "BUILD_IMAGES_SHARED"
ORDINARY_USER = "build-images"
LENT_AT = "/.native"  # where native tools are mounted in build steps
PIP_AT = "/.packages"  # where pip's configuration is mounted in build steps
PIP_CONFIG = f"{PIP_AT}/pip.conf"  # named in specs; pip ignores it if it is missing
NATIVE_LABEL = "build-images.native"  # label of stages, not of images: their native tools
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_CLOSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR})
_HINTS = {
    **dict.fromkeys(_FULL, "free disk space, or name another folder: --output, BUILD_IMAGES_HOME"),
    **dict.fromkeys(
        [errno.EACCES, errno.EPERM, errno.EROFS],
        "name another folder, or get permission for this one",
    ),
    errno.EBADF: "standard output is closed; for no output: >/dev/null",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Home:
    """The folders of one builder; `ci/setup` uses the same rule.

    The path is `$BUILD_IMAGES_HOME`, else for root `/var/lib/build-images` (ordinary users must be
    able to reach it: Apptainer runs as one), else `$XDG_DATA_HOME/build-images`. `shared` is the
    home of a site's administrator: its tools, bases, native tools, packages and sources are used as
    they are, and nothing is written there.
    """

    path: Path
    shared: Path | None = None

    @classmethod
    def of_environment(cls) -> Home:
        path = _own_path()
        shared = shared_folder()
        return cls(path=path, shared=shared if shared != path else None)

    @property
    def tools(self) -> Path:
        """Programs that set-up installed; they come before those on PATH."""
        return self.path / "tools" / "bin"

    @property
    def bases(self) -> Path:
        return self.path / "bases"

    @property
    def native(self) -> Path:
        """Native tools for builds under emulation, by release and architecture."""
        return self.path / "native"

    @property
    def packages(self) -> Path:
        """Packages that build steps downloaded, by URL."""
        return self.path / "packages"

    @property
    def sources(self) -> Path:
        """Source files by checksum; a site without a network copies this folder there."""
        return self.path / "sources"

    def source(self, sha256: str) -> Path:
        """Return the path for the source file with a SHA-256 (hexadecimal)."""
        return self.sources / "sha256" / sha256

    @property
    def storage(self) -> Path:
        """The builder's own container storage; the user's storage is a different one."""
        return self.path / "storage"

    @property
    def pulls(self) -> Path:
        """The cache of `pull`: `blobs` to resume from, and `last`, the last pulls."""
        return self.path / "pulls"

    @property
    def work(self) -> Path:
        """Unfinished work, by image and content key; a rerun continues from it."""
        return self.path / "work"

    @property
    def projects(self) -> Path:
        """The files of projects that this machine made images of as a worker, by digest."""
        return self.path / "projects"

    @property
    def clusters(self) -> Path:
        """Output of the workers that runs started, and the files for TLS of each run."""
        return self.path / "clusters"

    @property
    def rehearsals(self) -> Path:
        """The result of the last rehearsal of each image, by content key."""
        return self.path / "rehearsals"

    @property
    def stages(self) -> Path:
        """Records of an engine's stages: a folder per stage, a record per key."""
        return self.path / "stages"

    @property
    def temporary(self) -> Path:
        """A folder where engines mount and unpack; its content belongs to a running builder."""
        return self.path / "tmp"

    @property
    def builders(self) -> Path:
        """The locks of running builders."""
        return self.path / "builders"

    def search_path(self) -> str:
        """PATH with the builder's tools first, and with the folders for system administration."""
        shared = [str(self.shared / "tools/bin")] if self.shared else []
        system = ["/usr/local/sbin", "/usr/sbin", "/sbin"]
        return os.pathsep.join([str(self.tools), *shared, os.environ.get("PATH", ""), *system])


def shared_folder() -> Path | None:
    """Return the folder shared by all users: `$BUILD_IMAGES_SHARED`, else `/opt/build-images`.

    Returns None if the variable is empty, or the folder does not exist. Programs in it are run:
    raises `BadInput` unless root or the caller owns it, and no other user can change it.
    """
    named = os.environ.get(SHARED_VARIABLE)
    if named == "":
        return None
    folder = Path(named or SHARED).absolute()
    if not folder.is_dir():
        return None
    status = folder.stat()
    if status.st_uid in {0, os.geteuid()} and not status.st_mode & 0o022:
        return folder
    raise BadInput(
        f"{folder}: users other than root can change its programs, which would run here",
        hint=f"set {SHARED_VARIABLE} to another folder, or to an empty text",
    )


def _own_path() -> Path:
    if chosen := os.environ.get("BUILD_IMAGES_HOME"):
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return SHARED_HOME
    data = os.environ.get("XDG_DATA_HOME", "")
    if data.startswith("/"):  # the XDG specification ignores relative ones
        return Path(data) / "build-images"
    if folder := folder_of_user():
        return folder.absolute() / ".local/share/build-images"
    named = os.environ.get("HOME")
    problem = f"HOME is a relative path: {named}" if named else "this user has no home folder"
    raise MissingPrerequisite(problem, hint="set BUILD_IMAGES_HOME, or HOME")


def folder_of_user() -> Path | None:
    """Return `$HOME`, else the home folder in passwd(5); None if neither is an absolute path."""
    folder = os.environ.get("HOME", "")
    if not folder.startswith("/"):
        with contextlib.suppress(KeyError):
            folder = pwd.getpwuid(os.getuid()).pw_dir
    return Path(folder) if folder.startswith("/") else None


def failure_of(error: OSError) -> BuildImagesError:
    """Return the error that names the file which cannot be read or written, and the reason."""
    names = " -> ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    problem = f"{names}: {error.strerror}" if names and error.strerror else error.strerror or error
    hint = _HINTS.get(error.errno or 0, "")
    if not _lacks(error):
        return BadInput(f"{problem}", hint=hint)
    if error.errno in _CLOSED:
        hint = "set BUILD_IMAGES_HOME to a folder that you can write to"
    return MissingPrerequisite(f"{problem}", hint=hint)


def _lacks(error: OSError) -> bool:
    """True if the machine lacks disk space, or a home directory that can be written to."""
    if error.errno in _FULL:
        return True
    named = [Path(str(name)) for name in (error.filename, error.filename2) if name is not None]
    try:
        home = Home.of_environment().path
    except MissingPrerequisite:  # this user has none
        return False
    return any(path == home or home in path.parents or path in home.parents for path in named)
