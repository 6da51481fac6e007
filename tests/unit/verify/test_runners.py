"""Runners: the same is asked of all of them, GPUs included; which are there, and for what."""

from __future__ import annotations

import dataclasses
import json
import sys
import tarfile
from pathlib import Path

import pytest
from test_check_outcomes import a_target

from builder.build.engines import Tools
from builder.cli import main
from builder.cli.commands import parse
from builder.model import FORMATS
from builder.model.manifest import InImageCheck
from builder.system.home import Home
from builder.system.process import Processes
from builder.verify.checks import outcomes_in
from builder.verify.runners import DEFAULTS, RUNNERS, oci, sites
from builder.verify.runners.oci import Chroot
from builder.verify.runners.protocol import (
    Around,
    Container,
    Prefixed,
    cdi_problem,
    readable_folder,
)


def test_every_format_has_a_runner() -> None:
    assert set(DEFAULTS) == set(FORMATS)
    assert DEFAULTS == {"oci": "buildah", "sif": "apptainer", "charliecloud": "charliecloud"}
    assert {name: (kind.name, kind.program, kind.run_name) for name, kind in RUNNERS.items()} == {
        "buildah": ("buildah", "buildah", "oci"),
        "podman": ("podman", "podman", "oci-podman"),
        "docker": ("docker", "docker", "oci-docker"),
        "apptainer": ("apptainer", "apptainer", "sif"),
        "charliecloud": ("charliecloud", "ch-run", "charliecloud"),
    }
    of_apptainer = ("APPTAINER_*", "SINGULARITY_*", "LD_LIBRARY_PATH", "LANG", "PROMPT_COMMAND")
    assert {name: kind.own for name, kind in RUNNERS.items()} == {
        "buildah": ("HOSTNAME",),
        "podman": ("HOSTNAME", "TERM", "container"),
        "docker": ("HOSTNAME",),
        "apptainer": (*of_apptainer, "PS1", "TERM"),
        "charliecloud": ("CH_RUNNING",),
    }


SAYS = "import json, os; print(json.dumps(dict(os.environ)))"


@pytest.fixture(name="apptainer")
def apptainer_that_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Container:
    """`apptainer` here is a program that says which variables it was given."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "work").mkdir()
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    monkeypatch.setattr(Home, "search_path", lambda _home: path)
    monkeypatch.setattr(Tools, "ordinary_user", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    tools = Tools(processes=Processes(), home=Home(path=tmp_path))
    install(tools, "apptainer", f"exec {sys.executable} -c '{SAYS}'")
    return Container(artifact=tmp_path / "i.sif", work=tmp_path / "work", tools=tools)


def test_a_container_has_no_setting_of_the_callers_apptainer(
    apptainer: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sites set them for all jobs; checks would then see the host's MPI in place of the image's."""
    for name in ("APPTAINER_BIND", "APPTAINERENV_LD_LIBRARY_PATH", "SINGULARITY_NV"):
        monkeypatch.setenv(name, "/opt/host")
    monkeypatch.setenv("APPTAINER_TMPDIR", "/nowhere")
    with RUNNERS["apptainer"].open(apptainer) as runner:
        found = json.loads(runner.run(["true"], timeout_s=20).stdout)
    given = {name for name in found if name.startswith(("APPTAINER", "SINGULARITY"))}
    assert given == {"APPTAINER_TMPDIR", "APPTAINER_CACHEDIR", "APPTAINER_MKSQUASHFS_ARGS"}
    assert found["APPTAINER_TMPDIR"].startswith(str(apptainer.work))


def test_a_container_under_a_launcher_has_no_variable_of_the_callers(
    apptainer: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", "secret")
    path = apptainer.tools.home.search_path()
    around = Around(command=("env", "LAUNCHER_RANK=0"), environment={"PATH": path, "UCX_TLS": "rc"})
    container = dataclasses.replace(apptainer, around=around)
    with RUNNERS["apptainer"].open(container) as runner:
        done = runner.run(["true"], timeout_s=20)
    found = json.loads(done.stdout)
    assert (found["UCX_TLS"], found["LAUNCHER_RANK"]) == ("rc", "0")
    assert found.keys() - {"LC_CTYPE", "PWD", "OLDPWD", "SHLVL", "_"} == {
        "PATH",
        "UCX_TLS",
        "LAUNCHER_RANK",
        "APPTAINER_TMPDIR",
        "APPTAINER_CACHEDIR",
        "APPTAINER_MKSQUASHFS_ARGS",
    }
    assert not [word for word in done.argv if "rc" in word.split("=") or "secret" in word]


# Buildah's chroot, which may lose the end of what a command prints.

LOSES = """\
count=$(cat {count} 2>/dev/null || echo 0)
echo $((count + 1)) >{count}
if [ "$count" -lt {losses} ]; then "$@" | head -c {kept}; else "$@"; fi
"""


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oci, "_PAUSES_S", (0, 0.6, 0.1))


def chroot(tmp_path: Path, *, losses: int, kept: int = 0) -> Chroot:
    script = LOSES.format(count=tmp_path / "count", losses=losses, kept=kept)
    tools = Tools(processes=Processes(), home=Home(path=tmp_path))
    return Chroot(inner=Prefixed(prefix=("sh", "-c", script, "sh"), tools=tools, cwd=tmp_path))


@pytest.mark.parametrize("kept", [0, 4, 10])
def test_a_command_whose_output_is_lost_is_run_again(kept: int, tmp_path: Path) -> None:
    runner = chroot(tmp_path, losses=2, kept=kept)
    done = runner.run(["printf", "one\ntwo\nfinding"], timeout_s=20)
    assert (done.stdout, done.returncode) == ("one\ntwo\nfinding", 0)
    assert done.argv[0] == "printf"
    assert (tmp_path / "count").read_text() == "3\n"


def test_output_that_is_always_lost_is_no_success(tmp_path: Path) -> None:
    done = chroot(tmp_path, losses=9).run(["echo", "finding"], timeout_s=20)
    assert (done.stdout, done.returncode) == ("", 1)
    lost = "buildah run: exit status 0, and the end of the output is missing, 3 times"
    assert done.stderr == f"{lost}\n"
    assert (tmp_path / "count").read_text() == "3\n"


# As Buildah: output is copied by a thread, whose end is not awaited.
COPIES_SLOWLY = """\
import os, subprocess, sys, threading, time
def copy(): time.sleep(0.3); os.write(1, os.read(command.stdout.fileno(), 99))
command = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)
threading.Thread(target=copy).start()
os._exit(command.wait())
"""


def test_a_slow_copy_of_the_output_is_given_time(tmp_path: Path) -> None:
    tools = Tools(processes=Processes(), home=Home(path=tmp_path))
    inner = Prefixed(prefix=(sys.executable, "-S", "-c", COPIES_SLOWLY), tools=tools, cwd=tmp_path)
    done = Chroot(inner=inner).run(["echo", "finding"], timeout_s=20)
    assert (done.stdout, done.returncode) == ("finding\n", 0)


def test_an_error_of_buildah_itself_is_named(tmp_path: Path) -> None:
    refuses = ("sh", "-c", "printf 'WARN: old\nError: container not known\n' >&2; exit 125")
    tools = Tools(processes=Processes(), home=Home(path=tmp_path))
    inner = Prefixed(prefix=refuses, tools=tools, cwd=tmp_path)
    done = Chroot(inner=inner).run(["echo", "finding"], timeout_s=20)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "buildah run: exit status 125, and the end of the output is missing, 3 times: "
        "Error: container not known"
    )


@pytest.mark.parametrize(
    ("script", "status", "stdout"),
    [
        ("exit 77", 77, ""),
        ("echo why; exit 3", 3, "why\n"),
        ("kill -SEGV $$", 139, ""),
        ("printf 'no end of line'", 0, "no end of line"),
    ],
)
def test_a_command_ends_as_it_does_alone(
    script: str, status: int, stdout: str, tmp_path: Path
) -> None:
    done = chroot(tmp_path, losses=0).run(["sh", "-c", script], timeout_s=20)
    assert (done.stdout, done.returncode) == (stdout, status)
    assert (tmp_path / "count").read_text() == "1\n"


def test_a_command_that_hangs_is_not_run_again(tmp_path: Path) -> None:
    done = chroot(tmp_path, losses=0).run(["sh", "-c", "echo begun; sleep 300"], timeout_s=0.7)
    assert (done.timed_out, done.stdout) == (True, "begun\n")
    assert (tmp_path / "count").read_text() == "1\n"


# Reasons not to hand over GPUs.


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    """A machine on which nothing is installed."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(Home, "search_path", lambda _home: str(tmp_path / "bin"))
    return Tools(processes=Processes(), home=Home(path=tmp_path))


def install(tools: Tools, name: str, text: str = "") -> None:
    program = tools.home.path / "bin" / name
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)


def test_a_device_specification_is_looked_for(tmp_path: Path) -> None:
    folders = (tmp_path / "none", tmp_path)
    missing = f"no specification of nvidia.com/gpu in {tmp_path}/none/* or {tmp_path}/*"
    assert cdi_problem(folders).startswith(missing)
    (tmp_path / "other.yaml").write_text('cdiVersion: "0.5.0"\nkind: vendor.com/net\n')
    assert cdi_problem(folders)
    (tmp_path / "nvidia.yaml").write_bytes(b'# \xff\ncdiVersion: "0.5.0"\nkind: nvidia.com/gpu\n')
    assert cdi_problem(folders) == ""
    assert cdi_problem(folders, kind="*.json")


def test_ordinary_users_read_what_is_made_for_runners(tmp_path: Path) -> None:
    with readable_folder(tmp_path, "run-") as folder:
        assert (folder.parent, folder.stat().st_mode & 0o777) == (tmp_path, 0o755)


def test_podman_needs_a_device_specification(tools: Tools) -> None:
    """Of the machine that the tests run on: it may have GPUs."""
    missing = "no specification of nvidia.com/gpu in /etc/cdi/* or /var/run/cdi/*: create one with"
    assert RUNNERS["podman"].no_gpu(tools) in ("", f"{missing} nvidia-ctk")


def test_docker_needs_nvidias_runtime(tools: Tools) -> None:
    assert RUNNERS["docker"].no_gpu(tools) == "nvidia-container-runtime is missing on this machine"
    install(tools, "nvidia-container-runtime")
    assert RUNNERS["docker"].no_gpu(tools) == ""


def test_an_old_buildah_cannot_hand_over_devices(tools: Tools) -> None:
    install(tools, "buildah", "/usr/bin/echo '  --env stringArray   add'")
    assert oci.buildah_problem(tools) == "this buildah cannot pass devices to containers"
    script = """[ "$*" = 'run --help' ] && /usr/bin/echo '  --device stringArray   add'"""
    install(tools, "buildah", script)
    assert "nvidia.com/gpu" in oci.buildah_problem(tools)


def test_an_old_charliecloud_copies_the_drivers_files(tools: Tools) -> None:
    install(tools, "ch-run", "/usr/bin/echo '  -c, --cd=DIR  initial directory'")
    assert sites.charliecloud_problem(tools) == "ch-fromhost is missing on this machine"
    install(tools, "ch-fromhost")
    assert sites.charliecloud_problem(tools) == "nvidia-container-cli is missing on this machine"
    install(tools, "nvidia-container-cli")
    assert sites.charliecloud_problem(tools) == ""


OLD_CH_RUN = """
[ "$1" = --help ] && exec echo '  -c, --cd=DIR  initial directory'
while [ "$1" != -- ]; do image=$1; shift; done
cd "$image" && exec sh -c "$2"
"""
COPIES = 'echo "$1" >>"${0%/*}/called"; echo driver >"$2/libcuda.so.1"'


def checks_among_which_gpus(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The outcomes of checks, some of which want the driver in the image, and one that does not."""
    home = tools.home.path
    monkeypatch.setattr(Home, "search_path", lambda _home: f"{home / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(Tools, "ordinary_user", None)
    install(tools, "ch-run", OLD_CH_RUN)
    install(tools, "pigz", 'exec gzip "$@"')
    with tarfile.open(home / "image.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("file"))
    scripts = {
        "gpu-driver": "cat libcuda.so.1",
        "cuda-clean": "[ ! -e libcuda.so.1 ] && echo clean",
        "gpu-library": "cat libcuda.so.1",
    }
    checks = tuple(
        InImageCheck(name=name, script=script, needs=("gpu",) * ("gpu" in name), timeout_s=20)
        for name, script in scripts.items()
    )
    container = Container(artifact=home / "image.tar.gz", work=home, tools=tools, gpu=True)
    kind = RUNNERS["charliecloud"]
    with kind.open(container) as runner:
        found = outcomes_in(a_target(*checks), kind, runner, gpu=True)
    assert [one.check for one in found] == ["environment", *scripts]
    return {one.check: f"{one.outcome}: {one.reason}" for one in found[1:]}


def test_the_driver_is_copied_in_after_what_needs_no_gpu(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tools, "ch-fromhost", COPIES)
    assert checks_among_which_gpus(tools, monkeypatch) == {
        "gpu-driver": "passed: driver",
        "cuda-clean": "passed: clean",
        "gpu-library": "passed: driver",
    }
    assert (tools.home.path / "bin/called").read_text() == "--nvidia\n"


def test_a_driver_that_is_not_copied_fails_what_needs_a_gpu_alone(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tools, "ch-fromhost", "echo 'ch-fromhost: no driver' >&2; exit 1")
    why = "the driver could not be copied into the image: ch-fromhost: no driver"
    assert checks_among_which_gpus(tools, monkeypatch) == {
        "gpu-driver": f"failed: {why}",
        "cuda-clean": "passed: clean",
        "gpu-library": f"failed: {why}",
    }


def test_a_new_charliecloud_reads_the_device_specification(tools: Tools) -> None:
    install(tools, "ch-run", "/usr/bin/echo '      --cdi-dirs=PATHS  where to look'")
    assert not sites.has_cdi(tools)
    install(tools, "ch-run", "/usr/bin/echo '  -d, --cdi[=KIND]  inject resources'")
    assert sites.has_cdi(tools)
    assert "*.json" in sites.charliecloud_problem(tools)


# The command line.


def test_runners_can_be_chosen() -> None:
    given = parse(["verify", "x", "--runner", "docker", "--runner", "apptainer"])
    assert given.runner == ["docker", "apptainer"]
    assert parse(["verify", "x"]).runner == []


def test_an_unknown_runner_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["verify", "x", "--runner", "enroot"])
    assert ended.value.code == 2
    assert "'buildah', 'podman', 'docker', 'apptainer', 'charliecloud'" in capsys.readouterr().err
