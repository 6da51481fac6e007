"""Messages of the main job about an image that failed, and about one that is done."""

from __future__ import annotations

import dataclasses
import errno
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from manifest_samples import record
from samples import compare_with_golden, recipe
from test_proving import HOST
from test_stages import CORE, ONE, Site, made_site  # noqa: F401 - a fixture

from builder.build.engines import Tools
from builder.build.executor import Executor
from builder.build.tasks import Task
from builder.model.errors import BadInput, BuildImagesError, MissingPrerequisite, StepFailed
from builder.system.home import Home
from builder.system.process import Processes
from builder.verify import main_job

RUN = cast("Any", SimpleNamespace(tools=Tools(processes=Processes(), home=Home(path=Path("/h")))))
FULL = (
    "free disk space and run the same command again: finished steps are kept "
    "('build-images gc' lists unused data)"
)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/big/a"), "/big/a"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "/h"),
        (
            StepFailed("buildah: exit status 1", tail=["write a: no space left on device"]),
            "buildah: exit status 1",
        ),
        (
            StepFailed("tar: exit status 2", tail=["a: Disk quota exceeded", "tar: bye"]),
            "tar: exit status 2",
        ),
    ],
)
def test_a_full_disk_is_what_this_machine_lacks(error: Exception, text: str) -> None:
    shown = main_job._as_error(RUN, "tools-1", error)
    assert isinstance(shown, MissingPrerequisite)
    assert shown.exit_code == 4
    assert shown.args[0].startswith(f"tools-1: the disk is full ({text})")
    assert shown.hint == FULL


def test_other_errors_are_shown_as_they_are() -> None:
    for error in (BadInput("no"), StepFailed("make: exit status 2", tail=["no rule"])):
        assert main_job._as_error(RUN, "tools-1", error) is error
    shown = main_job._as_error(RUN, "tools-1", OSError(errno.EIO, "Input/output error", "/a"))
    assert type(shown) is BuildImagesError
    assert str(shown) == "tools-1: [Errno 5] Input/output error: '/a'"


def test_a_fault_of_the_program_ends_one_image_and_says_so() -> None:
    def deep(levels: int) -> int:
        return deep(levels - 1) if levels else int("odd")

    with pytest.raises(ValueError, match="odd") as raised:
        deep(4)
    shown = main_job._as_error(RUN, "tools-1", raised.value)
    assert isinstance(shown, StepFailed)
    assert shown.message.startswith("unexpected ValueError: invalid literal for int()")
    assert (len(shown.tail), shown.tail[-1][:27]) == (10, "ValueError: invalid literal")
    assert 'int("odd")' in "\n".join(shown.tail)
    assert shown.hint == "this is a fault of build-images itself; please report it"


def manifest(outcome: str, *, proven_on_gpu: bool | None = None) -> dict[str, Any]:
    checks = [{"check": "mpi", "outcome": outcome, "reason": "3 of 4 ranks"}]
    return {
        "artifacts": {"oci": {}, "sif": {}},
        "checks": {"oci": checks, "sif": [{**checks[0], "outcome": "passed"}]},
        "proven_on_gpu": proven_on_gpu,
    }


PRINTED = {
    "check": "mpi",
    "outcome": "failed",
    "reason": "no ranks",
    "output": "\n".join(f"line {number}" for number in range(14)),
}
LINES = "".join(f"      | line {number}\n" for number in range(2, 14))
SHOWN = (
    f"oci, sif in 12 s\n    oci, sif/mpi: no ranks\n{LINES}"
    "      2 more lines in out/evidence/oci.xml"
)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (manifest("passed"), "oci, sif in 12 s"),
        (manifest("skipped", proven_on_gpu=True), "oci, sif in 12 s"),
        (manifest("passed", proven_on_gpu=False), "oci, sif in 12 s; not proven on a GPU"),
        (manifest("failed"), "oci, sif in 12 s\n    oci/mpi: 3 of 4 ranks"),
        (
            {
                "artifacts": {"oci": {}, "sif": {}},
                "checks": {"oci": [PRINTED], "sif": [PRINTED]},
                "evidence": ["evidence/oci.json", "evidence/oci.xml"],
            },
            SHOWN,
        ),
    ],
)
def test_the_last_line_of_an_image(content: dict[str, Any], text: str) -> None:
    assert main_job._closing(record(content), 12.3, Path("out")) == text


# Limits of what goes on at once.


def test_memory_that_is_free_is_read_of_the_kernel(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    assert main_job._free_memory(meminfo) == 0
    meminfo.write_text("MemTotal:       99999 kB\nMemFree:  7 kB\nMemAvailable:   2048 kB\n")
    assert main_job._free_memory(meminfo) == 2048 * 1024
    meminfo.write_text("MemTotal:       99999 kB\n")
    assert main_job._free_memory(meminfo) == 0
    assert main_job._free_memory() > 1 << 20


@pytest.mark.parametrize(
    ("jobs", "at_once", "cores", "emulated", "groups"),
    [(1, 1, 4, 1, 8), (2, 3, 4, 2, 8), (3, 4, 4, 3, 12), (8, 12, 4, 4, 32), (8, 12, None, 1, 32)],
)
def test_half_as_many_tasks_again_pack_and_verify_meanwhile(
    jobs: int,
    at_once: int,
    cores: int | None,
    emulated: int,
    groups: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setattr(main_job, "_free_memory", lambda: 1000)
    limits = main_job.limits_of(jobs)
    assert (limits.tasks, limits.builds, limits.emulated) == (at_once, jobs, emulated)
    assert (limits.groups, limits.memory) == (groups, 900)


def test_what_each_task_needs(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tasks of a job: what they wait for, and the estimates of time, memory and disk."""
    lines, free = list[str](), iter([3, 2, 0, 5] * 3)
    site.host, site.recipes = HOST, [CORE]
    site.job(out="built")
    (site.home.path / "durations.json").write_text('{"fake pack core-1.0-debian13-x86_64": 7.5}')

    def run_all(
        tasks: list[Task], executor: Executor, *, free_disk: Callable[[], int], **_: Any
    ) -> None:
        assert len(executor.capacity()) == 3
        assert [free_disk(), free_disk()] == [2, 1]
        lines.extend(str({**vars_of(task), "work": "..."}) for task in tasks)

    monkeypatch.setattr(main_job, "Schedule", lambda tasks, _limits: [*tasks])
    monkeypatch.setattr(main_job, "run_all", run_all)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=next(free)))
    site.job(jobs=2, out="built", verify=True)
    site.recipes = [CORE, ONE, recipe("a-leaf", parent="one")]
    site.job(jobs=2)
    site.host = dataclasses.replace(HOST, arch="aarch64")
    site.job(jobs=2)
    text = re.sub(r"[0-9a-f]{64}", "DIGEST", "\n".join([*lines, ""]))
    compare_with_golden(re.sub(r":[0-9a-f]{12}-", ":KEY-", text), "verify/tasks.txt")


def vars_of(task: Task) -> dict[str, object]:
    return {field.name: getattr(task, field.name) for field in dataclasses.fields(task)}


@pytest.mark.parametrize(
    ("errors", "outcome", "code"),
    [
        ({}, "passed", 0),
        ({}, "failed", 1),
        ({"b": StepFailed("no")}, "passed", 1),
        ({"b": StepFailed("no"), "c": MissingPrerequisite("full")}, "failed", 4),
    ],
)
def test_the_exit_code_of_all_images(errors: dict[str, Any], outcome: str, code: int) -> None:
    image = cast("Any", SimpleNamespace(outcome=outcome))
    results = main_job.Results(manifests={"a": image}, errors=errors)
    assert results.exit_code == code
    assert set(results.reasons(lacking=True)) == set(errors) & {"c"}
    assert set(results.reasons(lacking=False)) == set(errors) & {"b"}
