"""The programs of the checks find what they are for: each planted defect is caught.

They are compiled with this machine's compiler and MPI, as a development stage does it.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import planted_ranks
import pytest
from check_programs import SOURCES, compiled, mounting
from harness import LONG, Ended, run_program, sample, tool_of_tests
from planted_ranks import RankDefect

from builder import facts
from builder.model.architectures import ARCHITECTURES

pytestmark = pytest.mark.engines

RANKS = 5
NATIVE = platform.machine()


# ---- architecture ----


@pytest.fixture(scope="module")
def architecture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("architecture")
    return compiled(SOURCES / "architecture.c", folder / "architecture")


def elf(machine: int, *, bits: int = 64, endian: str = "<", flags: int = 0) -> bytes:
    """An ELF header, as long as the class asks for, of a shared object."""
    identity = b"\x7fELF" + bytes([bits // 32, 1 if endian == "<" else 2, 1]) + bytes(9)
    address = "Q" if bits == 64 else "I"
    fields = struct.pack(
        endian + "HHI" + 3 * address + "I6H", 3, machine, 1, *[0] * 3, flags, *[0] * 6
    )
    return identity + fields


PPC64LE = elf(21, flags=2)
X86_64 = elf(62)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A root file system for ppc64le with one program."""
    root = tmp_path / "root"
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/sound").write_bytes(PPC64LE)
    (root / "usr/bin/script").write_text("#!/bin/sh\n")
    (root / "usr/bin/empty").touch()
    return root


def test_architecture_accepts_a_sound_tree(architecture: Path, tree: Path) -> None:
    result = run_program(architecture, "ppc64le", tree)
    assert result.finding == "all 1 ELF files are for ppc64le, 64-bit little-endian"
    assert result.status == 0
    assert (result.data["files"], result.data["elf"], result.data["foreign"]) == (3, 1, 0)
    assert result.stderr == ""


@pytest.mark.skipif(NATIVE not in ARCHITECTURES, reason=f"not one of ours: {NATIVE}")
def test_architecture_accepts_what_the_compiler_here_makes(
    architecture: Path, tmp_path: Path
) -> None:
    shutil.copy(architecture, tmp_path / "program")
    assert run_program(architecture, NATIVE, tmp_path).status == 0


@pytest.mark.parametrize(
    ("header", "named"),
    [
        (X86_64, "x86_64 64-bit little-endian"),
        (elf(183), "aarch64 64-bit little-endian"),
        (elf(3, bits=32), "i386 32-bit little-endian"),
        (elf(62, bits=32), "x32 32-bit little-endian"),
        (elf(21, bits=32, flags=2), "ppc64le 32-bit little-endian, ELF ABI 2"),
        (elf(20, bits=32, endian=">"), "ppc 32-bit big-endian"),
        (elf(21, endian=">", flags=1), "ppc64 64-bit big-endian, ELF ABI 1"),
        (elf(21, endian=">", flags=2), "ppc64 64-bit big-endian, ELF ABI 2"),
        (elf(21, flags=1), "ppc64le 64-bit little-endian, ELF ABI 1"),
        (elf(4711), "machine 4711 64-bit little-endian"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "elf",
)
def test_architecture_finds_a_foreign_file(
    architecture: Path, tree: Path, header: bytes, named: str
) -> None:
    (tree / "usr/bin/foreign").write_bytes(header)
    result = run_program(architecture, "ppc64le", tree)
    assert result.status == 1
    assert result.finding == (
        f"1 of 2 ELF files is not for ppc64le: {tree}/usr/bin/foreign ({named})"
    )
    assert result.data["foreign"] == 1


def test_architecture_names_five_of_many(architecture: Path, tree: Path) -> None:
    for i in range(7):
        (tree / f"usr/bin/foreign{i}\n").write_bytes(X86_64)
    result = run_program(architecture, "ppc64le", tree)
    assert result.status == 1
    assert result.finding.startswith("7 of 8 ELF files are not for ppc64le: ")
    assert result.finding.endswith(" and 2 more")
    assert result.finding.count("x86_64 64-bit") == 5


@pytest.mark.parametrize(
    ("path", "header"),
    [
        ("usr/share/guile.go", elf(0)),
        ("usr/lib/probe.o", elf(247)),
        ("usr/lib/kernel.cubin", elf(190)),
        ("usr/lib/firmware/card.fw", elf(40, bits=32)),
        ("lib/firmware/card.fw", elf(94, bits=32, endian=">")),
    ],
    ids=lambda value: value if isinstance(value, str) else "elf",
)
def test_architecture_lets_through_what_is_for_another_processor(
    architecture: Path, tree: Path, path: str, header: bytes
) -> None:
    (tree / path).parent.mkdir(parents=True, exist_ok=True)
    (tree / path).write_bytes(header)
    result = run_program(architecture, "ppc64le", tree)
    assert (result.status, result.data["other_processor"]) == (0, 1)


def test_architecture_takes_an_unstated_abi_as_the_loader_does(
    architecture: Path, tree: Path
) -> None:
    (tree / "usr/lib").mkdir()
    (tree / "usr/lib/crtn.o").write_bytes(elf(21, flags=0))
    assert run_program(architecture, "ppc64le", tree).status == 0


@pytest.mark.parametrize("length", [40, 3000, -1])
def test_architecture_finds_a_plugin_that_is_cut_off(
    architecture: Path, tmp_path: Path, length: int
) -> None:
    """No program is linked to it; the last byte is of the table of sections."""
    plugin = tmp_path / "usr/lib/gconv/PLUGIN.so"
    plugin.parent.mkdir(parents=True)
    shutil.copy(architecture, tmp_path / "program")
    plugin.write_bytes(architecture.read_bytes()[:length])
    result = run_program(architecture, NATIVE, tmp_path)
    assert (result.status, result.finding) == (1, f"1 of 2 ELF files is cut off: {plugin}")
    assert result.data["cut_off"] == 1


def test_architecture_takes_objects_and_debug_information_as_they_are(tmp_path: Path) -> None:
    """Debug information names code of which the file has nothing."""
    (tmp_path / "x.c").write_text("int big[99999] = {1}; int main(void) { return big[0]; }\n")
    object_file, program = tmp_path / "x.o", tmp_path / "x"
    check = compiled(SOURCES / "architecture.c", tmp_path / "check")
    assert run_program("cc", "-c", "-g", "-o", object_file, tmp_path / "x.c").status == 0
    assert run_program("cc", "-g", "-o", program, object_file).status == 0
    debug = tmp_path / "x.debug"
    assert run_program(tool_of_tests("objcopy"), "--only-keep-debug", program, debug).status == 0
    assert debug.stat().st_size < 99999 * 4
    result = run_program(check, NATIVE, tmp_path)
    assert (result.status, result.data["elf"], result.data["cut_off"]) == (0, 4, 0)


def test_architecture_needs_an_elf_file(architecture: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    (tmp_path / "other").write_bytes(PPC64LE[1:])
    result = run_program(architecture, "ppc64le", tmp_path)
    assert result.status == 1
    assert result.finding.startswith("no ELF file among 2 files")


def test_architecture_reads_each_file_once_and_follows_no_link(
    architecture: Path, tree: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").write_bytes(X86_64)
    (tree / "usr/bin/link").symlink_to(tmp_path / "outside")
    (tree / "again").symlink_to("usr")
    os.link(tree / "usr/bin/sound", tree / "usr/bin/name")
    os.mkfifo(tree / "pipe")
    result = run_program(architecture, "ppc64le", tree)
    assert (result.status, result.data["files"], result.data["elf"]) == (0, 3, 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_architecture_counts_what_it_may_not_read(architecture: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        shutil.copy(architecture, root / "program")
        (root / "sound").write_bytes(PPC64LE)
        (root / "secret").write_bytes(PPC64LE)
        (root / "secret").chmod(0)
        (root / "closed").mkdir(mode=0o700)
        (root / "program").rename(root.parent / f"{root.name}-program")
        program = root.parent / f"{root.name}-program"
        try:
            result = run_program(program, "ppc64le", root, user=65534)
        finally:
            program.unlink()
    assert result.status == 0
    assert (result.data["unreadable_files"], result.data["unreadable_directories"]) == (1, 1)
    assert "1 files and 1 directories could not be read" in result.finding


def test_architecture_leaves_out_what_is_mounted_in(
    architecture: Path, tree: Path, tmp_path: Path
) -> None:
    """A home directory on the same disk, a driver's library, and a file system of its own."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home/tool").write_bytes(X86_64)
    for place in ("home", "scratch"):
        (tree / place).mkdir()
    (tree / "usr/lib").mkdir()
    (tree / "usr/lib/libdriver.so").touch()
    result = mounting(
        'mount --bind "$2" "$2"; mount --bind "$3" "$2/home"; mount -t tmpfs tmpfs "$2/scratch"; '
        'cp "$3/tool" "$2/scratch"; mount --bind "$3/tool" "$2/usr/lib/libdriver.so"; '
        '"$1" ppc64le "$2"',
        *(architecture, tree, tmp_path / "home"),
    )
    assert result.status == 0, result
    assert (result.data["elf"], result.data["mounts_left_out"]) == (1, 3)


def test_architecture_walks_an_image_that_is_mounted_in_pieces(
    architecture: Path, tree: Path, tmp_path: Path
) -> None:
    (tree / "usr/bin/foreign").write_bytes(X86_64)
    (tree / "opt").mkdir()
    (tree / "opt/foreign").write_bytes(X86_64)
    session = tmp_path / "session"
    for place in ("usr", "opt"):
        (session / place).mkdir(parents=True)
    # The image's file system shows the same paths from its own top, as a SIF's does.
    result = mounting(
        'mount -t tmpfs tmpfs /mnt; mkdir -p "/mnt$3"; cp -a "$2/usr" "$2/opt" "/mnt$3"; '
        'mount --bind "/mnt$3/usr" "$3/usr"; mount --bind "/mnt$3/opt" "$3/opt"; '
        '"$1" ppc64le "$3"',
        *(architecture, tree, session),
    )
    assert result.status == 1
    assert result.finding.startswith("2 of 3 ELF files are not for ppc64le")


def test_architecture_compares_with_uname(architecture: Path) -> None:
    other = "ppc64le" if NATIVE != "ppc64le" else "x86_64"
    result = run_program(architecture, other)
    assert (result.status, result.finding) == (1, f"uname -m says {NATIVE}, expected {other}")


@pytest.mark.parametrize("arguments", [[], ["amd64"], ["x86_64", "/", "more"], ["x86_64", "/no"]])
def test_architecture_refuses_bad_arguments(architecture: Path, arguments: list[str]) -> None:
    result = run_program(architecture, *arguments)
    assert result.status == 2
    assert result.finding != ""


# ---- mpi ----

# The reduction that all ranks agree by hides every fault, and what they are told is wrong too.
HIDE_FLAG = """
int MPI_Allreduce(const void *in, void *out, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    int code = PMPI_Allreduce(in, out, n, type, op, comm);
    if (type == MPI_INT)
        *(int *)out = 0;
    return code;
}
int MPI_Alltoall(const void *in, int n, MPI_Datatype type, void *out, int m, MPI_Datatype other,
                 MPI_Comm comm)
{
    int code = PMPI_Alltoall(in, n, type, out, m, other, comm);
    *(unsigned char *)out ^= 1;
    return code;
}
"""
LESS_THREADS = """
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    int code = PMPI_Init_thread(argc, argv, required, provided);
    *provided = MPI_THREAD_FUNNELED;
    return code;
}
int MPI_Query_thread(int *provided)
{
    *provided = MPI_THREAD_FUNNELED;
    return MPI_SUCCESS;
}
"""
CALL_FAILS = """
int MPI_Alltoall(const void *in, int n, MPI_Datatype type, void *out, int m, MPI_Datatype other,
                 MPI_Comm comm)
{
    (void)in; (void)n; (void)type; (void)out; (void)m; (void)other; (void)comm;
    return MPI_ERR_OTHER;
}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mpi:
    """An MPI of this machine, with the check's program compiled for it."""

    compiler: str
    launcher: tuple[str, ...]
    library: str
    folder: Path
    program: Path
    planted: Path

    @property
    def transport(self) -> str:
        """How what it says of its transport begins."""
        return {"Open MPI": "ob1 (", "MPICH": "ch4:"}[self.library]

    @property
    def file(self) -> str:
        return {"Open MPI": "libmpi.so.40", "MPICH": "libmpich.so.12"}[self.library]

    def launch(self, *command: str | Path, ranks: int = RANKS) -> Ended:
        launcher = [word.format(ranks=ranks) for word in self.launcher]
        return run_program(*launcher, *command)

    def with_planted(self, defect: RankDefect) -> Ended:
        """The program before a library that does wrong."""
        variables = [f"{name}={text}" for name, text in defect.environment.items()]
        preload = f"LD_PRELOAD={self.planted}"
        return self.launch("env", *variables, preload, self.program, str(RANKS), "multiple")

    def with_defect(self, code: str, *expected: str, ranks: int = RANKS) -> Ended:
        """The program before a library of the test's own."""
        source, library = self.folder / "defect.c", self.folder / "defect.so"
        source.write_text(f"#include <mpi.h>\n#include <signal.h>\n#include <stdint.h>\n{code}")
        options = ("-D_POSIX_C_SOURCE=200809L", "-shared", "-fPIC")
        compiled(source, library, *options, compiler=self.compiler)
        words = (str(ranks), "multiple", *expected)
        return self.launch("env", f"LD_PRELOAD={library}", self.program, *words, ranks=ranks)


@pytest.fixture(scope="module", params=["openmpi", "mpich"])
def mpi(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mpi:
    family = facts.MPI_FAMILIES[request.param]
    compiler = tool_of_tests(f"mpicc.{family.name}")
    program, *options = family.launch.split()
    launcher = tool_of_tests(f"{program}.{family.name}")
    folder = tmp_path_factory.mktemp(family.name)
    return Mpi(
        compiler=compiler,
        launcher=(launcher, *options),
        library=family.title,
        folder=folder,
        program=compiled(SOURCES / "mpi.c", folder / "mpi", compiler=compiler),
        planted=planted_ranks.compiled(folder, compiler),
    )


@pytest.fixture(name="any_mpi")
def openmpi_and_in_full_campaigns_mpich(mpi: Mpi) -> Mpi:
    """The program is the same; what it is compiled with is what differs, which other tests have."""
    if mpi.library == "MPICH" and not LONG:
        pytest.skip("the campaign with MPICH, too: make test-long")
    return mpi


def test_mpi_passes(mpi: Mpi) -> None:
    result = mpi.launch(mpi.program, str(RANKS), "multiple", mpi.library)
    assert result.status == 0, result
    assert result.finding.startswith(
        "5 ranks on 1 host: messages and collectives of 1 B to 8 MiB are whole, thread level "
        f"multiple, over {mpi.transport}"
    )
    assert f" ({mpi.library} " in result.finding
    data = result.data
    assert (data["ranks"], data["thread_level"]) == (RANKS, "multiple")
    assert data["rank_numbers"] == [0, 1, 2, 3, 4]
    assert data["group_sizes"] == [1, 2, 3, 4, 5]
    assert (data["within_host"], data["files"]) == ("memory", "whole")
    assert list(data["ranks_by_host"].values()) == [RANKS]
    assert (result.stdout.count("\n"), result.stderr) == (2, "")
    assert Path(data["library_file"]).name.startswith(mpi.file)
    assert Path(data["library_file"]).stat().st_ino == data["library_inode"]
    assert ("vader" in data["transport"]) is (mpi.library == "Open MPI")


# As they name themselves, and as checks are told to expect it: `MPI_FAMILIES[...].library`.
NAMED = {
    "mvapich2": (
        "MVAPICH2 Version      :\\t2.3.7\\nMVAPICH2 Device       :\\tch3:mrail\\n",
        "2.3.7",
    ),
    "craympich": ("MPI VERSION    : CRAY MPICH version 8.1.28.2 (ANL base 3.4a2)\\n", "8.1"),
    "intelmpi": ("Intel(R) MPI Library 2021.13 for Linux* OS\\n", "2021.13"),
}


@pytest.mark.parametrize("family", NAMED)
def test_mpi_knows_the_libraries_of_other_families(any_mpi: Mpi, family: str) -> None:
    """The library that is here says what another one would say."""
    text, version = NAMED[family]
    expected = facts.MPI_FAMILIES[family].library.format(version=version)
    result = any_mpi.with_defect(
        "#include <string.h>\n#include <stdio.h>\n"
        "int MPI_Get_library_version(char *text, int *length) {"
        f' strcpy(text, "{text}"); *length = (int)strlen(text); return MPI_SUCCESS; }}',
        expected,
        ranks=1,
    )
    assert result.status == 0, result
    if family == "mvapich2":
        assert result.data["transport"] == "ch3:mrail"


OVER_TCP = {
    "Open MPI": ("OMPI_MCA_btl=self,tcp", "ob1 ("),
    "MPICH": ("UCX_TLS=self,tcp", "ch4:ucx"),
}


def test_mpi_finds_that_ranks_of_one_host_talk_over_tcp(any_mpi: Mpi) -> None:
    """Whatever the MPI says of itself: the kernel counts the bytes."""
    tuning, transport = OVER_TCP[any_mpi.library]
    result = any_mpi.launch("env", tuning, any_mpi.program, "2", "multiple", ranks=2)
    assert result.status != 0
    assert result.finding.startswith(
        f"rank 0: messages between ranks of one host go over TCP ({transport}"
    )
    assert result.data["within_host"] == "TCP"
    launched = any_mpi.launch("env", tuning, any_mpi.program, "-t", "60", "2", "multiple", ranks=2)
    assert launched.status == 0, launched
    assert launched.data["within_host"] == "TCP"


@pytest.mark.campaign
@pytest.mark.parametrize("ranks", sample([3, 1, 2, 4, 7], 1))
def test_mpi_passes_with_other_numbers_of_ranks(any_mpi: Mpi, ranks: int) -> None:
    result = any_mpi.launch(any_mpi.program, str(ranks), "single", ranks=ranks)
    assert (result.status, result.data["ranks"]) == (0, ranks)


def test_mpi_finds_singletons(mpi: Mpi) -> None:
    """Four programs without a launcher: each is rank 0 of 1, and each has to fail."""
    for _ in range(RANKS):
        result = run_program(mpi.program, str(RANKS), "multiple")
        assert result.status == 1
        assert result.finding.startswith(
            "MPI started singletons: this process is rank 0 of 1, expected 5 ranks"
        )


def test_mpi_finds_a_launcher_of_another_family(mpi: Mpi) -> None:
    other = {"Open MPI": "mpiexec.mpich", "MPICH": "mpirun.openmpi"}[mpi.library]
    launcher = tool_of_tests(other)
    options = ["--allow-run-as-root", "--oversubscribe"] if other == "mpirun.openmpi" else []
    result = run_program(launcher, *options, "-n", "4", mpi.program, "4", "multiple")
    assert result.status != 0
    assert "MPI started singletons" in result.stdout


def test_mpi_finds_a_launcher_that_starts_too_few(mpi: Mpi) -> None:
    result = mpi.launch(mpi.program, str(RANKS), "multiple", ranks=3)
    assert result.status != 0
    assert result.finding.startswith("MPI started 3 ranks, expected 5")


MOVED = (
    *("message", "bcast", "gather", "gatherv", "scatter", "scatterv"),
    *("allgather", "allgatherv", "alltoall", "alltoallv"),
)
REDUCED = ("reduce", "allreduce", "iallreduce", "scan", "reduce_scatter")
CAUGHT = [
    *((RankDefect(kind=kind, place=1), rf"{kind} of \d+ bytes") for kind in MOVED),
    *((RankDefect(kind=kind), rf"{kind} \S+ \(\w+\) of \d+ values over") for kind in REDUCED),
    # An algorithm that is right with 4 ranks may be wrong with 3, and one that is for small data
    # may lose large ones.
    (RankDefect(kind="alltoall", ranks=3), r"alltoall of \d+ bytes"),
    (
        RankDefect(kind="sum", rank=2, size=1_000_001, place=77777),
        r"rank 2: allreduce SUM \(double\) of \d+ values over \d ranks: value 77777 is",
    ),
    (RankDefect(kind="bcast", rank=1, size=4 << 20), r"rank 1: bcast of 8388\d+ bytes from"),
    (RankDefect(kind="irecv", rank=3), "rank 3: message of 1000 bytes from rank 0 to rank 3"),
    (RankDefect(kind="put", rank=1), "rank 2: put of 8 bytes from rank 1 to rank 2"),
    (RankDefect(kind="get", rank=1), "rank 1: get of 8 bytes from rank 0 to rank 1"),
    (RankDefect(kind="write", rank=1), "rank 0: file of 131080 bytes from rank 1 to rank 0"),
    (RankDefect(kind="read", rank=1), "rank 1: file of 131080 bytes from rank 2 to rank 1"),
    (RankDefect(kind="split"), "MPI_Comm_split: rank 4 of 5 in its group, expected rank 0 of 5"),
    (RankDefect(kind="barrier"), r"barrier of 5 ranks: rank 0 left it \S+ ms before rank 4 came"),
    (RankDefect(kind="beyond", rank=2), r"rank 2: bcast of \d+ bytes: written beyond its end"),
    (RankDefect(kind="same-rank", rank=2), "rank 0: rank 2 says that it is rank 1"),
]


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("defect", "finding"),
    sample(CAUGHT, 7),
    ids=lambda one: f"{one.kind}-{one.ranks}-{one.size}" if isinstance(one, RankDefect) else "",
)
def test_mpi_finds_a_defect(any_mpi: Mpi, defect: RankDefect, finding: str) -> None:
    result = any_mpi.with_planted(defect)
    assert result.status != 0
    assert re.search(finding, result.stdout), result.stdout


def test_mpi_finds_less_threads_than_required(mpi: Mpi) -> None:
    result = mpi.with_defect(LESS_THREADS)
    assert result.status != 0
    assert "rank 0: MPI grants thread level funneled, required is multiple" in result.stdout


def test_mpi_does_not_rely_on_one_way_to_agree(any_mpi: Mpi) -> None:
    result = any_mpi.with_defect(HIDE_FLAG)
    assert result.status != 0
    assert "rank 0: alltoall of" in result.stdout


def test_mpi_fails_on_every_rank(any_mpi: Mpi) -> None:
    """Each rank knows of a fault of one rank."""
    [variable] = RankDefect(kind="bcast", rank=2).environment.items()
    ends = any_mpi.folder / "ends"
    ends.mkdir()
    preload = f"{variable[0]}={variable[1]} LD_PRELOAD={any_mpi.planted}"
    script = f'{preload} "$0" 5 multiple; echo $? >{ends}/$$; exit 0'
    assert any_mpi.launch("sh", "-c", script, any_mpi.program).status == 0
    assert [path.read_text() for path in ends.iterdir()] == ["1\n"] * RANKS


def test_mpi_finds_a_lost_rank(any_mpi: Mpi) -> None:
    assert any_mpi.with_planted(RankDefect(kind="lose", rank=3)).status != 0


def test_mpi_says_what_a_rank_waits_for_that_is_ended(mpi: Mpi) -> None:
    source, library = mpi.folder / "wait.c", mpi.folder / "wait.so"
    source.write_text(
        "#include <mpi.h>\n#include <unistd.h>\n"
        "int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)\n"
        '{ (void)argc; (void)argv; (void)required; (void)provided; write(1, "x", 1);'
        " for (;;) pause(); }\n"
    )
    run_program(mpi.compiler, "-shared", "-fPIC", "-o", library, source)
    waiting = {"LD_PRELOAD": str(library), "PMIX_RANK": "2"}
    late = run_program(mpi.program, "-t", "1", str(RANKS), "multiple", env=waiting)
    assert late.stderr == "rank 2 waited too long in: MPI_Init_thread\n"
    assert late.status == 128 + signal.SIGALRM
    child = subprocess.Popen(
        [mpi.program, str(RANKS), "multiple"],
        env={**os.environ, **waiting},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.read(1) == b"x"
    child.terminate()
    said = child.communicate(timeout=20)[1].decode()
    assert said == "rank 2 was ended during: MPI_Init_thread\n"
    assert child.returncode == 128 + signal.SIGTERM


def test_mpi_names_a_call_that_failed(mpi: Mpi) -> None:
    result = mpi.with_defect(CALL_FAILS)
    assert result.status != 0
    # MPI_Abort ends the launcher, too, and MPICH's may have forwarded one stream alone by then.
    assert "of 5: MPI_Alltoall(" in result.stdout + result.stderr


def test_mpi_finds_another_library(mpi: Mpi) -> None:
    result = mpi.launch(mpi.program, str(RANKS), "multiple", "Open MPI v1.10")
    assert result.status != 0
    assert result.finding.startswith(f"rank 0: the library is {mpi.library} ")
    assert "expected Open MPI v1.10 (and faults on 4 more ranks)" in result.finding


@pytest.mark.parametrize("arguments", [[], ["4"], ["0", "single"], ["4", "many"], ["x", "single"]])
def test_mpi_refuses_bad_arguments(mpi: Mpi, arguments: list[str]) -> None:
    result = run_program(mpi.program, *arguments)
    assert (result.status, result.finding[:10]) == (2, "usage: mpi")


# ---- quiet ----


@pytest.mark.parametrize(
    ("script", "status", "finding"),
    [
        ("echo fine", 0, "fine"),
        ("echo fine; echo '---' >&2; echo 'WARNING: no fabric' >&2", 1,
         "standard error is not empty: WARNING: no fabric"),
        ("echo bad; echo why >&2; exit 3", 3, "bad"),
        ("echo bad; exit 77", 77, "bad"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_quiet_fails_on_a_complaint(shell: str, script: str, status: int, finding: str) -> None:
    result = run_program(tool_of_tests(shell), SOURCES / "quiet.sh", "sh", "-c", script)
    assert (result.status, result.finding) == (status, finding)
    assert ("WARNING" in result.stderr) is ("WARNING" in script)


def test_quiet_lets_through_what_an_ended_command_says(tmp_path: Path) -> None:
    # a shell's child that is told before it is sleep has lost that; it must not hold the pipe then
    script = (
        "trap 'echo waiting for rank 3 >&2; exit 143' TERM;"
        f" sleep 60 2>/dev/null & touch {tmp_path}/up; wait"
    )
    child = subprocess.Popen(
        ["sh", SOURCES / "quiet.sh", "sh", "-c", script],
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    while not (tmp_path / "up").exists():
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGTERM)
    assert b"waiting for rank 3" in child.communicate(timeout=20)[1]
    assert child.returncode == 143


# ---- mpi4py ----

MPI4PY = SOURCES / "mpi4py-check.py"
WRONG_SUM = """
import mpi4py.MPI as module, runpy, sys
class Wrong(module.Intracomm):
    def Allreduce(self, sendbuf, recvbuf, op=module.SUM):
        super().Allreduce(sendbuf, recvbuf, op=op)
        if self.Get_rank() == 2 and len(recvbuf) == 7:
            recvbuf[3] += 1
module.COMM_WORLD = Wrong(module.COMM_WORLD)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def python() -> str:
    """A Python that has mpi4py and NumPy."""
    for candidate in (sys.executable, "/usr/bin/python3"):
        if (
            shutil.which(candidate)
            and run_program(candidate, "-c", "import mpi4py.MPI, numpy").status == 0
        ):
            return candidate
    pytest.skip("no Python with mpi4py and NumPy (Debian: python3-mpi4py, python3-numpy)")


@pytest.fixture(scope="module")
def launcher(python: str) -> list[str]:
    """The launcher that belongs to mpi4py's library."""
    version = run_program(
        python, "-c", "from mpi4py import MPI; print(MPI.Get_library_version())"
    ).stdout
    family = facts.MPI_FAMILIES["openmpi" if "Open MPI" in version else "mpich"]
    program, *options = family.launch.split()
    return [tool_of_tests(f"{program}.{family.name}"), *options]


def launched(launcher: Sequence[str], *command: str | Path, ranks: int = 4) -> Ended:
    return run_program(*(word.format(ranks=ranks) for word in launcher), *command)


def test_mpi4py_passes(launcher: list[str], python: str) -> None:
    result = launched(launcher, python, MPI4PY, "4")
    assert result.status == 0, result
    assert result.finding.startswith("4 ranks: pickled and array messages and allreduce (mpi4py ")
    assert result.data["ranks"] == 4


def test_mpi4py_finds_singletons_and_lost_ranks(launcher: list[str], python: str) -> None:
    result = run_program(python, MPI4PY, "4")
    assert (result.status, result.finding[:22]) == (1, "MPI started singletons")
    result = launched(launcher, python, MPI4PY, "4", ranks=3)
    assert result.status != 0
    assert result.finding == "MPI started 3 ranks, expected 4"


def test_mpi4py_finds_a_wrong_sum(launcher: list[str], python: str) -> None:
    result = launched(launcher, python, "-c", WRONG_SUM, MPI4PY, "4")
    assert result.status != 0
    assert result.finding.startswith("rank 2: Allreduce of 7 float64 values: value 3 is 41.0")


def test_mpi4py_finds_another_library(launcher: list[str], python: str) -> None:
    result = launched(launcher, python, MPI4PY, "4", "Some MPI")
    assert result.status != 0
    assert "expected Some MPI" in result.finding


def test_mpi4py_says_that_it_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text('raise ImportError("no library\\nmore")\n')
    result = run_program(sys.executable, MPI4PY, "4", env={"PYTHONPATH": str(tmp_path)})
    assert (result.status, result.finding) == (1, "cannot import mpi4py and NumPy: no library")


# ---- run-checks ----

RUN_CHECKS = SOURCES / "run-checks"


@pytest.fixture(params=["dash", "bash"])
def shell(request: pytest.FixtureRequest) -> str:
    return tool_of_tests(request.param)


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Path]:
    """An image's directory of checks, with one check of each outcome."""
    checks = tmp_path / "image/checks"
    checks.mkdir(parents=True)
    add(checks, "10-sound", 'echo "data: {}"; echo "all is well"; echo')
    add(checks, "20-broken", "echo noise >&2; echo 'it is broken'; exit 3")
    add(checks, "30-gpu", "echo 'no GPU'; exit 77")
    (checks / "README").write_text("not a check")
    yield tmp_path / "image"
    left = [path for path in tmp_path.iterdir() if path.name.startswith("run-checks.")]
    assert left == []


def add(checks: Path, name: str, script: str) -> None:
    (checks / name).write_text(f"#!/bin/sh\n{script}\n")
    (checks / name).chmod(0o755)


def environment(image: Path) -> dict[str, str]:
    return {"BUILD_IMAGES_ROOT": str(image), "TMPDIR": str(image.parent)}


def run_checks(shell: str, image: Path, *names: str) -> Ended:
    return run_program(shell, RUN_CHECKS, *names, env=environment(image))


def test_run_checks_reports_each_outcome(shell: str, image: Path) -> None:
    result = run_checks(shell, image)
    assert result.stdout.replace("(1 s)", "(0 s)").splitlines() == [
        "sound: passed - all is well (0 s)",
        "broken: failed - it is broken (0 s)",
        "gpu: skipped - no GPU (0 s)",
        "1 passed, 1 failed, 1 skipped",
    ]
    assert result.status == 1
    assert "    noise\n" in result.stderr


def test_run_checks_believes_no_exit_status_of_a_check_that_says_that_it_failed(
    shell: str, image: Path
) -> None:
    """A launcher behind a pipe loses the status of its ranks."""
    checks = image / "checks"
    add(checks, "10-sound", "for n in 1 2; do echo MPI started singletons: rank 0 of 1; done | cat")
    add(checks, "20-broken", "echo 'rank 2 FAILED: a sum'; echo all is well")
    add(checks, "30-gpu", "echo CUBLAS_STATUS_EXECUTION_FAILED is handled; echo all is well")
    lines = run_checks(shell, image).stdout.replace("(1 s)", "(0 s)").splitlines()
    said = "failed - exit status 0, but it printed"
    assert lines[:2] == [
        f"sound: {said}: MPI started singletons: rank 0 of 1 (0 s)",
        f"broken: {said}: rank 2 FAILED: a sum (0 s)",
    ]
    assert lines[2].startswith("gpu: passed - all is well")


def test_run_checks_runs_the_named_ones(shell: str, image: Path) -> None:
    result = run_checks(shell, image, "30-gpu", "sound")
    assert (result.status, result.finding) == (0, "1 passed, 0 failed, 1 skipped")
    assert result.stderr == ""


def test_run_checks_lists(shell: str, image: Path) -> None:
    assert run_checks(shell, image, "-l").stdout.split() == ["sound", "broken", "gpu"]


def test_run_checks_refuses_an_unknown_name(shell: str, image: Path) -> None:
    result = run_checks(shell, image, "sound", "mip")
    assert (result.status, result.stdout) == (2, "")
    assert result.stderr.strip() == "run-checks: no check mip; there are: sound broken gpu"
    assert run_checks(shell, image, "-x").status == 2


def test_run_checks_fails_when_there_is_none(shell: str, tmp_path: Path) -> None:
    result = run_checks(shell, tmp_path)
    assert (result.status, result.finding) == (1, "0 passed, 0 failed, 0 skipped")


def test_run_checks_survives_what_checks_do(shell: str, image: Path) -> None:
    checks = image / "checks"
    add(checks, "40-killed", "echo 'so far'; kill -9 $$")
    add(checks, "50-silent", "exit 1")
    add(checks, "60-reads", "cat; echo 'nothing to read'")
    add(checks, "70-rubbish", r"printf 'a\000b\033[31m\377c\n'; exit 1")
    add(checks, "80-long", "head -c 100000 /dev/zero | tr '\\000' x")
    lines = run_checks(shell, image).stdout.replace("(1 s)", "(0 s)").splitlines()
    assert lines[3] == "killed: failed - ended by signal 9 after: so far (0 s)"
    assert lines[4] == "silent: failed - exit status 1 without a reason (0 s)"
    assert lines[5] == "reads: passed - nothing to read (0 s)"
    assert lines[6] == "rubbish: failed - ab[31m\ufffdc (0 s)"
    assert (lines[7][:14], len(lines[7])) == ("long: passed -", 521)
    assert lines[8] == "3 passed, 4 failed, 1 skipped"


def test_run_checks_says_that_nothing_is_writable(shell: str, image: Path) -> None:
    result = run_program(
        shell, RUN_CHECKS, env={**environment(image), "TMPDIR": str(image / "missing")}
    )
    assert result.status == 1
    assert "run-checks: no writable directory; set TMPDIR to one" in result.stderr


def test_run_checks_ends_a_hanging_check_with_itself(shell: str, image: Path) -> None:
    """Time limits are the harness's: it ends run-checks, and nothing is left running."""
    mark = image / "pid"
    add(image / "checks", "05-hangs", f"echo $$ >{mark}.new; mv {mark}.new {mark}; exec sleep 600")
    process = subprocess.Popen(
        [shell, str(RUN_CHECKS)],
        env={**os.environ, **environment(image)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 20
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 143
    hanging = int(mark.read_text())
    while Path(f"/proc/{hanging}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{hanging}").exists()


def test_run_checks_is_a_clean_posix_script() -> None:
    options = ("--shell=sh", "--enable=all", "--exclude=SC2250,SC2310,SC2312")
    result = run_program(tool_of_tests("shellcheck"), *options, RUN_CHECKS)
    assert result.status == 0, result.stdout
