"""Facts about software: options of compilers, libraries of hosts, package indexes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from builder.facts.tables import rows


@dataclass(frozen=True, kw_only=True, slots=True)
class CompilerFlag:
    """An option and the first release that accepts it under this name."""

    name: str
    since: str
    source: str


GCC_FLAGS = rows("software", "gcc", CompilerFlag)
NVCC_FLAGS = rows("software", "nvcc", CompilerFlag)


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
HOST_LIBRARIES: Mapping[str, HostLibrary] = {
    library.soname: library for library in rows("software", "host_libraries", HostLibrary)
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishersIndex:
    """An index that has some versions of a package. `url` begins its address; `example` is one."""

    package: str
    versions: str
    url: str
    example: str
    source: str


PUBLISHERS_INDEXES = rows("software", "indexes", PublishersIndex)
