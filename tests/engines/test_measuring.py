"""`verify --bench` and `run` on a real image: programs in every format and bare, what is kept."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pty
import random
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from harness import (
    FORMATS,
    LONG,
    PROJECT,
    Ended,
    build_images,
    copy_of,
    manifest_of,
    passed,
    processes,
    run_program,
    small_disk,
    tool_of_tests,
)
from made_formats import Node
from ordinary_users import users
from prometheus_client.parser import text_string_to_metric_families
from small_images import Maker, sound

from builder.build.engines import Tools
from builder.cli.schema import schema_text
from builder.verify.measure.programs import PROGRAMS
from builder.verify.runners.protocol import DATA_AT, Container
from builder.verify.runners.sites import bare_kind

pytestmark = [pytest.mark.engines, pytest.mark.campaign]

PLACES = ("bare", *FORMATS)
# HPC Challenge, fio and messages need the image of `hpc-bench`, which takes minutes to build.
HELD = ("hpcc", "memory-speed", "mpi-speed", "fio") if LONG else ("memory-speed",)
QUANTITY, METRIC, SCALE = (
    ("mpi_latency", "mpi_latency_seconds", 1e-6)
    if LONG
    else ("memory_triad", "memory_triad_bytes_per_second", 1e9)
)


@pytest.fixture(scope="module")
def hpc_bench(request: pytest.FixtureRequest, small_images: Maker, tmp_path_factory: Any) -> Path:
    """The folder of the image of recipe `hpc-bench`, or of a small one with a program of its."""
    if not LONG:
        return small_with_memory_speed(small_images, tmp_path_factory.mktemp("program"))
    out = Path(request.getfixturevalue("out"))
    image = "hpc-bench-1.0-debian13-openmpi5.0-x86_64"
    passed(build_images("--image", image, "--output", out))
    return out / image


def small_with_memory_speed(small_images: Maker, folder: Path) -> Path:
    program, source = folder / "memory-speed", PROJECT / "tests/images/memory-speed.c"
    options = ("-std=c99", "-O2", "-fopenmp", "-static")  # of which the linker warns
    passed(run_program(tool_of_tests("cc"), *options, "-o", program, source))
    thing = Node(data=program.read_bytes(), mode=0o755)
    small = sound("x86_64", 5, random.Random(5)).with_everywhere(
        {"usr/local/bin/memory-speed": thing, "mnt": Node(kind=tarfile.DIRTYPE, mode=0o755)}
    )
    image = small_images.make(dataclasses.replace(small, identifier="measured", directory="/"))
    passed(build_images("verify", image))
    return image


@pytest.fixture(scope="module")
def bench(hpc_bench: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Path]:
    """A measurement of one round, and its file for Prometheus."""
    target = tmp_path_factory.mktemp("bench") / "bench.prom"
    words = ["--bench", "--repeats", "1", "--json", "--prometheus", str(target)]
    return build_images("verify", hpc_bench, *words), target


def measured(bench: tuple[Ended, Path]) -> dict[str, Any]:
    done, _ = bench
    assert done.status in {0, 1, 4}, done.stderr  # how fast a busy machine is decides no test
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    outcomes = [one["outcome"] for one in found["outcomes"].values()]
    undecided = 4 if "skipped" in outcomes else 0  # others kept the processors busy
    assert done.status == (1 if "failed" in outcomes else undecided)
    return found


def test_every_program_ran_in_every_place(bench: tuple[Ended, Path]) -> None:
    found = measured(bench)
    assert [one["name"] for one in found["places"]] == list(PLACES)
    assert {(one["program"], one["place"]) for one in found["runs"]} == {
        (program, place) for program in HELD for place in PLACES
    }
    assert [one["problem"] for one in found["runs"] if one["problem"]] == []
    wanted = {
        one.name for program in PROGRAMS if program.name in HELD for one in program.quantities
    }
    assert {one["quantity"]["name"] for one in found["rows"]} == wanted
    for row in found["rows"]:
        assert row["values"]["median"] > 0
        assert (row["ratio"] is None) == (row["place"] == "bare")


def test_what_runs_took_was_sampled(bench: tuple[Ended, Path]) -> None:
    for one in measured(bench)["runs"]:
        use = one["use"]
        assert use["seconds"] > 0
        assert 0 < use["cpu"] <= 1
        assert use["memory_bytes"] > 0
        assert use["samples"]


def test_prometheus_has_it_too(bench: tuple[Ended, Path]) -> None:
    found = measured(bench)
    families = {one.name: one for one in text_string_to_metric_families(bench[1].read_text())}
    places = {one.labels["place"] for one in families[f"build_images_bench_{METRIC}"].samples}
    assert places == set(PLACES)
    bare = next(
        one["values"]["median"]
        for one in found["rows"]
        if (one["quantity"]["name"], one["place"]) == (QUANTITY, "bare")
    )
    samples = families[f"build_images_bench_{METRIC}"].samples
    value = next(one.value for one in samples if one.labels["place"] == "bare")
    assert value == pytest.approx(bare * SCALE)


def test_manifest_evidence_and_report_have_it(bench: tuple[Ended, Path], hpc_bench: Path) -> None:
    measured(bench)
    manifest = manifest_of(hpc_bench)
    assert manifest["outcome"] == "verified"
    assert set(manifest["checks"]) == set(FORMATS)
    assert manifest["measured"]["rows"]
    for name in FORMATS:
        outcome, file = manifest["measured"]["outcomes"][name], f"evidence/{name}-bench.json"
        assert outcome["check"] == "collapse"
        # A busy machine leaves a format undecided, and writes no evidence of it.
        assert (file in manifest["evidence"]) is (outcome["outcome"] != "skipped")
        if file in manifest["evidence"]:
            statement = json.loads((hpc_bench / file).read_text())
            jsonschema.validate(statement, json.loads(schema_text("evidence")))
            tests = statement["predicate"]
            checks = [*tests["passedTests"], *tests["warnedTests"], *tests["failedTests"]]
            assert checks == ["collapse"]
    if LONG:  # a small image is of no run, which would have written a report
        page = (hpc_bench.parent / "report.html").read_text(encoding="utf-8")
        assert "Measured: speed as a share of bare" in page


def test_an_image_without_such_programs_is_said(small_images: Maker) -> None:
    image = small_images.make(sound("x86_64", 6, random.Random(6)))
    done = build_images("verify", image, "--bench", "--repeats", "1")
    assert done.status == 2
    assert "has none of the benchmark programs" in done.stderr


def test_bare_is_the_image_and_nothing_of_the_caller(
    hpc_bench: Path, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own files, its own variables, the folder that is shown, and an ordinary user."""
    monkeypatch.setenv("OF_THE_CALLER", "1")
    work = tools.home.work / "test-bare"
    work.mkdir(parents=True, exist_ok=True)
    data = work / "data"
    data.mkdir(exist_ok=True)
    data.chmod(0o1777)
    container = Container(
        artifact=hpc_bench / "image.tar.gz",
        work=work,
        tools=tools,
        directory="/srv",
        binds={DATA_AT: data},
    )
    try:
        with bare_kind({"PATH": "/usr/bin:/bin", "ODD": "a b"}).open(container) as runner:
            script = "pwd; env | sort; id -u; cat /etc/os-release; echo written >/mnt/file"
            done = runner.run(["sh", "-c", script], timeout_s=60)
            assert done.returncode == 0, done.stderr
            lines = done.stdout.splitlines()
            assert lines[0] == "/srv"
            assert {"HOME=/tmp", "ODD=a b", "PATH=/usr/bin:/bin", "65534"} <= set(lines)
            assert "OF_THE_CALLER=1" not in lines
            assert 'VERSION_ID="13"' in lines
            assert (data / "file").read_text() == "written\n"
            failed = runner.run(["sh", "-c", "echo no >&2; exit 3"], timeout_s=60)
            assert (failed.returncode, failed.stderr) == (3, "no\n")
        assert not list(work.glob("run-*"))
    finally:
        tools.processes.capture(["rm", "-rf", str(work)])


# ---- `run`: programs of users ----

RUN = (sys.executable, "-m", "builder", "run")
SCRIPT = "echo out; echo err >&2; cat; memory-speed 100 8 >/data/$0; sleep 0.5; exit $1"
SAVING = 'trap "echo saved; exit 7" INT TERM; echo ready; sleep 300 & wait'


def in_place(place: str) -> list[str]:
    return ["--bare"] if place == "bare" else ["--format", place]


def last_record(image: Path) -> dict[str, Any]:
    """The newest record of a run, which is as its schema says."""
    newest = max((image / "runs").iterdir(), key=lambda file: file.stat().st_mtime_ns)
    record: dict[str, Any] = json.loads(newest.read_text())
    jsonschema.validate(record, json.loads(schema_text("run")))
    return record


def test_a_users_program_is_run_and_measured_in_every_place(
    hpc_bench: Path, tmp_path: Path, shared_folder: Path
) -> None:
    data, metrics, plot = shared_folder / "data", tmp_path / "run.prom", tmp_path / "run.svg"
    data.mkdir()
    data.chmod(0o777)  # the program is an ordinary user's
    for place in (*FORMATS, "bare"):
        options = [*in_place(place), "--bind", f"{data}:/data", "--prometheus", metrics]
        command = ["sh", "-c", SCRIPT, "result", "0"]
        argv = (*RUN, hpc_bench, *options, "--plot", plot, "--", *command)
        done = passed(run_program(*argv, cwd=PROJECT, stdin="in\n"))
        assert done.stdout == "out\nin\n"
        assert done.stderr.startswith(f"err\n{manifest_of(hpc_bench)['image']}, {place} (")
        assert "data: {" in (data / "result").read_text()
        (data / "result").unlink()
        record = last_record(hpc_bench)
        assert (record["argv"], record["binds"]) == (command, ["/data"])
        assert (record["place"]["name"], record["status"]) == (place, 0)
        use = record["use"]
        assert 0.2 < record["cpu_seconds"] <= use["seconds"] * record["host"]["cores"] + 0.1
        assert use["memory_bytes"] > 100e6
        assert 0 < use["cpu"] <= 1
        assert max(each["cpu"] for each in use["samples"]) > 0
        families = text_string_to_metric_families(metrics.read_text())
        values = {each.name: each.samples[0] for each in families}
        assert values["build_images_run_seconds"].value == use["seconds"]
        assert values["build_images_run_seconds"].labels["place"] == place
        assert values["build_images_run_exit_status"].value == 0
    for name in FORMATS:
        assert f"  {name} against bare: " in done.stderr
    assert plot.read_text().count("<polyline ") == 2


@pytest.mark.parametrize("place", ["bare", *FORMATS] if LONG else ["sif"])
def test_a_signal_reaches_the_program_and_nothing_remains(place: str, hpc_bench: Path) -> None:
    mark = f"of-the-program-{os.urandom(8).hex()}"
    argv = [*RUN, str(hpc_bench), *in_place(place), "--json", "--", "sh", "-c", SAVING, mark]
    with subprocess.Popen(
        argv,
        cwd=PROJECT,
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        assert running.stdout
        assert running.stdout.readline() == "ready\n"
        assert processes(mark)
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (7, "saved\n")
    assert json.loads(err)["status"] == 7
    assert not processes(mark)


@pytest.mark.parametrize("place", ["bare", *FORMATS] if LONG else ["charliecloud"])
def test_ctrl_c_ends_the_program_and_nothing_remains(place: str, hpc_bench: Path) -> None:
    """A real terminal sends the signal to all; Buildah then kills the program."""
    mark = f"of-the-program-{os.urandom(8).hex()}"
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(PROJECT)
        argv = [*RUN, str(hpc_bench), *in_place(place), "--", "sh", "-c", SAVING, mark]
        os.execv(argv[0], argv)
    output, is_asked = b"", False
    with contextlib.suppress(OSError):  # the terminal is closed
        while text := os.read(terminal, 1000):
            output += text
            if b"ready" in output and not is_asked:
                is_asked = bool(os.write(terminal, b"\x03"))
    _, status = os.waitpid(pid, 0)
    saved = place != "oci"
    assert os.waitstatus_to_exitcode(status) == (7 if saved else 137), output
    assert (b"saved" in output) == saved
    assert not processes(mark)


def test_a_full_disk_loses_no_exit_status(hpc_bench: Path, shared_folder: Path) -> None:
    """An ordinary program fills the disk that the record is to be on; later it is read-only."""
    with small_disk(shared_folder / "disk", "300m") as disk:
        disk.chmod(0o777)
        image = copy_of(hpc_bench, disk / "image")
        words = ["--format", "charliecloud", "--bind", f"{disk}:/data", "--"]
        fill = "cat /dev/zero >/data/zeros 2>/dev/null; exit 5"
        done = build_images("run", image, *words, "sh", "-c", fill)
        assert done.status == 5
        assert done.stderr.count("No space left on device") == 1
        assert "the program's exit status: 5" in done.stderr
        (disk / "zeros").unlink()
        passed(run_program("mount", "-o", "remount,ro", disk))
        done = build_images("run", image, *words, "sh", "-c", "echo ran")
        assert (done.status, done.stdout) == (4, ""), "the disk is below the home"
        assert "Read-only file system" in done.stderr


def test_an_ordinary_user_runs_a_program_of_the_image(hpc_bench: Path) -> None:
    with users("build-images-runs") as [user]:
        image = user.home / "image"
        passed(run_program("cp", "-r", hpc_bench, image))
        passed(run_program("chown", "-R", user.name, image))
        words = ("run", image, "--format", "charliecloud", "--bind", f"{user.home}:/data", "--")
        done = user.build_images(*words, "sh", "-c", "id -u >/data/id; no-such-command")
        assert done.status == 127
        assert (user.home / "id").stat().st_uid == image.stat().st_uid
        assert (user.home / "id").stat().st_mode & 0o777 == 0o600  # by the user's umask
        done = user.build_images(*words, "no-such-command")
        assert done.status == 127
        assert "build-images: no-such-command: no such command in the image\n" in done.stderr
