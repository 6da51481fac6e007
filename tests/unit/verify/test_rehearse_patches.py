"""Patches of sources, tried in rehearsals without the image."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from rehearse_samples import step, workspace
from samples import image

from builder.compile import spec
from builder.system.process import Completed, Processes
from builder.verify.rehearse.rehearsal import copied_texts
from builder.verify.rehearse.trials import FAILED, NOT_TRIED, PASSED, failed, not_tried
from builder.verify.rehearse.workspace import SourceWorkspace, write_file

CLONE = "git clone https://github.com/owner/code.git code"
FIX = "--- a/sub/setup.py\t2019\n+++ b/sub/setup.py\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n"
NEW = "--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+x\n"
GONE = "--- a/sub/setup.py\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-one\n-two\n"
LINK = f"diff --git a/new.py b/new.py\nnew file mode 120000\n{NEW}"
INDEX = LINK.replace("new file mode", "index 0000000..1111111")
INDENTED = "".join(f"  {line}\n" for line in LINK.splitlines())
SCRIPT = "1c\ntouch /tmp/ran\n.\n"


def patched(root: Path, command: str, text: str | None = FIX) -> SourceWorkspace:
    """A workspace with a clone, after a command in it; the spec brings one patch."""
    space = workspace(root, code={"sub/setup.py": "one\ntwo\n", "own.patch": FIX})
    if text is not None:
        write_file(root / "usr/local/src/fix.patch", text.encode())
    space.follow(step(CLONE, folder="/var/tmp"))
    space.follow(step(command, folder="/var/tmp/code"))
    return space


@pytest.mark.parametrize(
    "command",
    [
        "patch -p1 < /usr/local/src/fix.patch",
        "patch -p1 -i /usr/local/src/fix.patch",
        "patch --strip=1 --input=/usr/local/src/fix.patch",
        "git apply /usr/local/src/fix.patch",
        "patch -p1 -i own.patch",
        "patch -d sub -p2 < /usr/local/src/fix.patch",
        "patch -p1 < /usr/local/src/fix.patch --batch",
    ],
)
def test_a_patch_is_applied_to_the_source(command: str, tmp_path: Path) -> None:
    space = patched(tmp_path, command)
    assert [(trial.kind, trial.outcome) for trial in space.trials[1:]] == [("patches", PASSED)]
    assert space.read("/var/tmp/code/sub/setup.py") == "one\nthree\n"


@pytest.mark.parametrize(
    ("command", "text", "outcome", "reason"),
    [
        ("patch -p1", FIX.replace("-two", "-2"), FAILED, "Hunk #1 FAILED at 1"),
        ("patch -p1", FIX.replace("@@ -1,2 +1,2 @@", "@@ -1,9 +1,9 @@"), FAILED, "unexpected end"),
        ("patch -p1", FIX.replace("-two", "two"), FAILED, "malformed patch at line 5"),
        ("patch -p0", FIX, FAILED, "can't find file to patch"),
        ("patch -p1", FIX + FIX.replace("sub/", "lost/"), FAILED, "can't find file to patch"),
        ("patch -p1", SCRIPT, FAILED, "Only garbage was found"),
        ("patch -p1", FIX.replace("sub/", "../sub/"), FAILED, "can't find file to patch"),
        ("patch -p1", None, NOT_TRIED, "the patch is not available"),
        ("patch -p1", LINK, NOT_TRIED, "it makes a symbolic link"),
        ("patch -p1", INDEX, NOT_TRIED, "it makes a symbolic link"),
        ("patch -p1", INDENTED, NOT_TRIED, "it makes a symbolic link"),
        ("patch -p1 -R", FIX, FAILED, "Unreversed patch detected"),
    ],
)
def test_a_patch_that_does_not_apply_is_a_failure(
    command: str, text: str | None, outcome: str, reason: str, tmp_path: Path
) -> None:
    space = patched(tmp_path, f"{command} < /usr/local/src/fix.patch", text)
    [trial] = space.trials[1:]
    assert trial.outcome == outcome
    assert reason in trial.text
    assert space.read("/var/tmp/code/sub/setup.py") == "one\ntwo\n"
    assert not [path for path in tmp_path.rglob("*") if path.is_symlink()]


def test_files_that_a_patch_adds_and_removes_are_followed(tmp_path: Path) -> None:
    added = patched(tmp_path, "patch -p1 < /usr/local/src/fix.patch", NEW)
    assert added.read("/var/tmp/code/new.py") == "x\n"
    removed = patched(tmp_path, "patch -p1 < /usr/local/src/fix.patch", GONE)
    assert removed.read("/var/tmp/code/sub/setup.py") is None


def test_a_patch_may_be_a_file_of_the_store(tmp_path: Path) -> None:
    space = patched(tmp_path, "make", None)
    (tmp_path / "stored").write_text(FIX)
    space.stored = {"fix.patch": tmp_path / "stored"}
    space.follow(step("patch -p1 < /tmp/fix.patch", folder="/var/tmp/code"))
    assert space.read("/var/tmp/code/sub/setup.py") == "one\nthree\n"


def test_a_machine_without_patch_tries_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    [trial] = patched(tmp_path, "patch -p1 < /usr/local/src/fix.patch").trials[1:]
    reason = "the program patch is missing on this machine"
    subject = "/usr/local/src/fix.patch in /var/tmp/code"
    assert trial == not_tried("patches", subject, reason, 1)


def test_a_patch_that_fails_without_a_word_is_a_failure(tmp_path: Path) -> None:
    class Silent(Processes):
        def capture(self, *_: object, **__: object) -> Completed:
            return Completed(argv=(), returncode=1)

    space = patched(tmp_path, "make")
    space.processes = Silent()
    space.follow(step("patch -p1 -i own.patch", folder="/var/tmp/code"))
    reason = "patch printed no reason"
    assert space.trials[1:] == [
        failed("patches", "/var/tmp/code/own.patch in /var/tmp/code", reason, 1)
    ]


def test_sources_that_are_not_at_hand_are_named(tmp_path: Path) -> None:
    space = workspace(tmp_path, code={"a": "text"})
    space.follow(step("patch -p1 < /a.patch", folder="/var/tmp/lost", line=7))
    reason = "its sources are not available"
    [trial] = space.trials
    assert trial == not_tried("patches", "/a.patch in /var/tmp/lost", reason, 7)
    for command in (CLONE, "rm -rf code"):
        space.follow(step(command, folder="/var/tmp"))
    space.follow(step("patch -p1 < /a.patch", folder="/var/tmp/code"))
    assert space.trials[-1] == not_tried("patches", "/a.patch in /var/tmp/code", reason, 1)


def test_a_patch_is_found_where_the_spec_copies_it(tmp_path: Path) -> None:
    compiled = dataclasses.replace(
        spec.compile_spec(image(tmp_path), run_checks=""),
        dockerfile=(
            "FROM a AS b\nCOPY files/project/fix.patch /usr/local/src/\n"
            "COPY files/project/fix.patch /b.patch\nFROM a\n"
            "COPY --from=b files/project/fix.patch /opt\n"
            "COPY files/project/fix.patch files/new.patch files/lost etc\n"
            "COPY files/new.patch files/lost lib\n"
        ),
        files={"files/project/fix.patch": FIX, "files/new.patch": NEW},
    )
    assert copied_texts(compiled) == {
        "/usr/local/src/fix.patch": FIX,
        "/b.patch": FIX,
        "/etc/fix.patch": FIX,
        "/etc/new.patch": NEW,
        "/lib/new.patch": NEW,
    }
