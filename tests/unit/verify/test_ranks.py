"""Ranks under a launcher of the host: which one is taken, how they start, and what is a failure."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from builder import facts
from builder.build.engines import Tools
from builder.model import FAILED, PASSED, SKIPPED, Outcome
from builder.model.errors import StepFailed
from builder.system.home import Home
from builder.system.host_facts import host_facts
from builder.system.process import Completed, Processes
from builder.verify.container_output import end_of
from builder.verify.evidence import StartedBy
from builder.verify.launched import PROGRAM, Ranks, verify_ranks
from builder.verify.ranks import launchers, library, outcomes
from builder.verify.ranks.launchers import ImageMpi, Launcher, Start, Unfit, machines, machines_in
from builder.verify.runners import RUNNERS
from builder.verify.runners.protocol import Around, Container

OPEN_MPI = ImageMpi(
    family=facts.MPI_FAMILIES["openmpi"], version="4.1", soname="libmpi.so.40", pmix="3.2"
)
MPICH = ImageMpi(family=facts.MPI_FAMILIES["mpich"], version="4.0", soname="libmpi.so.12")
OF_HOST = ImageMpi(family=facts.MPI_FAMILIES["intelmpi"], version="2021.13", soname="libmpi.so.12")
ORTE = "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n"
HYDRA = "HYDRA build details:\n    Version:                                 4.0.2\n"
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.13 Build 20240701\n"
PLUGINS = "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\nspecific pmix versions: pmix_v4\n"
UP = "Slurmctld(primary) at head is UP\n"


class Answers(Processes):
    """Answers commands by their first words, and starts nothing."""

    def __init__(self, answers: Mapping[str, str]) -> None:
        super().__init__()
        self.answers = answers
        self.users: dict[str, str | None] = {}

    def capture(
        self,
        argv: Sequence[Any],
        *,
        timeout_s: float | None = None,
        user: str | None = None,
        check: bool = True,
        **_: Any,
    ) -> Completed:
        assert timeout_s in {20, 60, 120}
        words = [Path(str(argv[0])).name, *map(str, argv[1:])]
        self.users[words[0]] = user
        for known, text in self.answers.items():
            if f"{' '.join(words)} ".startswith(f"{known} "):
                return Completed(argv=tuple(words), returncode=0, stdout=text)
        if check:
            raise StepFailed(f"{words[0]}: exit status 1")
        return Completed(argv=tuple(words), returncode=1)


@pytest.fixture(name="host")
def a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tools]:
    """A host with programs on its search path, and what they answer."""

    def make(**answers: str) -> Tools:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        known = {re.sub("_(?=--|ping)", " ", name): text for name, text in answers.items()}
        for name in {command.split()[0] for command in known}:
            (folder / name).write_text("")
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))
        monkeypatch.setattr(Home, "search_path", lambda _self: str(folder))
        return Tools(processes=Answers(known), home=Home(path=tmp_path))

    return make


def start(launcher: str = "mpirun", **options: Any) -> Start:
    return Start(**{"launcher": launcher, "ranks": 4, "timeout_s": 90, "nodes": 0, **options})


def words(launcher: Launcher) -> list[str]:
    return [Path(launcher.command[0]).name, *launcher.command[1:]]


def unfit(start: Start, mpi: ImageMpi, tools: Tools) -> str:
    """Why no launcher of a host starts the ranks."""
    with pytest.raises(Unfit) as raised:
        launchers.find(start, mpi, tools)
    return str(raised.value)


# ---- Which launcher ----


def test_mpirun_of_the_images_family_is_taken(
    host: Callable[..., Tools], monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = host(mpirun=HYDRA, **{"mpirun.openmpi": ORTE})
    found = launchers.find(start(), OPEN_MPI, tools)
    assert words(found) == [
        "mpirun.openmpi",
        "--allow-run-as-root",
        "--oversubscribe",
        "-n",
        "4",
    ]
    assert str(found) == "mpirun of Open MPI 4.1.4"
    assert (found.product, found.version) == ("Open MPI", "4.1.4")
    monkeypatch.setenv("SLURM_NNODES", "3")
    other = launchers.find(start(nodes=3, options=("-v",)), MPICH, tools)
    assert words(other) == ["mpirun", "-ppn", "1", "-n", "4", "-v"]
    assert str(other) == "mpirun of Hydra 4.0.2"


@pytest.mark.parametrize(
    ("ranks", "nodes", "ppr", "ppn"),
    [(4, 2, "ppr:2:node", "2"), (5, 2, "ppr:3:node", "3"), (4, 4, "ppr:1:node", "1"),
     (4, 3, "node", "1"), (10, 4, "ppr:3:node", "3"), (9, 4, "node", "2"), (2, 4, "node", "1")],
)  # fmt: skip
def test_ranks_are_on_as_many_nodes_in_an_allocation_of_more(
    ranks: int,
    nodes: int,
    ppr: str,
    ppn: str,
    host: Callable[..., Tools],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "8")
    tools = host(mpirun=HYDRA, **{"mpirun.openmpi": ORTE})
    asked = start(ranks=ranks, nodes=nodes)
    found = words(launchers.find(asked, OPEN_MPI, tools))
    assert found[:3] == ["mpirun.openmpi", "--map-by", ppr]
    assert words(launchers.find(asked, MPICH, tools))[:3] == ["mpirun", "-ppn", ppn]


@pytest.mark.parametrize(
    ("environment", "options", "fits"),
    [
        ({}, (), False),
        ({"SLURM_NNODES": "1"}, (), False),
        ({"SLURM_JOB_NUM_NODES": "2"}, (), True),
        ({"SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "1"}, (), True),
        ({"SLURM_NNODES": "many"}, (), True),
        ({}, ("--host", "a,b"), True),
        ({}, ("-H", "a,b"), True),
        ({}, ("--hostfile=nodes",), True),
        ({}, ("-machinefile", "nodes"), True),
        ({}, ("--map-by", "node"), False),
        ({"PBS_NODEFILE": "nodes"}, (), True),
        ({"OMPI_MCA_orte_default_hostfile": "nodes"}, (), True),
    ],
)
def test_more_nodes_than_mpirun_has_say_nothing_of_the_image(
    environment: dict[str, str],
    options: tuple[str, ...],
    fits: bool,
    host: Callable[..., Tools],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "PBS_NODEFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    tools = host(**{"mpirun.openmpi": ORTE})
    asked = start(nodes=2, options=options)
    if fits:
        assert launchers.find(asked, OPEN_MPI, tools).name == "mpirun"
    else:
        reason = "2 nodes are requested, but mpirun has only this node"
        assert unfit(asked, OPEN_MPI, tools) == reason


def test_what_mpich_has_the_kin_of_mpich_starts(host: Callable[..., Tools]) -> None:
    launcher = launchers.find(start(), MPICH, host(**{"mpirun_--version": INTEL}))
    assert str(launcher) == "mpirun of Intel MPI 2021.13"


NAMES = {
    ORTE: (OPEN_MPI, ["mpirun", "mpirun.openmpi", "mpiexec", "orterun"]),
    HYDRA: (MPICH, ["mpirun", "mpiexec.hydra", "mpirun.mpich", "mpiexec.mpich", "mpiexec"]),
}


@pytest.mark.parametrize("version", NAMES)
def test_of_a_launchers_names_the_first_is_taken(version: str, host: Callable[..., Tools]) -> None:
    mpi, names = NAMES[version]
    for number in reversed(range(len(names))):
        tools = host(**dict.fromkeys(names[number:], version))
        assert words(launchers.find(start(), mpi, tools))[0] == names[number]


def test_a_launcher_of_another_family_is_none(host: Callable[..., Tools]) -> None:
    reason = "this host's mpirun is Open MPI 4.1.4, but the image has MPICH 4.0"
    assert unfit(start(), MPICH, host(mpirun=ORTE)) == reason
    reason = "this host's mpirun belongs to an unknown MPI, but the image has MPICH 4.0"
    assert unfit(start(), MPICH, host(mpirun="prun 1.0\n")) == reason


def test_a_host_without_a_launcher(host: Callable[..., Tools]) -> None:
    tools = host()
    reason = "no mpirun on this host, but the image has Open MPI 4.1"
    assert unfit(start(), OPEN_MPI, tools) == reason
    assert unfit(start("srun"), OPEN_MPI, tools) == "no srun on this host"


def test_srun_starts_ranks_by_pmix(host: Callable[..., Tools]) -> None:
    tools = host(
        **{"srun_--mpi=list": PLUGINS, "scontrol_ping": UP, "srun_--version": "slurm 22.05.8"}
    )
    found = launchers.find(start("srun", nodes=2, options=("-p", "x")), OPEN_MPI, tools)
    assert words(found) == [
        "srun",
        "--mpi=pmix",
        "--ntasks=4",
        "--nodes=2",
        "--kill-on-bad-exit=1",
        "--time=3",
        f"--job-name={found.job}",
        "-p",
        "x",
    ]
    assert str(found) == "srun of Slurm 22.05.8"
    assert re.fullmatch("build-images-[0-9a-f]{8}", found.job)
    alone = launchers.find(start("srun", timeout_s=120), OPEN_MPI, tools)
    assert words(alone)[3:5] == ["--kill-on-bad-exit=1", "--time=4"]


@pytest.mark.parametrize(
    ("mpi", "answers", "reason"),
    [
        (
            MPICH,
            {"srun": PLUGINS},
            "srun starts ranks through PMIx, but MPICH 4.0 has none: its own launcher is mpirun",
        ),
        (
            OPEN_MPI,
            {"srun_--mpi=list": "\tnone\n\tpmi2\n"},
            "this host's srun has no plugin pmix (srun --mpi=list)",
        ),
        (
            OPEN_MPI,
            {"srun_--mpi=list": "srun: fatal: Could not establish a configuration source\n"},
            "Slurm is not configured on this host: Could not establish a configuration source",
        ),
        (
            OPEN_MPI,
            {"srun_--mpi=list": PLUGINS, "scontrol_ping": "Slurmctld(primary) at head is DOWN\n"},
            "no Slurm controller answers: Slurmctld(primary) at head is DOWN",
        ),
        (OPEN_MPI, {"srun_--mpi=list": PLUGINS}, "no Slurm controller answers: scontrol ping"),
    ],
    ids=["mpich", "no-plugin", "no-configuration", "down", "silent"],
)
def test_a_host_whose_slurm_cannot(
    mpi: ImageMpi, answers: dict[str, str], reason: str, host: Callable[..., Tools]
) -> None:
    assert unfit(start("srun"), mpi, host(**answers)) == reason


def test_nothing_of_the_caller_reaches_ranks_but_what_mpi_needs(
    host: Callable[..., Tools], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    tools = host()
    given = {"SLURM_JOB_ID": "7", "OMPI_MCA_pml": "ucx", "UCX_TLS": "rc", "PYTHONPATH": "/x"}
    for name, value in {**given, "TMPDIR": "/scratch", "APPTAINERENV_A": "1"}.items():
        monkeypatch.setenv(name, value)
    found = launchers.environment(tools)
    assert sorted(found) == ["OMPI_MCA_pml", "PATH", "PMIX_MCA_gds", "SLURM_JOB_ID", "UCX_TLS"]
    assert launchers.tuning(found) == {
        "OMPI_MCA_pml": "ucx",
        "PMIX_MCA_gds": "hash",
        "UCX_TLS": "rc",
    }
    monkeypatch.setenv("PMIX_MCA_gds", "ds21")
    assert launchers.environment(tools)["PMIX_MCA_gds"] == "ds21"


def test_passwords_stay_here_and_slurms_token_is_the_launchers(
    host: Callable[..., Tools], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("APPTAINER_DOCKER_PASSWORD", "SINGULARITY_DOCKER_PASSWORD"):
        monkeypatch.setenv(name, "secret")
    for name in ("APPTAINER_ENCRYPTION_PASSPHRASE", "APPTAINER_ENCRYPTION_PEM_DATA"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("SLURM_JWT", "token")
    monkeypatch.setenv("APPTAINER_TMPDIR", "/scratch")
    found = launchers.environment(host())
    assert "secret" not in found.values()
    assert (found["SLURM_JWT"], found["APPTAINER_TMPDIR"]) == ("token", "/scratch")


# ---- What they say ----

NOTICED = "mpirun noticed that process rank 3 with PID 0 on node vm exited on signal 9 (Killed)."
LATE = "rank {} of 4 waited too long in: MPI_Bcast of 8 bytes\n"
ENDED = "rank {} of 4 was ended during: MPI_Bcast of 8 bytes\n"


def test_who_hangs_and_who_says_nothing() -> None:
    text = LATE.format(0) + "noise\n" + ENDED.format(3) + LATE.format(1)
    assert outcomes.hang(text, 4) == "ranks 0, 1, 3 in MPI_Bcast of 8 bytes; nothing from rank 2"
    assert outcomes.hang(text + "rank 2 was ended during: MPI_Init_thread\n", 4) == (
        "ranks 0, 1, 3 in MPI_Bcast of 8 bytes; rank 2 in MPI_Init_thread"
    )
    assert outcomes.hang("a rank waited too long in: its start\n" * 2, 2) == "2 more in its start"
    assert "ranks 0, 1, 2, 3, 4, 5, 6, 7, ..." in outcomes.hang(LATE.format(20), 20)


def test_ranks_that_their_launcher_ends_do_not_hang() -> None:
    assert outcomes.hang(ENDED.format(0) + ENDED.format(1), 4) == ""
    assert outcomes.hang("slurmstepd: error\n", 4) == ""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ""),
        ("-----\n\n", ""),
        ("srun: job 3 queued and waiting for resources\n", ""),
        (f"-----\nPrimary job terminated\n{NOTICED}\n", NOTICED),
        ("slurmstepd: error: x\nsrun: error: n2: task 3: Killed\n",
         "srun: error: n2: task 3: Killed"),
        ("srun: error: n1: tasks 0-2: Exited with exit code 1\nmore\n",
         "srun: error: n1: tasks 0-2: Exited with exit code 1"),
        ("=   BAD TERMINATION\n=   KILLED BY SIGNAL: 9 (Killed)\n",
         "=   KILLED BY SIGNAL: 9 (Killed)"),
        ("x\nmpi: error while loading shared libraries: libz.so.1\n",
         "mpi: error while loading shared libraries: libz.so.1"),
        ("x\nmpi: /lib/libc.so.6: version `GLIBC_2.36' not found (required by libmpi)\n",
         "mpi: /lib/libc.so.6: version `GLIBC_2.36' not found (required by libmpi)"),
    ],
)  # fmt: skip
def test_the_complaint_that_tells_most(text: str, told: str) -> None:
    assert outcomes.complaint(text) == told


# ---- The verdict ----

FINDING = "4 ranks on 2 hosts: messages and collectives of 1 B to 8 MiB are whole"
MPIRUN = "mpirun of Open MPI 4.1.4"
NO_RESULT = "no result after 195 s, and no rank reported its step; last output:"
ENDED_LATE = {"returncode": -15, "stdout": "", "timed_out": True, "duration_s": 195.0}
ALONE = "MPI started singletons: this process is rank 0 of 1, expected 4 ranks\n"


def report(**changes: Any) -> str:
    data = {"ranks": 4, "hosts": 2, "library_file": "/host-mpi/mpi/libmpi.so.40", **changes}
    return f"data: {json.dumps(data)}\n{FINDING}\n"


class Said:
    """A runner whose ranks say what they are told to."""

    def __init__(self, around: Around, done: Mapping[str, Any]) -> None:
        self.around, self.done = around, done
        self.ran: tuple[str, ...] = ()

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        self.ran = (*self.around.command, "CONTAINER", *argv)
        assert timeout_s == 195
        return Completed(
            argv=("env", "--unset=PYTHONPATH", *self.ran),
            **{"returncode": 0, "stdout": report(), **self.done},
        )


Judge = Callable[..., tuple[Outcome, StartedBy]]


@pytest.fixture(name="judge")
def judging(host: Callable[..., Tools], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """The outcome of ranks that end in a given way, in an allocation of two nodes."""
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")

    cancelled: list[Launcher] = []
    monkeypatch.setattr(launchers, "cancel", lambda launcher, _home: cancelled.append(launcher))

    def run(
        *, image: Mapping[str, Any] | None = None, bind: str = "", **done: Any
    ) -> tuple[Outcome, StartedBy]:
        runners: list[Said] = []
        cancelled.clear()

        @contextlib.contextmanager
        def opened(container: Container) -> Iterator[Said]:
            assert container.artifact == tmp_path / "image.sif"
            assert (container.directory, container.gpu) == ("/", False)
            assert container.around is not None
            runners.append(Said(container.around, done))
            if error := done.get("error"):
                raise error
            yield runners[-1]

        given: dict[str, Any] = {
            "arch": platform.machine(),
            "kind": dataclasses.replace(RUNNERS["apptainer"], open=opened),
            "artifact": tmp_path / "image.sif",
            "mpi": OPEN_MPI,
            "has_program": True,
            "start": start(nodes=2, bind=bind),
            **(image or {}),
        }
        found = verify_ranks(Ranks(**given), work=tmp_path, tools=host(mpirun=ORTE))
        ended_badly = {"error", "timed_out"} & done.keys() or done.get("returncode")
        assert len(cancelled) == bool(runners and ended_badly)
        if runners and "error" not in done:
            ran = runners[0].ran
            before = ran[: ran.index("CONTAINER")]
            assert before[-3:] == ("timeout", "--kill-after=5", "100")
            assert before[-5:-3] == ("env", "--unset=SLURM_JWT")
            program = ("single",) if bind else ("multiple", "Open MPI v4.1")
            assert ran[-len(program) - 4 :] == (PROGRAM, "-t", "90", "4", *program)
        return found

    return run


def test_ranks_that_are_whole_pass(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_MCA_pml", "ucx")
    outcome, started_by = judge(duration_s=1.23456)
    assert (outcome.check, outcome.outcome) == ("mpi-hybrid-mpirun", PASSED)
    assert outcome.duration_s == 1.235
    assert outcome.reason == f"{FINDING}; started by mpirun of Open MPI 4.1.4"
    assert (outcome.data["ranks"], outcome.output) == (4, "")
    assert outcome.data["tuning"] == {"OMPI_MCA_pml": "ucx", "PMIX_MCA_gds": "hash"}
    assert str(started_by) == "mpirun of Open MPI 4.1.4"
    assert (started_by.ranks, started_by.nodes) == (4, 2)
    assert "mpirun --map-by ppr:2:node" in started_by.command
    assert "CONTAINER" in started_by.command
    assert "PYTHONPATH" not in started_by.command
    assert judge(image={"arch": "s390x"})[0].outcome == PASSED, "the image's own MPI is emulated"


@pytest.mark.parametrize(("name", "is_kept"), [("n1", True), ("n2", False)])
def test_machines_are_those_that_the_ranks_ran_on(
    name: str, is_kept: bool, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {name: host_facts()}
    monkeypatch.setattr(launchers, "machines", lambda *_: known)
    _, started_by = judge(stdout=report(ranks_by_host={"n1": 4}))
    assert started_by.machines == (known if is_kept else {})


@pytest.mark.parametrize(
    ("done", "reason"),
    [
        ({"stdout": ALONE * 4, "returncode": 1}, f"{ALONE.strip()} (4 of 4 ranks report this)"),
        ({"stdout": ALONE * 4}, f"{ALONE.strip()} (4 of 4 ranks report this)"),
        ({"stdout": report() * 2}, "2 groups of ranks reported, expected 1"),
        ({"stdout": f"{FINDING}\n"}, "0 groups of ranks reported, expected 1"),
        (
            {"stdout": report().replace(FINDING, "rank 3: byte 7 is 3")},
            "no line says that all messages arrived; its last line: rank 3: byte 7 is 3",
        ),
        ({"stdout": report(ranks=3)}, "3 ranks reported, expected 4"),
        ({"stdout": report(hosts=1)}, "the ranks ran on 1 nodes, expected 2"),
        ({"stderr": "---\nno fabric\n"}, "standard error is not empty: no fabric"),
        ({"stdout": ""}, "exit status 0, but no rank printed a finding"),
        (
            {"stdout": 'data: {"ranks": 4}\nrank 2: a sum is wrong\n', "returncode": 1},
            f"rank 2: a sum is wrong; {MPIRUN} ended with exit status 1: no error message",
        ),
        (
            {"returncode": 137, "stderr": "srun: error: n2: task 3: Killed\n"},
            f"{MPIRUN} ended with exit status 137: srun: error: n2: task 3: Killed",
        ),
        (
            {"returncode": 143, "stdout": "", "stderr": LATE.format(1)},
            "no result after 90 s: rank 1 in MPI_Bcast of 8 bytes; nothing from ranks 0, 2, 3",
        ),
        (
            {"returncode": 124, "stdout": "", "duration_s": 101.2},
            "no result after 101 s, and no rank reported its step; last output: nothing",
        ),
        (
            {"returncode": 1, "stdout": "rank 2: a sum is wrong\n", "stderr": ENDED.format(0)},
            f"rank 2: a sum is wrong; {MPIRUN} ended with exit status 1: {ENDED.format(0).strip()}",
        ),
        ({**ENDED_LATE, "stderr": "waiting for n2\n"}, f"{NO_RESULT} waiting for n2"),
        (
            {**ENDED_LATE, "waiting": ("mpirun (poll_schedule_timeout)",)},
            f"{NO_RESULT} nothing; it was waiting for: mpirun (poll_schedule_timeout)",
        ),
        (
            {"stdout": report() + "\N{REPLACEMENT CHARACTER}\n"},
            "exit status 0, but the last line is not text: \N{REPLACEMENT CHARACTER}",
        ),
        ({"returncode": 0, "timed_out": True}, None),
    ],
)
def test_ranks_that_are_not_fail(done: dict[str, Any], reason: str | None, judge: Judge) -> None:
    outcome, started_by = judge(**done)
    assert outcome.outcome == FAILED
    assert started_by.version == "4.1.4"
    assert outcome.output == end_of(done.get("stdout", report()), done.get("stderr", ""))
    if reason:
        assert outcome.reason == reason


WAITS = "srun: job 7 queued and waiting for resources\n"
GOT = "srun: job 7 has been allocated resources\n"
NO_NODES = f"{MPIRUN} only queued the job: no nodes in 195 s, and no rank was started"


FEW = "srun: error: Unable to allocate resources: Requested node configuration is not available"
MANY = "srun: error: Unable to create step for job 8: More processors requested than permitted"
REFUSED = f"{MPIRUN} did not get the nodes, and no rank was started; its message:"
DOWN = "srun: Required node not available (down, drained or reserved)"


@pytest.mark.parametrize(
    ("done", "result", "reason"),
    [
        ({**ENDED_LATE, "stderr": WAITS}, SKIPPED, NO_NODES),
        ({**ENDED_LATE, "stderr": f"{DOWN}\n{WAITS}"}, SKIPPED, f"{NO_NODES}; its message: {DOWN}"),
        ({**ENDED_LATE, "stderr": WAITS + GOT}, FAILED, f"{NO_RESULT} nothing"),
        ({**ENDED_LATE, "stderr": ""}, FAILED, f"{NO_RESULT} nothing"),
        ({"stderr": WAITS + GOT}, PASSED, f"{FINDING}; started by {MPIRUN}"),
        ({"stderr": FEW, "stdout": "", "returncode": 1}, SKIPPED, f"{REFUSED} {FEW}"),
        ({"stderr": MANY, "stdout": "", "returncode": 1}, SKIPPED, f"{REFUSED} {MANY}"),
        ({"stderr": MANY, "stdout": "0 ranks\n", "returncode": 1}, FAILED,
         f"0 ranks; {MPIRUN} ended with exit status 1: {MANY}"),
    ],
)  # fmt: skip
def test_ranks_that_were_given_no_nodes_say_nothing_of_the_image(
    done: dict[str, Any], result: str, reason: str, judge: Judge
) -> None:
    outcome, _ = judge(**done)
    assert (outcome.outcome, outcome.reason) == (result, reason)


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ({"mpi": None}, "the image has no MPI"),
        (
            {"has_program": False},
            "the image has no check mpi, whose program the ranks would run",
        ),
        (
            {"mpi": MPICH},
            "this host's mpirun is Open MPI 4.1.4, but the image has MPICH 4.0",
        ),
        (
            {"arch": "s390x", "start": start(nodes=2, bind="auto")},
            f"the image is for s390x, but the host's MPI is for {platform.machine()}",
        ),
        (
            {"start": start(nodes=2, bind="/nonexistent/mpi")},
            "/nonexistent/mpi: no such folder on this host",
        ),
        ({"mpi": OF_HOST}, "the image has no MPI of its own: bind the host's Intel MPI 2021.13"),
        (
            {"mpi": OF_HOST, "start": start(nodes=2, bind="auto")},
            "this host's mpirun is Open MPI 4.1.4, but the image has Intel MPI 2021.13",
        ),
    ],
)
def test_what_a_host_cannot_start_is_skipped(
    image: dict[str, Any], reason: str, judge: Judge
) -> None:
    outcome, started_by = judge(image=image)
    assert (outcome.outcome, outcome.reason) == (SKIPPED, reason)
    assert (started_by.name, started_by.ranks, started_by.nodes) == ("mpirun", 4, 2)


def test_outcomes_are_named_by_depth_and_launcher() -> None:
    assert start("mpirun").check == "mpi-hybrid-mpirun"
    assert start("srun").check == "mpi-hybrid-srun"
    assert start("srun", bind="auto").check == "mpi-bind-srun"


# ---- The host's library ----


@pytest.fixture(name="tree")
def host_mpi(tmp_path: Path) -> Path:
    """The folder of an Open MPI, with what it is linked to and its components."""
    root = tmp_path / "opt/openmpi"
    (root / "lib/openmpi").mkdir(parents=True)
    (root / "lib/libmpi.so.40.30.4").write_bytes(b"\x7fELF ompi_mpi_init")
    (root / "lib/libmpi.so.40").symlink_to("libmpi.so.40.30.4")
    (root / "lib/openmpi/mca_pml_ob1.so").touch()
    for name in ("libopen-pal.so.40", "libz.so.1", "libc.so.6"):
        (tmp_path / name).touch()
    return root


def ldd(folder: Path) -> str:
    names = ("libopen-pal.so.40", "libz.so.1", "libc.so.6")
    lines = [f"\t{name} => {folder / name} (0x00007f)\n" for name in names]
    return "\tlinux-vdso.so.1 (0x00007f)\n" + "".join(lines)


Bound = Callable[..., contextlib.AbstractContextManager[library.BoundLibrary]]


@pytest.fixture(name="bound")
def binding(host: Callable[..., Tools], tmp_path: Path) -> Bound:
    """Binds the MPI below a folder of a host that has this launcher and these programs."""

    def bind(
        where: Path | str, mpi: ImageMpi = OPEN_MPI, *, mpirun: str = ORTE, **answers: str
    ) -> contextlib.AbstractContextManager[library.BoundLibrary]:
        tools = host(mpirun=mpirun, **{"ldd": ldd(tmp_path), **answers})
        launcher = launchers.find(start(), mpi, tools)
        return library.bound_library(str(where), mpi, launcher, work=tmp_path, tools=tools)

    return bind


def test_a_hosts_folder_is_shown_whole(tree: Path, tmp_path: Path, bound: Bound) -> None:
    with bound(tree) as found:
        staged = tmp_path / "host-mpi"
        real = tree / "lib/libmpi.so.40.30.4"
        assert (found.source, found.loaded, found.inode) == (real, str(real), real.stat().st_ino)
        assert (staged / "mpi/libmpi.so.40").readlink() == real
        assert [path.name for path in sorted(staged.rglob("*.so*"))] == [
            "libmpi.so.40",
            "libopen-pal.so.40",
            "libz.so.1",
        ]
        assert (staged / "others/libz.so.1").exists()
        assert set(found.mounts) == {"/host-mpi", str(tree)}
        roots, archs = ("/lib", "/usr/lib"), (platform.machine(), "powerpc64le")
        assert found.search == (
            *("/host-mpi/mpi", str(tree / "lib")),
            *(f"{root}/{arch}-linux-gnu" for arch in archs for root in roots),
            *("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/host-mpi/others"),
        )
        argv = found.program("sh", "-c", 'echo "$LD_LIBRARY_PATH $1"', "sh", "4")
        for own, more in (({}, ""), ({"LD_LIBRARY_PATH": "/own"}, ":/own")):
            said = subprocess.check_output(argv, env={"PATH": os.defpath, **own}, text=True)
            assert said == f"{':'.join(found.search)}{more} 4\n"
    assert not staged.exists()


def test_of_a_systems_folder_only_the_mpi_is_shown(
    tree: Path, tmp_path: Path, bound: Bound
) -> None:
    known = f"\tlibmpi.so.40 (libc6,x86-64) => {tree}/lib/libmpi.so.40\n"
    with bound("auto", **{"ldconfig -p": known}) as found:
        copy = tmp_path / "host-mpi/mpi/libmpi.so.40.30.4"
        assert found.loaded == "/host-mpi/mpi/libmpi.so.40.30.4"
        assert found.inode == copy.stat().st_ino
        assert copy.read_bytes() == found.source.read_bytes()
        assert (tmp_path / "host-mpi/mpi/libmpi.so.40").readlink() == Path(copy.name)
        assert set(found.mounts) == {"/host-mpi", str(tree / "lib/openmpi")}
        shutil.rmtree(tmp_path / "host-mpi")  # as those do who clean up temporary files


@pytest.mark.parametrize("folder", ["lib", "lib64"])
def test_the_mpi_of_a_launcher_is_beside_it(folder: str, tmp_path: Path, bound: Bound) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "libmpi.so.40").write_bytes(b"\x7fELF ompi_mpi_init")
    with bound("auto", ldd="") as found:
        assert found.source == tmp_path / folder / "libmpi.so.40"


def test_a_systems_folder_is_not_shown_whole() -> None:
    systems = ["/", "/usr", "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/lib/x-linux-gnu"]
    others = ["/opt", "/usr/local", "/usr/lib/openmpi", "/opt/x-linux-gnu"]
    assert [one for one in systems + others if library._is_system(Path(one))] == systems


def test_a_folder_of_links_to_a_library_elsewhere_is_not_shown_whole(
    tree: Path, tmp_path: Path, bound: Bound
) -> None:
    """As a view of Spack's: what the links lead to is not in the container."""
    view = tmp_path / "view"
    (view / "lib").mkdir(parents=True)
    (view / "lib/libmpi.so.40").symlink_to(tree / "lib/libmpi.so.40.30.4")
    with bound(view) as found:
        copy = tmp_path / "host-mpi/mpi/libmpi.so.40.30.4"
        assert (found.loaded, found.inode) == (f"/host-mpi/mpi/{copy.name}", copy.stat().st_ino)
        assert (copy.parent / "libmpi.so.40").readlink() == Path(copy.name)
        assert set(found.mounts) == {"/host-mpi", str(tree / "lib/openmpi")}
        assert str(view / "lib") not in found.search


def test_what_is_a_mere_link_in_a_folder_is_shown_besides(
    tree: Path, tmp_path: Path, bound: Bound
) -> None:
    (tree / "lib/libopen-pal.so.40").symlink_to(tmp_path / "libopen-pal.so.40")
    components = tmp_path / "components"
    (tree / "lib/openmpi").rename(components)
    (tree / "lib/openmpi").symlink_to(components)
    with bound(tree, ldd=ldd(tree / "lib")) as found:
        assert (tmp_path / "host-mpi/mpi/libopen-pal.so.40").is_file()
        assert set(found.mounts) == {"/host-mpi", str(tree), str(components)}


@pytest.mark.parametrize(
    ("library_at", "components_at", "symbol", "is_own"),
    [
        ("openmpi/lib", "openmpi/lib/openmpi", "ompi_mpi_init", True),
        ("usr/lib/x", "usr/lib/x/openmpi/lib/openmpi3", "ompi_mpi_init", True),
        ("usr/lib/x/openmpi/lib", "usr/lib/x/openmpi/lib/openmpi3", "ompi_mpi_init", True),
        ("usr/lib/x", "usr/lib/x/openmpi/lib/openmpi3", "MPICH", False),
        ("openmpi/lib", "others/lib/openmpi", "ompi_mpi_init", False),
        ("openmpi/lib", "openmpi/lib/pmix", "ompi_mpi_init", True),
        ("mpich/lib", "mpich/lib/pmix", "MPICH", True),
    ],
)
def test_components_are_those_of_the_mpi_that_was_chosen(
    library_at: str,
    components_at: str,
    symbol: str,
    is_own: bool,
    tmp_path: Path,
    host: Callable[..., Tools],
) -> None:
    for at, name in ((library_at, "libmpi.so.40.30.4"), (components_at, "mca_pml_cm.so")):
        (tmp_path / at).mkdir(parents=True, exist_ok=True)
        (tmp_path / at / name).write_text(symbol)
    components = library._plugins(tmp_path / library_at / "libmpi.so.40.30.4", host(ldd=""))
    assert components == ([tmp_path / components_at] if is_own else [])


def test_components_of_the_pmix_that_is_loaded_are_beside_it(
    tmp_path: Path, host: Callable[..., Tools]
) -> None:
    folders = [tmp_path / "lib/openmpi", tmp_path / "pmix/lib/pmix"]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "mca_pmix.so").touch()
    (tmp_path / "lib/libmpi.so.40").write_text("ompi_mpi_init")
    links = [("libpmix.so.2", folders[1].parent), ("libpmi.so.2", tmp_path / "lost")]
    needed = "".join(f"\t{name} => {folder}/{name} (0x0)\n" for name, folder in links)
    assert library._plugins(tmp_path / "lib/libmpi.so.40", host(ldd=needed)) == folders


def test_an_ordinary_user_asks_and_can_read_what_is_shown(
    tree: Path, tmp_path: Path, host: Callable[..., Tools], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ldd starts files of a folder that the caller named, and ranks are not root's."""
    monkeypatch.setattr(Tools, "ordinary_user", "somebody")
    tools = host(mpirun=ORTE, ldd=ldd(tmp_path))
    launcher, before = launchers.find(start(), OPEN_MPI, tools), os.umask(0o077)
    try:
        with library.bound_library(str(tree), OPEN_MPI, launcher, work=tmp_path, tools=tools):
            staged = tmp_path / "host-mpi"
            modes = {path.stat().st_mode & 0o777 for path in (staged, *staged.iterdir())}
    finally:
        os.umask(before)
    assert modes == {0o755}
    answers = tools.processes
    assert isinstance(answers, Answers)
    assert answers.users["ldd"] == "somebody"


def test_a_library_of_another_binary_interface_is_none(
    tree: Path, tmp_path: Path, bound: Bound
) -> None:
    """Open MPI 1.10 and MPICH give their libraries the same name."""
    (tree / "lib/libmpi.so.12").write_bytes(b"\x7fELF ompi_mpi_init 1.10")
    reason = rf"no libmpi.so.12 or libmpich.so.12 of MPICH's binary interface \(below {tree}\)"
    with pytest.raises(Unfit, match=reason), bound(tree, MPICH, mpirun=HYDRA, ldd=""):
        pass
    (tree / "lib/libmpi.so.12").write_bytes(b"\x7fELF MPICH Version")
    with bound(tree, MPICH, mpirun=HYDRA, ldd=""):
        for name in ("libmpich.so.12", "libmpi.so.12"):
            linked = tmp_path / "host-mpi/mpi" / name
            assert linked.is_symlink() is (name == "libmpich.so.12")


@pytest.mark.parametrize(
    ("place", "where", "searched", "staged"),
    [
        ("opt/mpi/libfabric/lib", "impi", True, []),
        ("lib/libfabric", "impi", True, []),
        ("lib/libfabric", "auto", False, ["libfabric.so.1"]),
        ("../usr/lib", "impi", False, ["libfabric.so.1"]),
    ],
)
def test_an_mpi_gets_the_libfabric_that_it_opens_by_name(
    place: str, where: str, searched: bool, staged: list[str], tmp_path: Path, bound: Bound
) -> None:
    """Intel MPI's is in another folder than its own library, or is the system's."""
    root = tmp_path / "impi"
    fabric = (root / place).resolve()
    system = tmp_path / "usr/lib"
    for folder in (root / "lib", fabric / "prov", system):
        folder.mkdir(parents=True, exist_ok=True)
    (root / "lib/libmpi.so.12").write_bytes(b"\x7fELF libfabric.so.1")
    for folder in (fabric, system):
        (folder / "libfabric.so.1").touch()
    (fabric / "prov/libtcp-fi.so").touch()
    places = {"libmpi.so.12": root / "lib", "libfabric.so.1": system}
    known = "".join(f"\t{name} (libc6) => {at}/{name}\n" for name, at in places.items())
    chosen = "auto" if where == "auto" else str(root)
    with bound(chosen, MPICH, mpirun=HYDRA, ldd="", **{"ldconfig -p": known}) as found:
        assert (str(fabric) in found.search) is searched
        others = tmp_path / "host-mpi/others"
        assert [path.name for path in others.iterdir()] == staged
        argv = found.program("sh", "-c", 'echo "$FI_PROVIDER_PATH"')
        said = subprocess.check_output(argv, env={"PATH": os.defpath}, text=True)
        assert said == f"{fabric}/prov\n"
        assert (str(fabric / "prov") in found.mounts) is not searched


@pytest.mark.parametrize("data", [b"MPICH", b"libfabric.so.1"])
def test_an_mpi_that_opens_no_libfabric_gets_none(
    data: bytes, tmp_path: Path, bound: Bound
) -> None:
    """One that is linked to it has the one that the loader finds."""
    for name in ("lib/libmpi.so.12", "others/libfabric.so.1"):
        (tmp_path / "mpich" / name).parent.mkdir(parents=True)
        (tmp_path / "mpich" / name).write_bytes(data)
    linked = f"\tlibfabric.so.1 => {tmp_path}/libfabric.so.1 (0x0)\n" if b"lib" in data else ""
    (tmp_path / "libfabric.so.1").touch()
    with bound(tmp_path / "mpich", MPICH, mpirun=HYDRA, ldd=linked) as found:
        assert str(tmp_path / "mpich/others") not in found.search
        assert not found.providers


def test_libraries_beside_the_mpis_own_are_found_by_a_link(tmp_path: Path, bound: Bound) -> None:
    """MPICH's wheel looks in the folder of its file, be that a link: there is nothing beside it."""
    for name in ("lib/libmpi.so.12", "lib/mpich/libucp.so.0"):
        (tmp_path / "mpich" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mpich" / name).touch()
    linked = f"\tlibucp.so.0 => {tmp_path}/mpich/lib/mpich/libucp.so.0 (0x0)\n"
    with bound(tmp_path / "mpich", MPICH, mpirun=HYDRA, ldd=linked) as found:
        folders = [str(tmp_path / "mpich" / name) for name in ("lib", "lib/mpich")]
        assert list(found.search[1:3]) == folders


def test_the_library_that_was_loaded_has_to_be_the_hosts(tree: Path, judge: Judge) -> None:
    outcome, _ = judge(bind=str(tree), stdout=report(library_inode=1))
    assert outcome.check == "mpi-bind-mpirun"
    assert outcome.outcome == FAILED
    assert "/host-mpi/mpi/libmpi.so.40, not the host's" in outcome.reason
    real = tree / "lib/libmpi.so.40.30.4"
    told = report(library_file=str(real), library_inode=real.stat().st_ino)
    outcome, _ = judge(bind=str(tree), stdout=told)
    assert outcome.data["host_library"] == str(real)
    assert outcome.reason == f"{FINDING}; started by {MPIRUN}; the host's {real} is loaded"


# ---- Where ranks ran ----


def test_machines_say_what_they_are_each_once() -> None:
    lines = [
        "some launcher's banner",
        "build-images-machine\tn2\tppc64le\t4.18\tPOWER9\t160\tRHEL 8.1\t418.87.00\tV100;V100;",
        "build-images-machine\tn1\tx86_64\t6.1\t\t\t\t\t",
        "build-images-machine\tn1\tx86_64\t6.1\t\t\t\t\t",
        "build-images-machine\ttoo few",
    ]
    machines = machines_in("\n".join(lines))
    assert [*machines] == ["n1", "n2"]
    first, second = machines.values()
    assert (first.cpu, first.cores, first.os) == ("unknown", 1, "unknown")
    assert (first.driver, first.gpus) == ("", ())
    assert (second.arch, second.driver) == ("ppc64le", "418.87.00")
    assert (second.cores, second.gpus) == (160, ("V100", "V100"))
    assert machines_in("") == {}


def test_this_machine_says_of_itself_what_is_read_here(tmp_path: Path) -> None:
    tools = Tools(processes=Processes(), home=Home(path=tmp_path))
    alone = Launcher(name="mpirun", product="none", version="", command=("env",))
    [(name, found)] = machines(alone, tools).items()
    assert found == dataclasses.replace(host_facts(), cores=found.cores)
    assert name == platform.node()


@pytest.mark.parametrize(
    ("ended", "is_told"),
    [({}, True), ({"returncode": 1}, False), ({"timed_out": True, "returncode": 0}, False)],
)
def test_machines_are_told_by_a_launcher_that_ends_well(
    ended: dict[str, Any],
    is_told: bool,
    host: Callable[..., Tools],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What remains of a job that told nothing in time is cancelled."""
    cancelled, tools = list[object](), host()
    line = "build-images-machine\tn1\tx86_64\t6.1\tcpu\t8\tos\t\t\n"

    def capture(_: object, argv: Sequence[str], **options: Any) -> Completed:
        assert argv[:5] == ("srun", "env", "--unset=SLURM_JWT", "sh", "-c")
        assert (options["timeout_s"], options["check"]) == (60, False)
        assert options["env"] == launchers.environment(tools) != tools.environment
        return Completed(**{"argv": (), "returncode": 0, "stdout": line, **ended})

    monkeypatch.setattr(Answers, "capture", capture)
    monkeypatch.setattr(launchers, "cancel", lambda *_: cancelled.append(1))
    launcher = Launcher(name="srun", product="Slurm", version="", command=("srun",), job="x")
    assert [*machines(launcher, tools)] == ["n1"] * is_told
    assert len(cancelled) == ("timed_out" in ended)


@pytest.mark.parametrize(
    ("tail", "reason"), [((), "tar: exit status 2"), (("x", "tar: no room"), "tar: no room")]
)
def test_a_container_that_is_not_unpacked_fails_its_ranks(
    tail: tuple[str, ...], reason: str, judge: Judge
) -> None:
    outcome, started_by = judge(error=StepFailed("tar: exit status 2", tail=tail))
    assert (outcome.check, outcome.outcome) == ("mpi-hybrid-mpirun", FAILED)
    assert outcome.reason == f"the container could not be unpacked: {reason}"
    assert (started_by.product, started_by.command.split()[1]) == ("Open MPI", "--map-by")
