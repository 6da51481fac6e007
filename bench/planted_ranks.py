"""An image whose ranks do wrong when they are told to: for the tests, and for bench/ranks.py.

The program of its check `mpi` is replaced by a script, which starts it as it is, or with a library
before MPI's own that spoils what a call brings. Which defect, the variable `OMPI_MCA_planted`
says, `KIND:RANK:SIZE:PLACE`: what sites set for Open MPI reaches ranks.
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

from builder.cli.manifests import MANIFEST
from builder.cli.packing import file_digest
from builder.cli.workspace import FILES

VARIABLE = "OMPI_MCA_planted"
RANKS = 4
_PROGRAM = "opt/build-images/bin/mpi"
_TARBALL = FILES["charliecloud"]

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
_LIBRARY = f"""\
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whether this rank is to do wrong now; `place` is where. */
static int planted(const char *kind, long size, long *place)
{{
    const char *chosen = getenv("{VARIABLE}");
    char name[32] = "";
    long wrong_rank = -1, wrong_size = -1;
    int rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return chosen != NULL &&
           sscanf(chosen, "%31[^:]:%ld:%ld:%ld", name, &wrong_rank, &wrong_size, place) == 4 &&
           strcmp(name, kind) == 0 && wrong_rank == rank && (size < 0 || wrong_size == size);
}}

static int spoiled(int code, const char *kind, void *buffer, long size)
{{
    long place = 0;
    if (planted(kind, size, &place))
        ((unsigned char *)buffer)[place] ^= 1;
    return code;
}}

int MPI_Init_thread(int *argc, char ***argv, int required, int *granted)
{{
    long place;
    int code = PMPI_Init_thread(argc, argv, required, granted);
    if (planted("threads", -1, &place))
        *granted = MPI_THREAD_FUNNELED;
    return code;
}}

int MPI_Comm_rank(MPI_Comm comm, int *rank)
{{
    long place;
    int code = PMPI_Comm_rank(comm, rank);
    if (planted("same-rank", -1, &place))
        *rank -= 1;
    return code;
}}

int MPI_Sendrecv(const void *out, int n, MPI_Datatype type, int to, int tag, void *in, int m,
                 MPI_Datatype other, int from, int from_tag, MPI_Comm comm, MPI_Status *status)
{{
    return spoiled(PMPI_Sendrecv(out, n, type, to, tag, in, m, other, from, from_tag, comm, status),
                   "message", in, m);
}}

int MPI_Bcast(void *buffer, int n, MPI_Datatype type, int root, MPI_Comm comm)
{{
    long place;
    int code;
    if (type != MPI_BYTE) /* the verdict */
        return PMPI_Bcast(buffer, n, type, root, comm);
    if (planted("lose", n, &place))
        raise(SIGKILL);
    while (planted("hang", n, &place))
        sleep(1);
    code = spoiled(PMPI_Bcast(buffer, n, type, root, comm), "bcast", buffer, n);
    if (planted("beyond", n, &place))
        ((unsigned char *)buffer)[n + place] = 0;
    return code;
}}

int MPI_Reduce(const void *in, void *out, int n, MPI_Datatype type, MPI_Op op, int root,
               MPI_Comm comm)
{{
    return spoiled(PMPI_Reduce(in, out, n, type, op, root, comm), "reduce", out, n);
}}

int MPI_Allreduce(const void *in, void *out, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{{
    long place;
    int code = PMPI_Allreduce(in, out, n, type, op, comm);
    if (type == MPI_UNSIGNED_CHAR)
        return spoiled(code, "allreduce", out, n);
    if (type == MPI_DOUBLE && op == MPI_SUM && planted("sum", n, &place))
        ((double *)out)[place] += 1;
    return code;
}}

int MPI_Allgather(const void *in, int n, MPI_Datatype type, void *out, int m, MPI_Datatype other,
                  MPI_Comm comm)
{{
    int code = PMPI_Allgather(in, n, type, out, m, other, comm);
    return type == MPI_BYTE ? spoiled(code, "allgather", out, n) : code;
}}

int MPI_Alltoall(const void *in, int n, MPI_Datatype type, void *out, int m, MPI_Datatype other,
                 MPI_Comm comm)
{{
    return spoiled(PMPI_Alltoall(in, n, type, out, m, other, comm), "alltoall", out, n);
}}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankDefect:
    """What one rank does wrong.

    `kind` is the call that is spoiled, when it moves `size` bytes or values to `rank`, and `place`
    the offset in what it brings.
    """

    kind: str
    rank: int = 0
    size: int = 0
    place: int = 0

    @property
    def environment(self) -> dict[str, str]:
        return {VARIABLE: f"{self.kind}:{self.rank}:{self.size}:{self.place}"}


def plant(source: Path, folder: Path) -> Path:
    """Make `folder` a copy of an image's folder, with its tarball alone, for planted defects.

    The image has Open MPI, and this machine the compiler of its like.
    """
    source_file, library = folder / "planted.c", folder / "planted.so"
    source_file.write_text(_LIBRARY)
    options = ("-O2", "-shared", "-fPIC", "-Wall", "-Werror")
    subprocess.run(["mpicc.openmpi", *options, "-o", library, source_file], check=True)
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
    artifacts["charliecloud"].update(digest=file_digest(tarball), size=tarball.stat().st_size)
    manifest.update(artifacts=artifacts, launched={}, evidence=[])
    (folder / MANIFEST).write_text(json.dumps(manifest))
