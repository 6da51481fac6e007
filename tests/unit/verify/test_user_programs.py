"""`build-images run` on a machine without programs: command lines, exit codes, records, errors."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from measure_samples import PROGRAM_RUN
from recorded import Commands
from test_shell_commands import PROGRAMS, image_folder, keep_formats

from builder.artifacts.manifests import record, recorded
from builder.cli import main
from builder.host.doctor.diagnosis import Item
from builder.model.measurement import Sample, Use
from builder.system.process import Processes
from builder.verify.user_commands import ProgramRequest, _use, run_program

__all__ = ["image_folder"]
AT = "/.build-images-run"
ENDED = {"started": "1\n", "times": "0m0.9s 0m0.9s\n1m1.50s 0m0.25s\n", "status": "3\n"}


class Machine(Commands):
    """A machine whose programs leave notes, as the script in the container does."""

    notes: Mapping[str, str] = ENDED
    ended = 0

    def interactive(self, argv: Sequence[Any], **options: Any) -> int:
        self.note("# on the terminal:")
        assert options.pop("targets")() == []  # there is no such process
        words = list(self._started(argv, options))
        bound = [word for word in words if word.endswith(f":{AT}")]
        folder = bound[0].split("=", 1)[1].removesuffix(f":{AT}") if bound else ""
        at = Path(folder or words[words.index(AT) + 1])
        assert stat.S_IMODE(at.stat().st_mode) == 0o700
        for name, text in self.notes.items():
            (at / name).write_text(text)
        return self.ended


@pytest.fixture(name="machine")
def machine_with_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path, monkeypatch)
    monkeypatch.setattr(
        Processes,
        "interactive",
        lambda _processes, argv, **words: machine.interactive(argv, **words),
    )
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    machine.install(*PROGRAMS, "chroot")
    machine.output.update({" from ": "working-container-3", "--version": "version 1.39"})
    return machine


def run(folder: Path, *words: str) -> int:
    return main(["run", str(folder), *words])


def test_commands_that_start_a_program(folder: Path, machine: Machine) -> None:
    (folder / "data").mkdir()
    with machine.user(is_root=True):
        for form in ("oci", "sif", "charliecloud", ""):
            machine.note(f"## {form or 'bare'}")
            request = ProgramRequest(
                argv=("N=1", "train", "a b"),
                format=form,
                bare=not form,
                binds={"/data": folder / "data"},
                umask=0o027,
            )
            done = run_program(folder, machine.tools, request, say=machine.note)
            assert (done.status, done.cpu_seconds, done.binds) == (3, 61.75, ("/data",))
            assert done.place.name == (form or "bare")
    machine.compare("runners/program")


@pytest.mark.parametrize(
    ("notes", "ended", "code", "text"),
    [
        (ENDED, 0, 3, ", sif (apptainer 1.39): 0.00 s, exit status 3\n  processor 61.75 s ("),
        ({**ENDED, "status": "0\n"}, 9, 0, ": 0.00 s, exit status 0\n"),
        ({"started": "1\n"}, 1, 137, "exit status 137\n  processor 0.00 s"),
        ({"started": "1\n"}, 143, 143, "exit status 143\n"),
        ({"started": "1\n", "times": "", "status": ""}, 5, 5, "exit status 5\n"),
        ({"started": "", "times": "", "status": ""}, 0, 0, "exit status 0\n"),
        ({**ENDED, "status": "1000\n"}, 0, 137, "exit status 137\n"),
        ({**ENDED, "times": "nonsense"}, 0, 3, "processor 0.00 s"),
        ({**ENDED, "started": "x" * 2000}, 0, 1, "apptainer did not start the program"),
        ({}, 255, 1, "build-images: apptainer did not start the program: exit status 255\n"),
    ],
)
def test_the_exit_code_is_the_programs(
    notes: Mapping[str, str],
    ended: int,
    code: int,
    text: str,
    folder: Path,
    machine: Machine,
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine.notes, machine.ended = notes, ended
    assert run(folder, "--format", "sif", "--", "train") == code
    output = capsys.readouterr()
    assert text in re.sub(r": \d+\.\d\d s, exit", ": 0.00 s, exit", output.err)
    assert output.out == ""
    assert len(recorded(folder)) == (code != 1)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ((), 2, "name the command to run after --"),
        (("--", "a"), 4, "this machine has none of buildah, ch-run\n  hint: 'build-images doctor'"),
        (("--format", "oci", "--", "a"), 4, "this machine has none of buildah\n"),
        (("--format", "sif", "--", "a"), 2, "image-1: sif is not built, only oci, charliecloud"),
        (("--bind", "/no/such", "--", "a"), 2, "--bind /no/such: /no/such is not a folder"),
        (("--bind", ":/data", "--", "a"), 2, "--bind :/data: nothing is not a folder"),
        (("--bind", "/usr:data", "--", "a"), 2, "--bind /usr:data: not DIR:/PATH without"),
        (("--bind", "/usr:/", "--", "a"), 2, "--bind /usr:/: not DIR:/PATH without"),
        (("--bind", "/usr:/a,b", "--", "a"), 2, "not DIR:/PATH without further colons"),
        (("--plot", "/no/such/x.svg", "--", "a"), 2, "/no/such: No such file or directory"),
        (("--bare", "--format", "oci", "--", "a"), 2, "not allowed with argument"),
    ],
)
def test_errors_before_anything_is_started(
    words: Sequence[str],
    code: int,
    text: str,
    folder: Path,
    machine: Machine,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in PROGRAMS:
        (machine.folder / "bin" / name).unlink()
    keep_formats(folder, ["oci", "charliecloud"])
    with contextlib.suppress(SystemExit):  # bad usage
        assert run(folder, *words) == code
    assert text in capsys.readouterr().err
    assert not list(folder.glob("runs/*"))


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("remedy", "code"), [("mount binfmt_misc", 4), ("", 3)])
def test_an_image_of_another_architecture(
    remedy: str,
    code: int,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    foreign = "ppc64le" if os.uname().machine == "x86_64" else "x86_64"
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["cell"]["arch"] = foreign
    (folder / "manifest.json").write_text(json.dumps(manifest))
    item = Item("run:x", "", "x", "it is emulated or not", remedy, data={"version": "11.1"})
    monkeypatch.setattr("builder.verify.user_commands.emulation_item", lambda *_, **__: item)
    assert run(folder, "--format", "sif", "--", "a") == code
    err = capsys.readouterr().err
    if remedy:
        assert f"its programs are of {foreign}, this machine is " in err
        assert f"it is emulated or not\n  hint: {remedy}\n" in err
    else:
        assert err.startswith(
            f"emulated by qemu 11.1: its times say nothing about a real {foreign}"
        )
        assert recorded(folder)[0].emulator == "qemu 11.1"


@pytest.mark.usefixtures("machine")
def test_a_record_that_cannot_be_written_loses_no_exit_status(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "x.json")

    monkeypatch.setattr("builder.artifacts.manifests.write_atomically", full)
    assert run(folder, "--format=sif", "--json", "--", "a") == 3
    output = capsys.readouterr()
    assert output.err.startswith("build-images: x.json: No space left on device\n")
    assert output.err.endswith("  the program's exit status: 3\n")
    assert output.out == ""


def test_the_program_has_the_callers_umask(folder: Path, machine: Machine) -> None:
    before = os.umask(0o077)
    try:
        assert run(folder, "--format=sif", "--", "a") == 3
    finally:
        os.umask(before)
    assert [line for line in machine.lines if "(umask 0077; exec env" in line]


@pytest.mark.usefixtures("machine")
def test_json_is_the_record(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, metrics = folder / "plot.html", folder / "run.prom"
    words = ("--json", "--plot", str(page), "--prometheus", str(metrics), "--", "/bin/a", "b")
    assert run(folder, "--format=sif", *words) == 3
    document = json.loads(capsys.readouterr().err)
    [file] = folder.glob("runs/*-sif-*.json")
    assert json.loads(file.read_text()) == document
    assert document["argv"] == ["/bin/a", "b"]
    assert document["no_gpu"] == "the image has no CUDA"
    assert page.read_text().startswith("<!doctype html>\n")
    assert 'place="sif",program="a"} 3.0\n' in metrics.read_text()


@pytest.mark.parametrize(("seconds", "kept", "share"), [(1.0, [0.4, 1.0], 0.25), (0.0, [], 1.0)])
def test_the_use_is_that_of_the_programs_time(
    seconds: float, kept: Sequence[float], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container began 2 s before the program, and ended later."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    samples = [Sample(at_s=at_s, cpu=0.1, memory_bytes=9) for at_s in (1.0, 2.4, 3.0, 4.0)]
    sampled = Use(seconds=5.0, cpu=0.9, memory_bytes=1, samples=tuple(samples))
    use = _use(sampled, 2.0, seconds, 0.5)
    assert [sample.at_s for sample in use.samples] == kept
    assert (use.seconds, use.cpu, use.memory_bytes) == (seconds, share, 9 if kept else 0)


def test_a_short_history_is_kept(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/20200101T000000-oci-abcdef.json").write_text('{"image": "damaged"}')
    for number in range(25):
        started = f"2026-01-01T00:00:{number:02}+00:00"
        file = record(tmp_path, dataclasses.replace(PROGRAM_RUN, started=started))
        assert file.name.startswith(f"20260101T0000{number:02}-oci-")
        assert len(recorded(tmp_path)) == min(number + 1, 20)
    assert recorded(tmp_path)[0].started == "2026-01-01T00:00:05+00:00"
    (tmp_path / "runs/30000101T000000-oci-abcdef.json").write_text("{")
    assert len(recorded(tmp_path)) == 20
