"""What distributions fix: the packages of the shared libraries that wheels leave to the host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class HostLibrary:
    """A shared library that wheels may rely on, though not every image has it.

    `deb` and `rpm` are the packages that have it, and `with_it` those whose dependencies bring it.
    """

    soname: str
    deb: str
    rpm: str
    with_it: tuple[str, ...] = ()


# In every image: glibc, and the run-time libraries of gcc, https://peps.python.org/pep-0599/
IN_EVERY_IMAGE = re.compile(
    r"(ld-linux.*|ld64|libc|libm|libdl|librt|libpthread|libutil|libresolv|libnsl|libcrypt"
    r"|libgcc_s|libstdc\+\+|libz|libanl)\.so(\.[\d.]+)?"
)
# PEP 599 lets wheels rely on these. Packages: https://packages.debian.org (search for files) and
# https://git.centos.org/rpms (their spec files).
HOST_LIBRARIES: Mapping[str, HostLibrary] = {
    one.soname: one
    for one in (
        HostLibrary(soname="libICE.so.6", deb="libice6", rpm="libICE", with_it=("libsm6", "libSM")),
        HostLibrary(soname="libSM.so.6", deb="libsm6", rpm="libSM"),
        HostLibrary(
            soname="libX11.so.6",
            deb="libx11-6",
            rpm="libX11",
            with_it=("libxext6", "libxrender1", "libXext", "libXrender"),
        ),
        HostLibrary(soname="libXext.so.6", deb="libxext6", rpm="libXext"),
        HostLibrary(soname="libXrender.so.1", deb="libxrender1", rpm="libXrender"),
        HostLibrary(soname="libGL.so.1", deb="libgl1", rpm="mesa-libGL"),
        HostLibrary(soname="libglib-2.0.so.0", deb="libglib2.0-0", rpm="glib2"),
        HostLibrary(soname="libgthread-2.0.so.0", deb="libglib2.0-0", rpm="glib2"),
        HostLibrary(soname="libgomp.so.1", deb="libgomp1", rpm="libgomp", with_it=("gcc",)),
        HostLibrary(soname="libexpat.so.1", deb="libexpat1", rpm="expat", with_it=("python3",)),
    )
}
