"""Inputs that are loaded into a home in which something is already."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest
from test_bundle import (  # noqa: F401 - fixtures
    HOST,
    _own_home,
    a_policy,
    made_once,
    one_archive,
)

from builder.bundle import Contents, opened, write_archive
from builder.bundle.filling import Input, fill_home, index_of_inputs, inputs_of
from builder.bundle.inputs import Build, Inputs, add_inputs
from builder.bundle.layout import Repository
from builder.cli import main
from builder.home import Home
from builder.journals import Given, Journals
from builder.registry import WrongContent

SIGNED, OTHER = b"what was signed", b"of the same size"[: len(b"what was signed")]
SHA256 = hashlib.sha256(SIGNED).hexdigest()


def archive_of(
    folder: Path, *, file: str = "ab/x.deb", builds: int = 1
) -> tuple[Repository, list[Input]]:
    """The inputs of an archive: a source, and builds that were given the same file."""
    cache, source = folder / "packages", folder / "source"
    (cache / file).parent.mkdir(parents=True)
    (cache / file).write_bytes(SIGNED)
    source.write_bytes(SIGNED)
    given = [Given(url="http://mirror/x.deb", file=file)]
    names = [f"{number:032x}" for number in range(builds)]
    inputs = Inputs(
        sources={SHA256: source},
        builds={who: Build(who=who, given=given, cache=cache) for who in names},
    )
    contents = Contents()
    add_inputs(contents, inputs)
    write_archive(folder / "site.tar", contents)
    repository, index = index_of_inputs(opened(folder / "site.tar"))
    return repository, inputs_of(repository, index)


def test_a_file_of_the_same_size_is_replaced(tmp_path: Path) -> None:
    repository, inputs = archive_of(tmp_path)
    home = Home(path=tmp_path / "other")
    files = home.packages / "ab/x.deb", home.sources / "sha256" / SHA256
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_bytes(OTHER)
    fill_home(repository, inputs, home)
    assert [file.read_bytes() for file in files] == [SIGNED, SIGNED]
    before = [file.stat().st_ino for file in files]
    fill_home(repository, inputs, home)
    assert [file.stat().st_ino for file in files] == before


def test_an_answer_is_named_by_what_it_holds(tmp_path: Path) -> None:
    home = Home(path=tmp_path / "other")
    fill_home(*archive_of(tmp_path / "good", file=f"answers/{SHA256}"), home)
    assert (home.packages / "answers" / SHA256).read_bytes() == SIGNED
    repository, inputs = archive_of(tmp_path / "bad", file=f"answers/{'0' * 64}")
    with pytest.raises(WrongContent, match="it is not the answer answers/0000"):
        fill_home(repository, inputs, home)
    assert not (home.packages / "answers" / ("0" * 64)).exists()


def test_builds_that_share_a_file_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two loads at once, of one build each: a file is never written by both."""
    repository, inputs = archive_of(tmp_path, builds=2)
    home = Home(path=tmp_path / "other")
    read, both = Repository.read_blob, threading.Barrier(2)
    met: list[str] = []

    def slow(self: Repository, wanted: object, path: Path, **more: object) -> None:
        try:
            both.wait(0.5)
            met.append(path.name)
        except threading.BrokenBarrierError:
            pass
        read(self, wanted, path, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Repository, "read_blob", slow)
    builds = [one for one in inputs if "build" in one.about]
    loads = [threading.Thread(target=fill_home, args=(repository, [one], home)) for one in builds]
    for load in loads:
        load.start()
    for load in loads:
        load.join()
    assert met == []
    assert (home.packages / "ab/x.deb").read_bytes() == SIGNED
    journals = Journals(cache=home.packages)
    assert all(journals.is_complete(str(one.about["build"])) for one in builds)


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_checkout_that_is_there_is_refused_first(
    kind: str, whole: Path, policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before it is looked whether the archive has inputs at all."""
    place = tmp_path / "project"
    if kind == "folder":
        place.mkdir()
    else:
        place.symlink_to("nowhere")
    words = ["load", str(whole), "--policy", str(policy), "--host", HOST, "--home", "--checkout"]
    assert main([*words, str(place)]) == 2
    assert f"{place} is there already" in capsys.readouterr().err
