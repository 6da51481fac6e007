"""Where the builder keeps what it makes and fetches on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from builder.errors import MissingPrerequisite

SHARED_HOME = Path("/var/lib/build-images")
ORDINARY_USER = "build-images"
LENT_AT = "/.native"  # where build steps are shown the native tools that they are lent
PIP_AT = "/.packages"  # and a configuration of pip
NATIVE_LABEL = "build-images.native"  # which tools those are, said in stages, not in images


@dataclass(frozen=True, kw_only=True, slots=True)
class Home:
    """The folders of one builder; `ci/setup` follows the same rule.

    `$BUILD_IMAGES_HOME`, else for root `/var/lib/build-images` (an ordinary user must be able to
    reach it: Apptainer runs as one), else `$XDG_DATA_HOME/build-images`.
    """

    path: Path

    @classmethod
    def of_environment(cls) -> Home:
        if chosen := os.environ.get("BUILD_IMAGES_HOME"):
            return cls(path=Path(chosen).absolute())
        if os.geteuid() == 0:
            return cls(path=SHARED_HOME)
        data = os.environ.get("XDG_DATA_HOME")
        return cls(path=(Path(data) if data else _data_of_user()).absolute() / "build-images")

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

    @property
    def storage(self) -> Path:
        """The builder's own container storage: nothing of the user's is in it."""
        return self.path / "storage"

    @property
    def pulls(self) -> Path:
        """What `pull` keeps to go on with, below `blobs`; what it pulled last, below `last`."""
        return self.path / "pulls"

    @property
    def work(self) -> Path:
        """Half-made things, by image and content key; a rerun goes on from here."""
        return self.path / "work"

    @property
    def stages(self) -> Path:
        """What is known of the stages that an engine has: a folder a stage, a record a key."""
        return self.path / "stages"

    @property
    def temporary(self) -> Path:
        """Where engines mount and unpack; what is in it belongs to a builder that is alive."""
        return self.path / "tmp"

    @property
    def builders(self) -> Path:
        """The locks of the builders that are at work."""
        return self.path / "builders"

    def search_path(self) -> str:
        """PATH with the builder's own tools first, and the system's administration programs."""
        return os.pathsep.join(
            [str(self.tools), os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"]
        )


def folder_of_user() -> Path | None:
    """The user's own folder; None for a user id without a name where `$HOME` is not set either."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def _data_of_user() -> Path:
    if folder := folder_of_user():
        return folder / ".local/share"
    raise MissingPrerequisite(
        "this user has no home folder to keep things in", hint="set BUILD_IMAGES_HOME, or HOME"
    )
