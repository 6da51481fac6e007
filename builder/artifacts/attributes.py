"""Extended attributes of files, as tars hold them: the image's own, and who may give them.

https://man7.org/linux/man-pages/man7/xattr.7.html
"""

from __future__ import annotations

import tarfile

PAX = "SCHILY.xattr."  # what stands before an attribute's name in a pax header
Attributes = tuple[tuple[str, str], ...]  # names and values, sorted
# Of the build host: its policy's label, the notes of its storage drivers, and the owners that an
# ordinary user's Apptainer could not give.
_OF_HOST = (
    "security.selinux",
    "trusted.overlay.",  # https://docs.kernel.org/filesystems/overlayfs.html
    "user.overlay.",  # the same, of ordinary users
    "user.fuseoverlayfs.",
    "user.containers.",
    "user.rootlesscontainers",
)
_OF_ROOT = ("security.", "trusted.")


def attributes_of(member: tarfile.TarInfo) -> Attributes:
    """The attributes of a tar's member, without those of the host that it comes from."""
    headers = member.pax_headers
    if not headers:
        return ()
    names = (name.removeprefix(PAX) for name in sorted(headers) if name.startswith(PAX))
    return tuple((name, headers[PAX + name]) for name in names if not name.startswith(_OF_HOST))


def users_attributes(member: tarfile.TarInfo) -> Attributes:
    """Those that every user may give: every format keeps them, whoever packs it."""
    return tuple(one for one in attributes_of(member) if not one[0].startswith(_OF_ROOT))


def roots_attributes(member: tarfile.TarInfo) -> Attributes:
    """Those that only root may give, such as a program's capabilities."""
    return tuple(one for one in attributes_of(member) if one[0].startswith(_OF_ROOT))


def as_headers(attributes: Attributes) -> dict[str, str]:
    """Attributes as a member's pax headers."""
    return {PAX + name: text for name, text in attributes}
