"""Native tools as a list of files: carried to another home, and the same there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_registry import Fake
from samples import base
from test_bundle import _own_home, a_policy  # noqa: F401 - fixtures
from test_bundle_bases import Capture, bundled, into_home, project_on, push

from builder.build.native.files import Entry, digest_of, entries_of, put_together, read_entries
from builder.build.native.tools import RECORD, NativeTools, newest_tools, stored_tools
from builder.distribute.bundle import ArchiveContents, opened, write_archive
from builder.distribute.bundle.home import fill_home, index_of_inputs, inputs_of
from builder.distribute.bundle.inputs import Inputs, add_native
from builder.registry import WrongContent
from builder.system.home import Home

FOLDER, FILE, LINK = 0o040755, 0o100644, 0o120777


def put_tools(store: Path, number: int = 1, *, name: str = "trixie-ppc64le") -> NativeTools:
    """Tools with a program, one more of the same bytes, a link and an empty file."""
    root = store / f"{name}-{number}" / "root"
    (root / "usr/bin").mkdir(parents=True)
    for one in ("bash", "rbash"):
        (root / "usr/bin" / one).write_text(f"program {number}")
        (root / "usr/bin" / one).chmod(0o755)
    (root / "usr/bin/sh").symlink_to("bash")
    (root / "bin").symlink_to("usr/bin")
    (root / "usr/empty").touch()
    (root / "usr/bin").chmod(0o555)
    about = {"name": name, "digest": digest_of(entries_of(root)), "made": f"202{number}-01-01"}
    (root.parent / RECORD).write_text(json.dumps(about))
    return NativeTools(root=root, **about)


def carried(folder: Path, tools: NativeTools, entries: list[Entry]) -> Home:
    """The home that is filled from an archive with these tools."""
    inputs, home = Inputs(contents=ArchiveContents()), Home(path=folder / "other")
    add_native(inputs, tools, entries)
    inputs.add_index()
    write_archive(folder / "site.tar", inputs.contents)
    repository, index = index_of_inputs(opened(folder / "site.tar"))
    [carried_tools] = inputs_of(repository, index)
    assert len(carried_tools.files) == 2
    assert carried_tools.size == len("program 1")
    fill_home(repository, [carried_tools], home)
    return home


def test_they_are_the_same_in_another_home(tmp_path: Path) -> None:
    tools = put_tools(tmp_path / "native")
    entries = entries_of(tools.root)
    before = os.umask(0o077)
    try:
        home = carried(tmp_path, tools, entries)
    finally:
        os.umask(before)
    [there] = stored_tools(home.native)
    assert (there.name, there.digest, there.made) == (tools.name, tools.digest, tools.made)
    assert digest_of(entries_of(there.root)) == tools.digest
    assert there.root.stat().st_mode & 0o777 == there.root.parent.stat().st_mode & 0o777 == 0o755
    assert (there.root / "usr/bin/sh").readlink() == Path("bash")
    assert [one for one in home.native.iterdir() if "partial" in one.name] == []
    (there.root / "usr/bin/bash").write_text("another")
    carried(tmp_path, tools, entries)  # what is not as it was signed is replaced
    assert digest_of(entries_of(there.root)) == tools.digest
    (there.root.parent / RECORD).unlink()
    carried(tmp_path, tools, entries)  # tools without a record are found by nobody
    assert [one.digest for one in stored_tools(home.native)] == [tools.digest]


def test_offline_the_newest_of_a_release_are_lent(tmp_path: Path) -> None:
    put_tools(tmp_path, 1)
    newest = put_tools(tmp_path, 3)
    put_tools(tmp_path, 2)
    put_tools(tmp_path, 5, name="bookworm-ppc64le")
    os.utime(newest.root.parent / RECORD, (0, 0))
    assert newest_tools(base(), "ppc64le", store=tmp_path) == newest
    assert (newest.root.parent / RECORD).stat().st_mtime > 0  # so `gc` leaves them
    assert newest_tools(base(), "aarch64", store=tmp_path) is None


CHANGES: dict[str, Callable[[str, int, str], Entry]] = {
    "mode": lambda path, mode, content: (path, mode ^ 0o1, content),
    "name": lambda path, mode, content: (path.replace("bin/sh", "bin/zh"), mode, content),
    "place": lambda path, mode, content: (path.replace("bin/sh", "../x"), mode, content),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_list_that_the_digest_is_not_of_is_refused(change: str, tmp_path: Path) -> None:
    tools = put_tools(tmp_path / "native")
    entries = [CHANGES[change](*entry) for entry in entries_of(tools.root)]
    with pytest.raises(WrongContent, match="not native tools"):
        carried(tmp_path, tools, entries)
    assert list((tmp_path / "other").rglob(RECORD)) == []


def test_those_of_an_image_are_in_its_archive(
    fake: Fake, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    tools = put_tools(Home.of_environment().native)
    project, target = project_on(tmp_path, fake, push(fake)), tmp_path / "site.tar"
    [path] = project.glob("out/*/manifest.json")
    manifest = json.loads(path.read_text())
    manifest["inputs"]["native_tools"] = tools.digest
    path.write_text(json.dumps(manifest))
    assert bundled(project, target, "--dry-run", "--json") == 0, capsys.readouterr().err
    [told] = json.loads(capsys.readouterr().out)["native_tools"]
    assert told == {"name": tools.name, "digest": tools.digest, "bytes": len("program 1")}
    assert bundled(project, target) == 0
    assert "  native tools trixie-ppc64le  0.0 MB" in capsys.readouterr().out
    (tools.root / "usr/more").touch()
    assert bundled(project, target) == 4
    error = capsys.readouterr().err
    assert "its native tools are not in the store, or were changed" in error
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "other"))
    assert into_home(target, policy) == 0
    assert "0 packages, native tools trixie-ppc64le in " in capsys.readouterr().out


BAD: dict[str, Any] = {
    "no list": {"usr": 1},
    "no entry": [["usr", FOLDER]],
    "no mode": [["usr", True, ""]],
    "a path that leads out": [["..", FOLDER, ""]],
    "a path that leads out later": [["usr", FOLDER, ""], ["usr/../..", FOLDER, ""]],
    "an absolute path": [["/etc", FOLDER, ""]],
    "an empty path": [["", FOLDER, ""]],
    "a path without its folder": [["usr/bin", FOLDER, ""]],
    "a path through a link": [["usr", LINK, "/etc"], ["usr/passwd", FILE, "0" * 64]],
    "a path through a file": [["usr", FILE, "0" * 64], ["usr/passwd", FILE, "0" * 64]],
    "a path twice": [["usr", LINK, "/etc"], ["usr", FOLDER, ""]],
    "a path that ends early": [["usr\0", FOLDER, ""]],
    "a device": [["null", 0o020666, "0"]],
    "a program of root's": [["su", 0o104755, "0" * 64]],
    "a link to nowhere": [["usr", LINK, ""]],
    "a folder with a content": [["usr", FOLDER, "0" * 64]],
}


@pytest.mark.parametrize("name", BAD)
def test_what_leads_elsewhere_is_no_list(name: str) -> None:
    with pytest.raises(ValueError, match=r"^not a"):
        read_entries(BAD[name])


def test_what_is_carried_can_be_read(tmp_path: Path) -> None:
    tools = put_tools(tmp_path)
    entries = entries_of(tools.root)
    assert read_entries(json.loads(json.dumps(entries))) == entries

    def none(sha256: str, path: Path) -> None:
        raise OSError(f"{sha256} {path}")

    with pytest.raises(OSError, match="usr/bin/bash"):
        put_together(entries, tmp_path / "other", none)
