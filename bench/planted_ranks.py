"""An image whose ranks do wrong when they are told to: for the tests, and for bench/ranks.py.

The program of its check `mpi` is replaced by a script, which starts it as it is, or with a library
before MPI's own that spoils what a call brings (planted.c). Which defect, the variable
`OMPI_MCA_planted` says: what sites set for Open MPI reaches ranks.
"""

from __future__ import annotations

import gzip
import io
import json
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from builder.model.digests import digest_of_file
from builder.model.manifest import FILES, MANIFEST

VARIABLE = "OMPI_MCA_planted"
RANKS = 4
_PROGRAM = "opt/build-images/bin/mpi"
_TARBALL = FILES["charliecloud"]
_SOURCE = Path(__file__).with_name("planted.c")

_SCRIPT = f"""\
#!/bin/sh
real=/{_PROGRAM}.real
case ${{{VARIABLE}:-}} in
    singletons*) exec env -i HOME=/tmp PATH=/usr/bin:/bin "$real" "$@" ;;
    noise*) echo 'WARNING: no fabric was found' >&2; exec "$real" "$@" ;;
    ?*) LD_PRELOAD=/{_PROGRAM}.planted.so exec "$real" "$@" ;;
    *) exec "$real" "$@" ;;
esac
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankDefect:
    """What one rank does wrong, or each of them: then `rank` is -1.

    `kind` is the call that is spoiled, in groups of `ranks` ranks or of any, if it moves `size`
    bytes or more; `place` is the offset in what it brings.
    """

    kind: str
    rank: int = -1
    ranks: int = 0
    size: int = 0
    place: int = 0

    @property
    def environment(self) -> dict[str, str]:
        return {VARIABLE: f"{self.kind}:{self.rank}:{self.ranks}:{self.size}:{self.place}"}


def compiled(folder: Path, compiler: str = "mpicc.openmpi") -> Path:
    """Make the library that does wrong, with the compiler of an MPI."""
    library = folder / f"planted-{Path(compiler).name}.so"
    options = ("-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror")
    subprocess.run([compiler, *options, "-o", library, _SOURCE], check=True)
    return library


def plant(source: Path, folder: Path) -> Path:
    """Make `folder` a copy of an image's folder, with its tarball alone, for planted defects.

    The image has Open MPI, and this machine the compiler of its like.
    """
    library = compiled(folder)
    with (
        tarfile.open(source / _TARBALL) as old,
        gzip.open(folder / _TARBALL, "wb", compresslevel=1) as sink,
        tarfile.open(fileobj=sink, mode="w|") as new,
    ):
        for member in old:
            data = old.extractfile(member) if member.isreg() else None
            if member.name == _PROGRAM:
                _add(new, member, _PROGRAM, _SCRIPT.encode())
                _add(new, member, f"{_PROGRAM}.planted.so", library.read_bytes())
                member.name = f"{_PROGRAM}.real"
            new.addfile(member, data)
    _write_manifest(source, folder)
    return folder


def _add(archive: tarfile.TarFile, like: tarfile.TarInfo, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.mode, member.mtime, member.size = like.mode, like.mtime, len(content)
    archive.addfile(member, io.BytesIO(content))


def _write_manifest(source: Path, folder: Path) -> None:
    """The source's, with the tarball's digest; the OCI layout is named, and is not there."""
    shutil.copy(source / MANIFEST, folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    artifacts = {name: manifest["artifacts"][name] for name in ("oci", "charliecloud")}
    tarball = folder / _TARBALL
    artifacts["charliecloud"].update(digest=digest_of_file(tarball), size=tarball.stat().st_size)
    manifest.update(artifacts=artifacts, launched={}, evidence=[])
    (folder / MANIFEST).write_text(json.dumps(manifest))
