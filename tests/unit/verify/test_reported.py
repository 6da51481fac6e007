"""Reports of ranks in a container are judged, whatever the exit status."""

from __future__ import annotations

import json
from typing import Any

import pytest
from manifest_samples import record
from samples import shipped_images
from test_check_outcomes import FakeRunner, done

from builder.model import FAILED, PASSED
from builder.model.manifest import AskedRanks, InImageCheck
from builder.verify.checks import notes_on, outcome_of
from builder.verify.targets import target_of

ASKED = AskedRanks(count=4, library="Open MPI v5.0")
DATA = {
    "ranks": 4,
    "hosts": 1,
    "ranks_by_host": {"n1": 4},
    "library": "Open MPI v5.0.7",
    "transport": "ob1 (self, sm)",
}
FINDING = "4 ranks on 1 host: messages and collectives of 1 B to 8 MiB are whole"


def result_of(stdout: str, *, name: str = "mpi", asked: AskedRanks = ASKED) -> tuple[str, str]:
    """The outcome of a check that prints this, and ends with exit status 0."""
    check = InImageCheck(name=name, script="/s", needs=("mpi",), timeout_s=60, asked=asked)
    outcome = outcome_of(check, FakeRunner({"/s": done(stdout)}))
    return outcome.outcome, outcome.reason


def printed(**changes: Any) -> str:
    data = {key: value for key, value in {**DATA, **changes}.items() if value is not None}
    return f"data: {json.dumps(data)}\n{FINDING}\n"


def test_the_ranks_that_were_asked_for_pass() -> None:
    assert result_of(printed()) == (PASSED, FINDING)
    assert result_of(f"{printed()}mpool.c:42 UCX WARN object was not returned") == (PASSED, FINDING)
    whole = printed(rank_numbers=[0, 1, 2, 3], within_host="memory")
    assert result_of(whole) == (PASSED, FINDING)
    assert result_of(printed(library="MPICH 4.2.1"), asked=AskedRanks())[0] == PASSED


@pytest.mark.parametrize(
    ("stdout", "reason"),
    [
        ("MPI started singletons: this process is rank 0 of 1\n" * 4, "MPI started singletons"),
        ("4 ranks on 1 host: messages are whole\n", "no group of ranks reported"),
        (printed() * 4, "4 groups of ranks reported, expected 1"),
        (printed(ranks=3), "3 ranks reported, expected 4"),
        (printed(ranks_by_host={"n1": 3}), "expected all 4 on one host"),
        (printed(ranks_by_host={"n1": 2, "n2": 2}), "expected all 4 on one host"),
        (printed(ranks_by_host=4), "the ranks were on 4, expected all 4 on one host"),
        (printed(library=5), "the library is 5, expected Open MPI v5.0"),
        (printed(library="Open MPI v5.01"), "the library is Open MPI v5.01"),
        (printed(library="MPICH 4.2.1"), "expected Open MPI v5.0"),
        (printed(transport=None), "did not report their transport"),
        (printed(rank_numbers=[0, 1, 1, 3]), "numbered [0, 1, 1, 3], expected each of 4 once"),
        (printed(within_host="TCP"), "over TCP (ob1 (self, sm)), not over shared memory"),
        (f"FAILED {'x' * 300}\n{printed()}", f"it printed: FAILED {'x' * 243}"),
        (printed(library="x" * 300), f"the library is {'x' * 235}"),
        (f"FAILED: sums differ\n{printed()}", "it printed: FAILED: sums differ"),
        (printed().replace(FINDING, "rank 3: byte 7 is 3"), "its last line: rank 3: byte 7 is 3"),
    ],
)
def test_what_ranks_report_outweighs_the_exit_status(stdout: str, reason: str) -> None:
    outcome, text = result_of(stdout)
    assert outcome == FAILED
    assert reason in text
    assert len(text.removeprefix("exit status 0, but it printed: ")) <= 250 + 19


@pytest.mark.parametrize(("number", "count"), [(1, "1"), (2, "two"), (3, "three")])
def test_equal_formats_are_counted_in_words(number: int, count: str) -> None:
    artifacts = {name: dict[str, str]() for name in ("oci", "sif", "charliecloud")[:number]}
    tree = f"sha256:{'7e' * 32}"
    notes = notes_on(record({"formats_equal": True, "artifacts": artifacts, "tree_digest": tree}))
    assert notes == f"  {count} formats equal (sha256:{'7e' * 6})"


def test_a_pulled_image_says_no_number_and_one_rank_is_none() -> None:
    two = printed(ranks=2, ranks_by_host={"n1": 2})
    assert result_of(two, asked=AskedRanks())[0] == PASSED
    for fault, changes in (
        ("1 ranks reported, expected at least 2", {"ranks": 1, "ranks_by_host": {"n1": 1}}),
        ("4 ranks reported, expected at least 2", {"ranks": "4"}),
        ("the library is None, expected a name", {"library": None}),
    ):
        outcome = result_of(printed(**changes), asked=AskedRanks())
        assert outcome == (FAILED, f"exit status 0, but {fault}")


@pytest.mark.parametrize(
    ("command", "family", "count"),
    [
        ("mpirun --allow-run-as-root --oversubscribe -n 4 mpi 'Open MPI v5.0'", "openmpi", 4),
        ("mpirun --allow-run-as-root --oversubscribe -n {ranks} mpi 'Open MPI v5.0'", "openmpi", 0),
        ("mpiexec -n 16 mpi 'MPICH 5.0'", "mpich", 16),
        ("mpi 'MPICH 5.0'", "mpich", 0),
    ],
)
def test_what_a_command_asks_of_its_launcher(command: str, family: str, count: int) -> None:
    library = {"openmpi": "Open MPI v5.0", "mpich": "MPICH 5.0"}[family]
    asked = AskedRanks.of_command(command, family, "5.0")
    assert asked == AskedRanks(count=count, library=library)
    assert AskedRanks.of_command("hello", family, "5.0") == AskedRanks()
    assert AskedRanks.of_command(command, "unheard-of", "5.0") == AskedRanks()


def test_other_checks_are_judged_by_the_ranks_that_they_report() -> None:
    fine = 'data: {"ranks": 2}\nmeasured\n'
    two = AskedRanks(count=2)
    assert result_of(fine, name="hpcc", asked=two) == (PASSED, "measured")
    assert result_of(fine * 2, name="hpcc", asked=two)[0] == FAILED
    assert result_of("measured\n", name="ucx", asked=two) == (PASSED, "measured")
    named = "CUBLAS_STATUS_EXECUTION_FAILED was seen and handled\nmeasured\n"
    assert result_of(named, name="gpu-blas")[0] == PASSED


def test_each_image_that_brings_an_mpi_knows_what_its_checks_ask_for() -> None:
    for image in shipped_images():
        if image.mpi and image.mpi.route != "host":
            checks = {one.name: one.asked for one in target_of(image, {}).checks}
            assert checks["mpi"].count == 5
            assert checks["mpi"].library
