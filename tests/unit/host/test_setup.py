"""ci/setup: mirror detection, plan and usage; nothing is installed and nothing is fetched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builder.cli import main
from builder.cli import setup as set_up
from builder.cli.commands import parse
from builder.host.doctor.diagnosis import SystemRoots
from builder.host.doctor.machine import free_range
from builder.model.architectures import ARCHITECTURES
from builder.system.home import Home

PROJECT = Path(__file__).parents[3]
PARTS = PROJECT / "builder/host/setup"
SCRIPTS = [
    *(PROJECT / name for name in ("ci/setup", "ci/retry", ".ci/run")),
    *sorted(PARTS.glob("*.sh")),
]
# What `main.sh` sets before it reads the parts.
BEGIN = f"PACKAGE={PROJECT}/builder PROJECT={PROJECT} PART=both; "

SECURITY = "Types: deb\nURIs: http://a.example/debian-security\nSuites: bookworm-security\n"
MAIN = "Types: deb\nURIs: http://b.example/debian/\nSuites: bookworm bookworm-updates\n"


def setup(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if "BUILD_IMAGES" not in key}
    return subprocess.run(
        [PROJECT / "ci/setup", *arguments],
        env={**inherited, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def mirror(apt: Path, codename: str = "bookworm", **environment: str) -> str:
    done = setup("--print-mirror", f"--sources={apt}", **environment)
    assert done.returncode == 2, "values are separate arguments"
    done = setup("--print-mirror", "--sources", str(apt), "--codename", codename, **environment)
    return done.stdout.strip() if done.returncode == 0 else f"exit {done.returncode}"


def sources(apt: Path, **files: str) -> Path:
    (apt / "sources.list.d").mkdir()
    for name, text in files.items():
        place = apt if name == "sources_list" else apt / "sources.list.d"
        (place / name.replace("_", ".")).write_text(text)
    return apt


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(f"{SECURITY}\n{MAIN}", "http://b.example/debian", id="security comes first"),
        pytest.param(f"# a comment\n{MAIN}", "http://b.example/debian", id="comment"),
        pytest.param(f"Enabled: no\n{MAIN}", "exit 4", id="switched off"),
        pytest.param(MAIN.replace("Types: deb", "Types: deb-src"), "exit 4", id="source only"),
        pytest.param(SECURITY, "exit 4", id="security only"),
        pytest.param(
            "Types: deb deb-src\nSuites:\n trixie\n bookworm\nURIs: http://c.example/d\n",
            "http://c.example/d",
            id="values on several lines",
        ),
        pytest.param(
            MAIN.replace("bookworm bookworm-updates", "trixie")
            + "\n"
            + MAIN.replace("b.ex", "d.ex"),
            "http://d.example/debian",
            id="the machine's own release wins",
        ),
        pytest.param(
            MAIN.replace("bookworm bookworm-updates", "sid"),
            "http://b.example/debian",
            id="another release of Debian will do",
        ),
        pytest.param(MAIN.replace("bookworm bookworm-updates", "jammy"), "exit 4", id="Ubuntu"),
    ],
)
def test_mirror_from_deb822(tmp_path: Path, text: str, expected: str) -> None:
    assert mirror(sources(tmp_path, debian_sources=text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("deb http://a.example/debian bookworm main\n", "http://a.example/debian"),
        (
            "deb [arch=amd64 signed-by=/k.gpg] http://a.example/d bookworm main",
            "http://a.example/d",
        ),
        ("# deb http://a.example/debian bookworm main\n", "exit 4"),
        ("deb-src http://a.example/debian bookworm main\n", "exit 4"),
        ("deb cdrom:[Debian]/ bookworm main\n", "exit 4"),
        ("deb http://a.example/debian-security bookworm-security main\n", "exit 4"),
    ],
)
def test_mirror_from_one_line_sources(tmp_path: Path, text: str, expected: str) -> None:
    assert mirror(sources(tmp_path, sources_list=text)) == expected


def test_mirror_from_a_list_of_mirrors(tmp_path: Path) -> None:
    listed = tmp_path / "debian.list"
    listed.write_text(
        "# mirrors\nhttps://first.example/debian priority:1\nhttps://b.example/debian\n"
    )
    text = MAIN.replace("http://b.example/debian/", f"mirror+file://{listed}")
    assert mirror(sources(tmp_path, debian_sources=text)) == "https://first.example/debian"


def test_no_sources_at_all_and_the_override(tmp_path: Path) -> None:
    assert mirror(tmp_path) == "exit 4"
    chosen = "http://mine.example/debian"
    assert mirror(tmp_path, BUILD_IMAGES_MIRROR=chosen) == chosen


def test_without_a_mirror_the_way_out_is_named(tmp_path: Path) -> None:
    done = setup("--print-mirror", "--sources", str(tmp_path))
    assert "BUILD_IMAGES_MIRROR" in done.stderr


@pytest.mark.parametrize("argument", ["everything", "--dryrun", "--sources"])
def test_bad_usage_exits_2(argument: str) -> None:
    done = setup(argument)
    assert done.returncode == 2
    assert argument in done.stderr


def test_a_dry_run_shows_what_goes_where_and_leaves_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = setup(
        "test",
        "--dry-run",
        BUILD_IMAGES_HOME=str(home),
        BUILD_IMAGES_MIRROR="http://a.example/debian",
    )
    assert done.returncode == 0, done.stderr
    assert not home.exists()
    assert "WHERE" in done.stderr or "nothing to install" in done.stderr


def test_setup_and_builder_agree_on_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"{BEGIN} . {PARTS}/machine.sh; look_around; echo $TOOLS/bin"
    monkeypatch.delenv("BUILD_IMAGES_HOME", raising=False)
    for name, value in {"": "", "BUILD_IMAGES_HOME": "/srv/b", "XDG_DATA_HOME": "/srv/d"}.items():
        with monkeypatch.context() as patch:
            if name:
                patch.setenv(name, value)
            shown = subprocess.run(
                ["bash", "-c", script], cwd=PROJECT, capture_output=True, text=True, check=True
            )
            assert shown.stdout.strip() == str(Home.of_environment().tools)


def constant(name: str) -> str:
    """A constant of the set-up of emulation."""
    text = (PARTS / "emulation.sh").read_text()
    return text.partition(f"readonly {name}='")[2].partition("'")[0]


@pytest.mark.parametrize(("arch", "suffix"), [("ppc64le", ""), ("aarch64", "_AARCH64")])
def test_setup_and_builder_agree_on_the_binfmt_magic(arch: str, suffix: str) -> None:
    """A 64-bit little-endian program of the architecture; the mask leaves its machine as it is."""
    magic, mask = (constant(f"{name}{suffix}").split(r"\x")[1:] for name in ("MAGIC", "MASK"))
    machine = f"{ARCHITECTURES[arch].elf_machine:02x}"
    ident = ["7fELF", "02", "01", "01", *["00"] * 9]
    assert magic == [*ident, "02", "00", machine, "00"]
    assert len(mask) == 20  # up to e_machine
    assert (mask[:7], mask[18]) == (["ff"] * 7, "ff")


@pytest.mark.parametrize(
    ("handler", "serves"),
    [
        pytest.param("enabled flags=OCF qemu=11.1.3", True, id="good"),
        pytest.param("disabled flags=OCF qemu=11.1.3", False, id="switched off"),
        pytest.param("enabled flags=OC qemu=11.1.3", False, id="not inside containers"),
        pytest.param("enabled flags=OCF qemu=7.2.9", False, id="too old"),
        pytest.param("enabled flags=POCF qemu=8.0.0", True, id="the oldest that will do"),
        pytest.param("enabled flags=OCF qemu=11.1.3 machine=b700", False, id="aarch64"),
    ],
)
def test_which_binfmt_handlers_serve(tmp_path: Path, handler: str, serves: bool) -> None:
    state, *settings = handler.split()
    values = dict(setting.split("=") for setting in settings)
    qemu = tmp_path / "qemu"
    qemu.write_text(f"#!/bin/sh\necho 'qemu-ppc64le version {values['qemu']} (any)'\n")
    qemu.chmod(0o755)
    entry = tmp_path / "qemu-ppc64le"
    entry.write_text(
        f"{state}\ninterpreter {qemu}\nflags: {values['flags']}\noffset 0\n"
        f"magic 7f454c460201010000000000000000000200{values.get('machine', '1500')}\n"
    )
    script = f"{BEGIN} . {PARTS}/emulation.sh; handler_serves {entry}"
    done = subprocess.run(["bash", "-c", script], cwd=PROJECT, capture_output=True, check=False)
    assert (done.returncode == 0) is serves, done.stderr


@pytest.mark.parametrize(
    ("interpreter", "ours"),
    [
        pytest.param("home/qemu/qemu-ppc64le.{door}", True, id="of this home"),
        pytest.param("home/qemu/qemu-ppc64le.0", False, id="another door"),
        pytest.param("home/gone/qemu-ppc64le.{door}", False, id="this home was emptied"),
        pytest.param("other/qemu-ppc64le.{door}", True, id="another home: the kernel has it open"),
    ],
)
def test_which_handler_is_ours(tmp_path: Path, interpreter: str, ours: bool) -> None:
    prepare = (
        f"{BEGIN} TOOLS={tmp_path}/home; "
        f". <(sed 's|^readonly BINFMT=.*|BINFMT={tmp_path}|' {PARTS}/emulation.sh); "
    )
    shown = subprocess.run(
        ["bash", "-c", prepare + "door_version"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    path = tmp_path / interpreter.format(door=shown.stdout.strip())
    if "gone" not in interpreter and "other" not in interpreter:
        path.parent.mkdir(parents=True)
        path.write_text("")
        path.chmod(0o755)
    (tmp_path / "build-images-ppc64le").write_text(f"enabled\ninterpreter {path}\nflags: POCF\n")
    done = subprocess.run(
        ["bash", "-c", prepare + "handler_is_ours ppc64le"],
        cwd=PROJECT,
        capture_output=True,
        check=False,
    )
    assert (done.returncode == 0) is ours, done.stderr


# ---- The two parts ----


def shell(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def with_etc(etc: Path, part: str = "user") -> str:
    """The parts that deal with users, for a host whose /etc that is."""
    patched = f"sed 's|^readonly ETC=.*|ETC={etc}|' {PARTS}/users.sh"
    return f"PART={part} USERS=() TARGET=images PROJECT=; . {PARTS}/report.sh; . <({patched}); "


PASSWD = "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/:/bin/sh\ncarol:x:170000:1::/:/bin/sh\n"


def host(etc: Path, subuid: str, subgid: str = "") -> Path:
    for name, text in (("subuid", subuid), ("subgid", subgid), ("passwd", PASSWD)):
        (etc / name).write_text(text)
    return etc


@pytest.mark.parametrize(
    ("subuid", "subgid", "uid"),
    [
        ("", "", 1000),
        ("build-images:100000:65536\n", "", 1000),
        ("", "bob:100000:65536\n", 1000),
        ("bob:90000:20000\n", "4711:400000:900000\n", 1000),
        ("", "", 1003),
        ("", "", 999),
        ("", "", 50123),
        ("dora:100000:65536\n", "", 1000),
        ("1003:296608:65536\n", "bob:362144:65536\n", 1003),
        pytest.param("build-images:600016544:65536\n", "", 65534, id="the last range is taken"),
    ],
)
def test_setup_and_doctor_propose_the_same_free_range(
    tmp_path: Path, subuid: str, subgid: str, uid: int
) -> None:
    etc = host(tmp_path, subuid, subgid)
    roots = SystemRoots(etc=etc, caller={"dora": uid})
    found = shell(with_etc(etc) + f"uid_of() {{ echo {uid}; }}; free_ids dora")
    assert found.stdout == str(free_range("dora", roots)), found.stderr


@pytest.mark.parametrize(
    ("line", "has"),
    [
        ("alice:100000:65536", True),
        ("1000:100000:65536", True),
        ("alicia:100000:65536", False),
        ("10000:100000:65536", False),
        ("alice:100000:0", False),
    ],
)
def test_a_line_by_name_or_by_user_id_counts(tmp_path: Path, line: str, has: bool) -> None:
    etc = host(tmp_path, f"bob:1:1\n{line}\n")
    done = shell(with_etc(etc) + "uid_of() { echo 1000; }; has_ids alice subuid")
    assert (done.returncode == 0) is has


def test_sub_ids_are_added_by_commands_that_can_be_pasted(tmp_path: Path) -> None:
    etc = host(tmp_path, "build-images:100000:65536\n")
    ask = "uid_of() { echo 1000; }; ids_command alice subuid; echo; ids_command dora subgid"
    found = shell(with_etc(etc) + ask).stdout.splitlines()
    assert found == [
        "usermod --add-subuids 231072-296607 alice",  # carol's own id is in the range before it
        f"sh -c 'echo dora:231072:65536 >>{etc}/subgid'",
    ]
    shell(found[1])
    assert (etc / "subgid").read_text() == "dora:231072:65536\n"


def test_the_administrators_part_is_for_the_users_that_are_named(tmp_path: Path) -> None:
    etc = host(tmp_path, "")
    base = with_etc(etc, "host").replace("USERS=()", "USERS=(alice root)")
    assert shell(base + "users_of_part").stdout.split() == ["alice", "build-images"]
    assert shell(with_etc(etc, "both") + "users_of_part").stdout.split() == ["build-images"]


def test_root_makes_nothing_in_the_clone_of_a_user(tmp_path: Path) -> None:
    """Its .venv would be root's, and the user's next set-up fail."""
    if os.geteuid() != 0:
        pytest.skip("only root can be mistaken for somebody else")
    clone = tmp_path / "clone"
    shutil.copytree(PARTS, clone / "builder/host/setup")
    (clone / "ci").mkdir()
    shutil.copy(PROJECT / "ci/setup", clone / "ci/setup")
    shutil.chown(clone, "nobody")
    done = subprocess.run(
        [clone / "ci/setup", "images"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "this clone belongs to nobody" in done.stderr
    assert f"{clone}/ci/setup host --user nobody; then nobody runs ci/setup" in done.stderr
    assert not (clone / ".venv").exists()


def test_what_only_root_can_do_is_told_last_in_commands() -> None:
    """The user's part does all that it can before."""
    script = (
        f"PART=user TARGET=images PROJECT=/srv/clone; . {PARTS}/report.sh; "
        "host_row buildah 'system (apt)' why; host_step nothing; row tool here why; "
        "COMMANDS+=('apt-get install --yes buildah'); "
        'printf "%s\\n" "${ROWS[@]}" "${STEPS[@]}"; echo ==; names_of "${HOST_ROWS[@]}"; echo; '
        "id() { echo alice; }; commands_of_root"
    )
    own, _, root = shell(script).stdout.partition("==\n")
    assert own.split() == ["tool|here|why"]
    assert root.splitlines() == [
        "buildah",
        "an administrator runs",
        "      sudo /srv/clone/ci/setup host --user alice",
        "    or, by hand,",
        "      sudo apt-get install --yes buildah",
        "    and then: ci/setup images",
    ]


BESIDE = (
    "LOG={log}; touch $LOG; . {parts}/report.sh; LOG={log}; "
    "slow() {{ sleep {slow}; echo slow output; return {code}; }}; "
    "quick() {{ sleep 0.2; return {bad}; }}; "
    "begin_beside 'slow step' slow; run_step 'quick step' quick; end_beside; echo all"
)


def test_a_step_runs_beside_others(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = shell(BESIDE.format(log=log, parts=PARTS, slow=0.5, code=0, bad=0))
    assert done.returncode == 0, done.stderr
    titles = [line.strip().split(":")[0] for line in done.stderr.splitlines()]
    assert titles == [
        "slow step, in the background ...",
        "quick step ...",
        "quick step",
        "slow step",
    ]
    assert log.read_text().endswith("== slow step\nslow output\n")
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_a_step_beside_others_that_fails_is_shown(tmp_path: Path) -> None:
    done = shell(BESIDE.format(log=tmp_path / "log", parts=PARTS, slow=0.1, code=7, bad=0))
    assert done.returncode == 1
    assert "failed: slow step (exit code 7)" in done.stderr
    assert "  | slow output" in done.stderr
    assert "all" not in done.stdout


def test_a_failure_ends_the_step_beside_it(tmp_path: Path) -> None:
    started = time.monotonic()
    done = shell(BESIDE.format(log=tmp_path / "log", parts=PARTS, slow=60, code=0, bad=3))
    assert done.returncode == 1
    assert "failed: quick step (exit code 3)" in done.stderr
    assert time.monotonic() - started < 30


def test_the_users_part_needs_no_root() -> None:
    """No step of it calls sudo, and what becomes root is one command, where that asks nothing."""
    texts = {path.name: path.read_text() for path in PARTS.glob("*.sh")}
    assert texts["main.sh"].count("sudo -n --") == 1
    for name, text in texts.items():
        code = "\n".join(line.partition("#")[0] for line in text.splitlines())
        if name not in {"main.sh", "report.sh", "machine.sh", "python.sh"}:
            assert "sudo" not in code, name
    assert 'die 2 "the administrator' in texts["machine.sh"]


@pytest.mark.parametrize("owner", [0, 1000])
def test_a_handler_whose_file_a_user_can_change_is_not_the_administrators(
    tmp_path: Path, owner: int
) -> None:
    """All users' programs of that architecture would run through it."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    prepare = (
        f"{BEGIN} TOOLS={tmp_path}/none; "
        f". <(sed 's|^readonly BINFMT=.*|BINFMT={tmp_path}|' {PARTS}/emulation.sh); "
    )
    version = shell(prepare + "door_version").stdout.strip()
    qemu = tmp_path / f"qemu-ppc64le.{version}"
    qemu.write_text("")
    os.chown(qemu, owner, owner)
    (tmp_path / "build-images-ppc64le").write_text(f"enabled\ninterpreter {qemu}\nflags: POCF\n")
    done = shell(prepare + "handler_is_roots ppc64le")
    assert (done.returncode == 0) is (owner == 0)


def test_handlers_last_by_a_file_that_systemd_reads(tmp_path: Path) -> None:
    kept, qemu = tmp_path / "binfmt.d/kept.conf", tmp_path / "qemu-ppc64le.1"
    prepare = (
        f"{BEGIN} ARCH=x86_64 TOOLS={tmp_path}; . <(sed 's|^readonly BINFMT=.*|BINFMT={tmp_path}|; "
        f"s|^readonly BINFMT_KEPT=.*|BINFMT_KEPT={kept}|' {PARTS}/emulation.sh); "
    )
    qemu.write_text("")
    (tmp_path / "build-images-ppc64le").write_text(f"enabled\ninterpreter {qemu}\nflags: POCF\n")
    assert shell(prepare + "lasts").returncode == 1
    assert shell(prepare + "keep_both && lasts").returncode == 0
    line = f":build-images-ppc64le:M::{constant('MAGIC')}:{constant('MASK')}:{qemu}:OCPF"
    assert line in kept.read_text().splitlines()


def test_the_program_alone_has_the_same_set_up(tmp_path: Path) -> None:
    """`build-images setup`, from a wheel: the script is the package's, and makes no environment."""
    done = subprocess.run(
        [sys.executable, "-m", "builder", "setup", "host", "--user=alice", "--help"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    words = ["host", "--user", "alice", "--check"]
    assert set_up.argv_of(setup_options(*words)) == words
    assert set_up.argv_of(setup_options()) == []


@pytest.mark.parametrize(("ends", "code"), [("exit 0", 0), ("exit 4", 4), ("kill -9 $$", 1)])
def test_the_command_ends_as_its_script_does(
    ends: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "script").write_text(f'echo "$@ $BUILD_IMAGES_PYTHON"\n{ends}\n')
    assert set_up._SCRIPT.samefile(PARTS / "main.sh")
    monkeypatch.setattr(set_up, "_SCRIPT", tmp_path / "script")
    assert main(["setup", "--dry-run"]) == code
    assert capsys.readouterr().err == f"--dry-run {sys.executable}\n"


def setup_options(*words: str) -> set_up.SetupOptions:
    options = parse(["setup", *words])
    assert isinstance(options, set_up.SetupOptions)
    return options


def test_the_folders_for_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`export PATH="$(build-images setup --print-path):$PATH"`, as docs/setup.md has it."""
    program = tmp_path / "bin/build-images"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    assert main(["setup", "--print-path"]) == 0
    assert capsys.readouterr().out == f"{program.parent}:{tmp_path}/home/tools/bin\n"


def test_the_scripts_pass_shellcheck() -> None:
    shellcheck = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run(
        [shellcheck, "-x", *SCRIPTS], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
