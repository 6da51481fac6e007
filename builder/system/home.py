"""The builder's home: the folders of what it makes and fetches on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from builder.model.errors import BadInput, MissingPrerequisite

SHARED_HOME = Path("/var/lib/build-images")
SHARED = "/opt/build-images"
SHARED_VARIABLE = "BUILD_IMAGES_SHARED"
ORDINARY_USER = "build-images"
LENT_AT = "/.native"  # where build steps are shown the native tools that they are lent
PIP_AT = "/.packages"  # and a configuration of pip
PIP_CONFIG = f"{PIP_AT}/pip.conf"  # specs name it; pip goes without if it is not there
NATIVE_LABEL = "build-images.native"  # which tools those are, said in stages, not in images


@dataclass(frozen=True, kw_only=True, slots=True)
class Home:
    """The folders of one builder; `ci/setup` follows the same rule.

    `$BUILD_IMAGES_HOME`, else for root `/var/lib/build-images` (an ordinary user must be able to
    reach it: Apptainer runs as one), else `$XDG_DATA_HOME/build-images`. `shared` is another home,
    of a site's administrator: tools, bases, native tools, packages and sources in it are taken as
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
        """Programs that set-up brought, before those of PATH."""
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
        """Return where the source file of a SHA-256 (hexadecimal) is, if it is there."""
        return self.sources / "sha256" / sha256

    @property
    def storage(self) -> Path:
        """The builder's own container storage: nothing of the user's is in it."""
        return self.path / "storage"

    @property
    def pulls(self) -> Path:
        """The cache of `pull`: `blobs` to go on with, and `last`, the last pulls."""
        return self.path / "pulls"

    @property
    def work(self) -> Path:
        """Half-made things, by image and content key; a rerun goes on from here."""
        return self.path / "work"

    @property
    def rehearsals(self) -> Path:
        """The result of the last rehearsal of each image, by content key."""
        return self.path / "rehearsals"

    @property
    def stages(self) -> Path:
        """Records of the stages that an engine has: a folder a stage, a record a key."""
        return self.path / "stages"

    @property
    def temporary(self) -> Path:
        """A folder for engines to mount and unpack; its content belongs to a living builder."""
        return self.path / "tmp"

    @property
    def builders(self) -> Path:
        """The locks of the builders that are at work."""
        return self.path / "builders"

    def search_path(self) -> str:
        """PATH with the builder's own tools first, and the system's administration programs."""
        shared = [str(self.shared / "tools/bin")] if self.shared else []
        system = ["/usr/local/sbin", "/usr/sbin", "/sbin"]
        return os.pathsep.join([str(self.tools), *shared, os.environ.get("PATH", ""), *system])


def shared_folder() -> Path | None:
    """The folder that this machine's users share: `$BUILD_IMAGES_SHARED`, else `/opt/build-images`.

    None if the variable is empty, or nothing is there. Programs of it are run, so it has to be
    root's or the caller's own, and closed to changes by others: raises `BadInput`.
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
    if data := os.environ.get("XDG_DATA_HOME"):
        return Path(data).absolute() / "build-images"
    if folder := folder_of_user():
        return folder.absolute() / ".local/share/build-images"
    raise MissingPrerequisite("this user has no home folder", hint="set BUILD_IMAGES_HOME, or HOME")


def folder_of_user() -> Path | None:
    """The user's own folder; None for a user id without a name where `$HOME` is not set either."""
    try:
        return Path.home()
    except RuntimeError:
        return None
