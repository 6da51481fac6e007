"""ci/setup: mirror detection, plan and usage; nothing is installed and nothing is fetched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from builder.facts import ARCHITECTURES
from builder.home import Home

PROJECT = Path(__file__).parents[2]
SCRIPTS = [
    *(PROJECT / name for name in ("ci/setup", "ci/retry", ".ci/run")),
    *sorted((PROJECT / "ci/lib").glob("*.sh")),
]

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
    assert "WHERE" in done.stderr or "everything is there" in done.stderr


def test_setup_and_builder_agree_on_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"PROJECT={PROJECT}; . ci/lib/machine.sh; look_around; echo $TOOLS/bin"
    monkeypatch.delenv("BUILD_IMAGES_HOME", raising=False)
    for name, value in {"": "", "BUILD_IMAGES_HOME": "/srv/b", "XDG_DATA_HOME": "/srv/d"}.items():
        with monkeypatch.context() as patch:
            if name:
                patch.setenv(name, value)
            shown = subprocess.run(
                ["bash", "-c", script], cwd=PROJECT, capture_output=True, text=True, check=True
            )
            assert shown.stdout.strip() == str(Home.of_environment().tools)


def test_setup_and_builder_agree_on_the_binfmt_magic() -> None:
    ppc64le = ARCHITECTURES["ppc64le"]
    script = (PROJECT / "ci/lib/emulation.sh").read_text()
    assert f"MAGIC='{ppc64le.binfmt_magic}'" in script
    assert f"MASK='{ppc64le.binfmt_mask}'" in script
    aarch64 = ARCHITECTURES["aarch64"]
    assert f"MAGIC_AARCH64='{aarch64.binfmt_magic}'" in script
    assert f"MASK_AARCH64='{aarch64.binfmt_mask}'" in script


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
    script = f"PROJECT={PROJECT}; . ci/lib/emulation.sh; handler_serves {entry}"
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
        f"PROJECT={PROJECT} TOOLS={tmp_path}/home; "
        f". <(sed 's|^readonly BINFMT=.*|BINFMT={tmp_path}|' ci/lib/emulation.sh); "
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


def test_the_scripts_pass_shellcheck() -> None:
    shellcheck = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run(
        [shellcheck, "-x", *SCRIPTS], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
