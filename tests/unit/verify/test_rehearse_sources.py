"""What sources say that a rehearsal reads: distributions for pip, clones of Git, archives."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rehearse_samples import step, tar_of, workspace
from samples import a_file, tar_bytes

from builder.system.process import Completed, Processes
from builder.verify.rehearse.resolution import (
    SourceDistribution,
    pip_of_this_machine,
    read_source,
    stand_in_of,
)
from builder.verify.rehearse.trials import NOT_TRIED
from builder.verify.rehearse.workspace import Clones, PatchCommand, patch_command, unpack

METADATA = "Metadata-Version: 2.1\nName: a\nVersion: 1.0\n"
REQUIRING = f"{METADATA}Requires-Dist: six\nRequires-Dist: b>1\n"
BUILD = '[build-system]\nrequires = ["flit_core >=3.2"]\n'
PROJECT = f'{BUILD}[project]\ndependencies = ["six", "numpy>1"]\n'
LEGACY = ("setuptools>=40.8.0", "wheel")  # https://peps.python.org/pep-0517
FLIT = ("flit_core >=3.2",)
EGG = "a.egg-info/requires.txt"
SECTIONS = """\
six
not a requirement!

[:python_version < "3.8"]
typing

[docs]
sphinx

[docs:sys_platform == "win32"]
colorama
"""
OF_SECTIONS = (
    *("six", 'typing; python_version < "3.8"', 'sphinx; extra == "docs"'),
    'colorama; (sys_platform == "win32") and extra == "docs"',
)


def archive(files: dict[str, str], *, zipped: bool) -> bytes:
    named = {f"{'' if zipped else './'}a-1.0/{path}": text for path, text in files.items()}
    if not zipped:
        return tar_bytes(*(a_file(path, text) for path, text in named.items()))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        for path, text in named.items():
            target.writestr(path, text)
    return buffer.getvalue()


# Distributions for pip.


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("files", "requires", "build", "is_legacy"),
    [
        ({"setup.py": ""}, (), LEGACY, True),
        (
            {"PKG-INFO": f"{METADATA}Requires-Dist: six\nRequires-Dist: b>1\n"},
            ("six", "b>1"),
            LEGACY,
            True,
        ),
        ({"pyproject.toml": PROJECT}, ("six", "numpy>1"), FLIT, False),
        ({"pyproject.toml": PROJECT, "PKG-INFO": METADATA}, ("six", "numpy>1"), FLIT, False),
        ({"pyproject.toml": "[tool.x]\n"}, (), LEGACY, False),
        ({"pyproject.toml": "no TOML ["}, (), LEGACY, False),
        ({EGG: SECTIONS}, OF_SECTIONS, LEGACY, True),
        ({"requires.txt": "six\n"}, (), LEGACY, True),
        ({"doc/requires.txt": "six\n", "deep/er/pyproject.toml": BUILD}, (), LEGACY, True),
    ],
)
def test_what_a_source_distribution_needs(
    files: dict[str, str],
    requires: tuple[str, ...],
    build: tuple[str, ...],
    is_legacy: bool,
    zipped: bool,
) -> None:
    source = read_source("a", "1.0", archive(files, zipped=zipped))
    assert (source.name, source.version) == ("a", "1.0")
    assert source.requires == requires
    assert source.build_requires == build
    assert source.is_legacy == is_legacy


def test_what_is_no_utf_8_in_a_source_distribution_is_passed_over() -> None:
    source = archive({"PKG-INFO": f"{METADATA}Author: é\nRequires-Dist: six\n"}, zipped=False)
    latin = source.replace("é".encode(), b"\xe9!")
    assert read_source("a", "1.0", latin).requires == ("six",)


def test_a_stand_in_is_a_wheel_with_the_same_requirements() -> None:
    source = SourceDistribution(
        name="a-b", version="1.0", requires=("six", "c>1"), build_requires=(), is_legacy=False
    )
    with zipfile.ZipFile(io.BytesIO(stand_in_of(source))) as wheel:
        texts = {name: wheel.read(name).decode() for name in wheel.namelist()}
    assert texts == {
        "a_b-1.0.dist-info/METADATA": (
            "Metadata-Version: 2.1\nName: a-b\nVersion: 1.0\n"
            "Requires-Dist: six\nRequires-Dist: c>1\n\n"
        ),
        "a_b-1.0.dist-info/WHEEL": (
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
        "a_b-1.0.dist-info/RECORD": "",
    }


class Recorded(Processes):
    """Keeps what it was asked to start, and starts nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.started, self.environments = list[tuple[str, ...]](), list[dict[str, str]]()
        self.limits: list[float] = []

    def capture(self, argv: Sequence[Any], **options: Any) -> Completed:
        self.started.append(tuple(map(str, argv)))
        self.environments.append(dict(options.get("env") or {}))
        self.limits.append(options["timeout_s"])
        return Completed(argv=(), returncode=0)


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_pip_is_asked_without_the_users_settings(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv(name, "index.example")
    processes = Recorded()
    run = pip_of_this_machine(processes, "https://index.example/simple")
    run(["install", "--dry-run", "six"])
    index = ("--index-url", "https://index.example/simple")
    assert processes.started == [
        (sys.executable, "-m", "pip", "install", *index, "--dry-run", "six")
    ]
    assert processes.limits == [600]
    assert processes.environments == [
        {
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_CONSTRAINT": "",
            "PIP_FIND_LINKS": "",
            "PIP_EXTRA_INDEX_URL": "",
            "no_proxy": "index.example,127.0.0.1",
        }
    ]


def test_what_is_done_to_sources_has_a_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits, capture = dict[str, float](), Processes.capture

    def noted(processes: Processes, argv: Sequence[Any], **options: Any) -> Completed:
        limits[argv[0]] = options["timeout_s"]
        return capture(processes, argv, **options)

    monkeypatch.setattr(Processes, "capture", noted)
    space = workspace(tmp_path, code={"a": "text"})
    for command in ("git clone https://git.example/o/code /opt", "sed -i s/a/b/ a"):
        space.follow(step(command, folder="/opt"))
    space.follow(step("patch -p1 -i a", folder="/opt"))
    (tmp_path / "clones/site/tool.git").mkdir(parents=True)
    assert Clones(Processes(), [tmp_path / "clones"]).check_out(URL, "v1", tmp_path / "out")
    assert limits == {"git": 300, "sed": 60, "patch": 60}


# Patches.


@pytest.mark.parametrize(
    ("command", "file", "folder", "levels", "options"),
    [
        ("patch -p1 -i a.patch", "/src/a.patch", "/src", 1, ()),
        ("patch -p 2 -i a.patch", "/src/a.patch", "/src", 2, ()),
        ("patch --strip=0 --input=../a.patch", "/a.patch", "/src", 0, ()),
        ("patch -p1 < /x/a.patch", "/x/a.patch", "/src", 1, ()),
        ("patch -p1 </x/a.patch", "/x/a.patch", "/src", 1, ()),
        ("patch -d sub -p1 -i a.patch", "/src/sub/a.patch", "/src/sub", 1, ()),
        ("patch --directory=/y -p1 -i a.patch", "/y/a.patch", "/y", 1, ()),
        ("patch -R -l -p1 -i a.patch", "/src/a.patch", "/src", 1, ("-R", "-l")),
        (
            "patch --reverse --ignore-whitespace -p1 -i a.patch",
            *("/src/a.patch", "/src", 1, ("--reverse", "--ignore-whitespace")),
        ),
        ("git apply a.patch", "/src/a.patch", "/src", 1, ()),
        ("git apply -p2 a.patch", "/src/a.patch", "/src", 2, ()),
        ("git apply /x/a.patch /x/b.patch", "/src/several patches", "/src", 1, ()),
        ("git apply -R --directory=x a.patch", "/src/a.patch", "/src", 1, ("-R",)),
    ],
)
def test_a_step_that_applies_a_patch(
    command: str, file: str, folder: str, levels: int, options: tuple[str, ...]
) -> None:
    applied = patch_command(step(command, folder="/src"))
    assert applied == PatchCommand(file=file, folder=folder, levels=levels, options=options)


@pytest.mark.parametrize(
    "command", ["patch -p1", "patch -i a.patch", "git apply -v", "git status", "make -p1 -i a"]
)
def test_a_step_that_applies_none(command: str) -> None:
    assert patch_command(step(command)) is None


# Clones of Git repositories.


def test_a_clone_takes_the_branch_that_it_names_or_the_newest_commit(tmp_path: Path) -> None:
    space = workspace(tmp_path, code={"a": "text"})
    for number, words in enumerate(("", "--branch v1", "--branch=v2", "-b v3 --depth 1")):
        command = f"git clone {words} https://git.example/o/code code{number}"
        space.follow(step(command, folder="/var/tmp"))
    clones = space.cloned.values()
    assert [clone.ref for clone in clones] == ["HEAD", "v1", "v2", "v3"]
    assert {clone.url for clone in clones} == {"https://git.example/o/code"}
    assert space.read("/var/tmp/code0/a") == "text"
    assert space.files_below("/var/tmp/code0") == ["a"]
    assert space.copied() == ()
    space.follow(step("git checkout abc", folder="/var/tmp/code0"))
    assert [clone.ref for clone in clones] == ["abc", "v1", "v2", "v3"]
    assert len(space.trials) == 4
    assert space.trials[0].subject == "git clone https://git.example/o/code abc"
    for target in ("/opt/code", "/tmp/code", "/tmp/code"):
        space.follow(step(f"cp /var/tmp/code0/. {target} -r"))
        assert space.read(f"{target}/a") == "text"
    assert space.copied() == ("/opt/code",)
    for words in ("cp -r /var/tmp/. /srv", "cp /var/tmp/code0/a /opt/file", "cp -r /opt/code"):
        space.follow(step(words))
    assert (space.copied(), space.read("/opt/file")) == (("/opt/code",), None)
    space.follow(step("cp -r /opt/code/. /opt/code/sub/deep"))
    space.follow(step("cp -r /opt/code /opt"))
    space.follow(step("rm -rf /opt/code/a /opt/code/a/b /opt/lost"))
    assert space.read("/opt/code/a") is None
    assert space.files_below("/opt/code") == []


def test_a_checkout_takes_the_place_of_the_clone(tmp_path: Path) -> None:
    space = workspace(tmp_path, code={"a": "text"})
    space.follow(step("git clone https://git.example/o/code /opt/code"))
    space.follow(step("git checkout v1", folder="/opt/code"))
    assert space.copied() == ("/opt/code",)
    space.check_out = lambda *_: "the copy has no v2"
    space.follow(step("git checkout v2", folder="/opt/code"))
    assert space.copied() == ()
    space.follow(step("sed -i s/a/b/ a", folder="/opt/code"))
    assert [(trial.outcome, trial.text) for trial in space.trials] == [
        (NOT_TRIED, "the copy has no v2")
    ]


URL = "https://git.example/site/tool"


@pytest.mark.parametrize(
    ("url", "place", "settings"),
    [
        (URL, "site/tool.git", "GIT_CONFIG_GLOBAL"),
        (f"{URL}/", "site/tool/.git", "GIT_CONFIG_SYSTEM"),
        (f"{URL}.git", "site/tool.git", "GIT_CONFIG_GLOBAL"),
        (f"{URL}.git/", "site/tool/.git", "GIT_CONFIG_SYSTEM"),
    ],
)
def test_a_commit_of_a_clone_is_checked_out(
    url: str, place: str, settings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links are written as plain files, no hook or filter runs, and no index changes."""
    hostile = f'[filter "own"]\n\tsmudge = touch {tmp_path}/ran; cat\n'
    (tmp_path / "settings").write_text(hostile)
    work, repository = tmp_path / "work", tmp_path / "clones" / place
    tar_of(tmp_path / "a.tar", {"a": "text", "sub/b c": ""})
    unpack(tmp_path / "a.tar", work)
    (work / "link").symlink_to("/etc/passwd")
    (work / ".gitattributes").write_text("a filter=own\n")
    repository.parent.mkdir(parents=True)
    git = ["git", "-C", str(work), "-c", "user.name=a", "-c", "user.email=a"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"], ["tag", "v1"]):
        subprocess.run([*git, *words], check=True)
    subprocess.run([*git, "config", "filter.own.smudge", f"touch {tmp_path}/ran; cat"], check=True)
    (work / ".git").rename(repository)
    hook = repository / "hooks/post-index-change"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    before = (repository / "index").read_bytes()
    shutil.copytree(repository / "hooks", tmp_path / "template/hooks")
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(tmp_path / "template"))
    monkeypatch.setenv(settings, str(tmp_path / "settings"))
    made, mkdtemp = list[str](), tempfile.mkdtemp

    def noting(*options: Any) -> str:
        made.append(mkdtemp(*options))
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", noting)
    clones = Clones(Processes(), [tmp_path / "none", tmp_path / "clones"])
    for _ in ("first", "again"):
        assert clones.check_out(url, "v1", tmp_path / "out/tool") == ""
    files = {path.name: path for path in (tmp_path / "out/tool").rglob("*") if path.is_file()}
    assert {*files} == {".gitattributes", "a", "b c", "link"}
    assert not files["link"].is_symlink()
    assert [Path(name).name[:13] for name in made] == ["build-images-"] * 2
    assert not (tmp_path / "ran").exists()
    assert (repository / "index").read_bytes() == before
    for ref in ("v2", "--index-output=x"):
        reason = f"the copy in {repository} has no {ref}, or not all of its files"
        assert clones.check_out(url, ref, tmp_path / "out/other") == reason


def test_why_a_clone_cannot_be_read(tmp_path: Path) -> None:
    clones = Clones(Processes(), [tmp_path])
    no_copy = "no copy of site/tool (name its folder with --clones)"
    assert clones.check_out(URL, "v1", tmp_path) == no_copy
    for url in ("git@git.example:site/tool", "https://git.example/tool", f"{URL}/more"):
        assert clones.check_out(url, "v1", tmp_path) == f"{url} names no owner and repository"


def test_the_files_of_an_archive(tmp_path: Path) -> None:
    members = {"./a-1.0/x": "text", "a-1.0/y": "more", "../z": "out", "a-1.0/x/z": "below a file"}
    members[f"{tmp_path}/w"] = "absolute"
    tar_of(tmp_path / "a.tar.gz", members)
    assert unpack(tmp_path / "a.tar.gz", tmp_path / "out") == {"a-1.0"}
    files = {
        path.name: path.read_text()
        for path in tmp_path.rglob("*")
        if path.suffix != ".gz" and path.is_file()
    }
    assert files == {"x": "text", "y": "more"}
