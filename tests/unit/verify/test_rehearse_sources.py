"""What sources say that a rehearsal reads: distributions for pip, clones of Git, archives."""

from __future__ import annotations

import contextlib
import io
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pytest
from rehearse_samples import step, tar_of, workspace
from samples import a_file, tar_bytes

from builder.model.errors import StepFailed
from builder.system.process import Completed, Processes
from builder.verify.rehearse.resolution import (
    SourceDistribution,
    pip_of_this_machine,
    read_source,
    write_stand_in,
)
from builder.verify.rehearse.workspace import Clones, PatchCommand, archive_tree, patch_command

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


def archive(files: dict[str, str], *, zipped: bool) -> bytes:
    named = {f"a-1.0/{path}": text for path, text in files.items()}
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
        ({EGG: SECTIONS}, ("six", 'typing ; python_version < "3.8"'), LEGACY, True),
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


def test_a_stand_in_is_a_wheel_with_the_same_requirements(tmp_path: Path) -> None:
    source = SourceDistribution(
        name="a-b", version="1.0", requires=("six", "c>1"), build_requires=(), is_legacy=False
    )
    path = write_stand_in(source, tmp_path)
    assert path.name == "a_b-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path) as wheel:
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
    """Programs that print what is written down for one of their words."""

    def __init__(self, outputs: dict[str, str]) -> None:
        super().__init__()
        self.outputs, self.started = outputs, list[tuple[str, ...]]()
        self.environments: list[dict[str, str]] = []

    def _output(self, argv: Sequence[Any]) -> str:
        words = tuple(map(str, argv))
        self.started.append(words)
        text = next((text for part, text in self.outputs.items() if part in words), None)
        if text is None:
            raise StepFailed(f"{words[0]}: exit status 128")
        return text

    def capture(self, argv: Sequence[Any], **options: Any) -> Completed:
        self.environments.append(dict(options.get("env") or {}))
        return Completed(argv=(), returncode=0, stdout=self._output(argv))

    @contextlib.contextmanager
    def reading_from(self, argv: Sequence[Any]) -> Iterator[IO[bytes]]:
        yield io.BytesIO(self._output(argv).encode())


def test_pip_is_asked_without_the_users_settings(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text("of an earlier resolution")
    processes = Recorded({"install": ""})
    run = pip_of_this_machine(processes, "https://index.example/simple")
    run(["install", "--dry-run", "six"], report)
    assert not report.exists()
    index = ("--index-url", "https://index.example/simple")
    assert processes.started == [
        (sys.executable, "-m", "pip", "install", *index, "--dry-run", "six")
    ]
    assert processes.environments == [
        {
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_CONSTRAINT": "",
            "PIP_FIND_LINKS": "",
            "PIP_EXTRA_INDEX_URL": "",
        }
    ]


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
        ("git apply -R --directory=x a.patch", "/src/a.patch", "/src", 1, ("-R",)),
    ],
)
def test_a_step_that_applies_a_patch(
    command: str, file: str, folder: str, levels: int, options: tuple[str, ...]
) -> None:
    found = patch_command(step(command, folder="/src"))
    assert found == PatchCommand(file=file, folder=folder, levels=levels, options=options)


@pytest.mark.parametrize(
    "command", ["patch -p1", "patch -i a.patch", "git apply -v", "git status", "make -p1 -i a"]
)
def test_a_step_that_applies_none(command: str) -> None:
    assert patch_command(step(command)) is None


def test_the_files_that_a_patch_names() -> None:
    patch = "".join(
        f"--- {old}\t2020\n+++ {new}\n@@ -1 +1 @@\n"
        for old, new in [("a/x/y.c", "b/x/y.c"), ("/dev/null", "b/new.c"), ("a/old.c", "/dev/null")]
    )
    command = PatchCommand(file="/p", folder="/", levels=1, options=())
    assert command.sources(patch) == {"x/y.c": True, "new.c": False, "old.c": True}


# Clones of Git repositories.


def test_a_clone_takes_the_branch_that_it_names_or_the_newest_commit() -> None:
    space = workspace(code={"a": "text"})
    for words in ("", "--branch v1", "--branch=v2", "--depth 1"):
        space.follow(step(f"git clone {words} https://git.example/o/code code", folder="/var/tmp"))
    assert [clone.ref for clone in space.cloned] == ["HEAD", "v1", "v2", "HEAD"]
    assert {clone.url for clone in space.cloned} == {"https://git.example/o/code"}
    assert space.read("/var/tmp/code/a") == "text"
    assert [*space.files_below("/var/tmp/code")] == ["a"]
    assert space.copied() == ()
    space.follow(step("git checkout abc", folder="/var/tmp/code"))
    assert [clone.ref for clone in space.cloned[-1:]] == ["abc"]
    for target in ("/opt/code", "/tmp/code"):
        space.follow(step(f"cp -r /var/tmp/code/. {target}"))
        assert space.read(f"{target}/a") == "text"
    assert space.copied() == ("/opt/code",)
    space.follow(step("rm -rf /opt/code/a"))
    assert space.read("/opt/code/a") is None
    assert [*space.files_below("/opt/code")] == []


URL = "https://git.example/site/tool"


@pytest.mark.parametrize("url", [URL, f"{URL}/", f"{URL}.git", f"{URL}.git/"])
@pytest.mark.parametrize("place", ["site/tool.git", "site/tool/.git"])
def test_a_commit_of_a_clone_is_read(url: str, place: str, tmp_path: Path) -> None:
    folders = [tmp_path / "none", tmp_path / "clones"]
    repository = tmp_path / "clones" / place
    repository.mkdir(parents=True)
    processes = Recorded(
        {
            "v1^{commit}": "c0ffee\n",
            "ls-tree": "a\0b c\0",
            "c0ffee:a": "text",
            "c0ffee:b c": "",
        }
    )
    clones = Clones(processes, folders)
    for _ in range(2):
        tree = clones.tree(url, "v1")
        assert not isinstance(tree, str)
        assert {*tree} == {"a", "b c"}
        assert [tree.get(name) for name in ("a", "b c", "d")] == ["text", "", None]
    git = ("git", "-c", "safe.directory=*", "--git-dir", str(repository))
    assert processes.started == [  # each once
        (*git, "rev-parse", "--verify", "--quiet", "v1^{commit}"),
        (*git, "ls-tree", "-r", "--name-only", "-z", "c0ffee"),
        (*git, "show", "c0ffee:a"),
        (*git, "show", "c0ffee:b c"),
    ]
    assert clones.tree(url, "v2") == f"the copy in {repository} has no v2"


def test_why_a_clone_cannot_be_read(tmp_path: Path) -> None:
    clones = Clones(Recorded({}), [tmp_path])
    no_copy = "no copy of site/tool is at hand (--clones names folders that have one)"
    assert clones.tree(URL, "v1") == no_copy
    for url in ("git@git.example:site/tool", "https://git.example/tool", f"{URL}/more"):
        assert clones.tree(url, "v1") == f"{url} names no owner and repository"


def test_the_files_of_an_archive(tmp_path: Path) -> None:
    tar_of(tmp_path / "a.tar.gz", {"./a-1.0/x": "text", "a-1.0/y": "more"})
    tree = archive_tree(tmp_path / "a.tar.gz")
    assert tree == {"a-1.0/x": "text", "a-1.0/y": "more"}
