"""Inputs that are loaded into a home in which something is already."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from samples import compare_with_golden, private_file
from test_bundle import (  # noqa: F401 - fixtures
    HOST,
    PROOF,
    _own_home,
    a_policy,
)

from builder.build.native.files import digest_of, entries_of
from builder.build.native.tools import NativeTools
from builder.cli import main
from builder.distribute.bundle import ArchiveContents, opened, write_archive
from builder.distribute.bundle.contents import INPUTS
from builder.distribute.bundle.home import fill_home, index_of_inputs, inputs_of, write_project
from builder.distribute.bundle.inputs import Input, Inputs, add_build, add_native, input_file
from builder.distribute.bundle.layout import BundledRepository
from builder.model.digests import Descriptor
from builder.model.errors import BadInput
from builder.registry import WrongContent
from builder.registry.manifests import BASE, NATIVE, PACKAGES, PROJECT, REGISTRY_BASE, SOURCES
from builder.sources.journals import Journals, ServedFile
from builder.system.home import Home
from builder.trust.proof.attestations import proofs
from builder.trust.proof.keys import private_key

SIGNED, OTHER = b"what was signed", b"of the same size"[: len(b"what was signed")]
SHA256 = hashlib.sha256(SIGNED).hexdigest()


def archive_of(
    folder: Path, *, file: str = "ab/x.deb", builds: int = 1
) -> tuple[BundledRepository, list[Input]]:
    """The inputs of an archive: a source, and builds that were given the same file."""
    cache, source = folder / "packages", folder / "source"
    (cache / file).parent.mkdir(parents=True)
    (cache / file).write_bytes(SIGNED)
    source.write_bytes(SIGNED)
    given = [ServedFile(url="http://mirror/x.deb", file=file)]
    inputs = Inputs(contents=ArchiveContents())
    inputs.add(SOURCES, "", {"sources": [SHA256]}, {SHA256: input_file(source)})
    for number in range(builds):
        add_build(inputs, f"{number:032x}", given, Journals(cache=cache))
    return written(inputs, folder)


def written(inputs: Inputs, folder: Path) -> tuple[BundledRepository, list[Input]]:
    """The inputs as an archive has them."""
    inputs.add_index()
    write_archive(folder / "site.tar", inputs.contents)
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
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o644, 0o644]
    before = [file.stat().st_ino for file in files]
    fill_home(repository, inputs, home)
    assert [file.stat().st_ino for file in files] == before


def test_a_base_counts_if_it_is_the_one_that_was_signed(tmp_path: Path) -> None:
    archive = tmp_path / "debian13-x86_64.oci.tar"
    archive.write_bytes(SIGNED)
    record = {"name": "debian13", "arch": "x86_64", "digest": f"sha256:{'5' * 64}"}
    base = Inputs(contents=ArchiveContents())
    base.add(BASE, "", record, {archive.name: input_file(archive)})
    repository, inputs = written(base, tmp_path)
    home = Home(path=tmp_path / "other")
    there = home.bases / f"debian13-x86_64-{'5' * 12}"
    for before in (SIGNED, OTHER):  # whole, then damaged
        fill_home(repository, inputs, home)
        made = (there / "base.json").stat().st_ino
        (there / archive.name).write_bytes(before)
        fill_home(repository, inputs, home)
        assert ((there / "base.json").stat().st_ino == made) is (before == SIGNED)
        assert (there / archive.name).read_bytes() == SIGNED


def test_an_answer_is_named_by_what_it_holds(tmp_path: Path) -> None:
    home = Home(path=tmp_path / "other")
    fill_home(*archive_of(tmp_path / "good", file=f"answers/{SHA256}"), home)
    assert (home.packages / "answers" / SHA256).read_bytes() == SIGNED
    repository, inputs = archive_of(tmp_path / "bad", file=f"answers/{'0' * 64}")
    with pytest.raises(WrongContent, match="content differs from answers/0000"):
        fill_home(repository, inputs, home)
    assert not (home.packages / "answers" / ("0" * 64)).exists()


@pytest.mark.parametrize("given", [5, "ab", [None], [{"url": "http://m/x.deb"}], [{"file": 5}]])
def test_a_journal_of_another_shape_is_refused(given: object, tmp_path: Path) -> None:
    inputs = Inputs(contents=ArchiveContents())
    inputs.add(PACKAGES, "", {"build": "0" * 32, "given": given}, {})
    with pytest.raises(WrongContent, match="invalid line in a journal"):
        fill_home(*written(inputs, tmp_path), Home(path=tmp_path / "other"))


NO_JOURNAL, NO_SOURCE, NO_BASE = "not a build journal", "not a source", "not a base image"
NO_TOOLS, FULL = "not native tools", f"sha256:{'5' * 64}"


@pytest.mark.parametrize(
    ("kind", "about", "names", "why"),
    [
        (PACKAGES, {"build": "0" * 31, "given": []}, [], NO_JOURNAL),
        (PACKAGES, {"build": "0" * 32, "given": []}, ["ab/x.deb"], NO_JOURNAL),
        (SOURCES, {}, ["0" * 64], NO_SOURCE),
        (BASE, {"digest": FULL}, [], NO_BASE),
        (BASE, {"digest": FULL}, ["a.oci.tar", "b.oci.tar"], NO_BASE),
        (BASE, {"digest": FULL}, ["../a.oci.tar"], NO_BASE),
        (BASE, {"digest": "../x"}, ["a.oci.tar"], NO_BASE),
        (NATIVE, {"name": "a", "digest": FULL, "entries": [["../x", 0o40755, ""]]}, [], NO_TOOLS),
        (NATIVE, {"name": "a", "digest": FULL, "entries": []}, [], NO_TOOLS),
        (NATIVE, {"name": "a", "digest": digest_of([]), "entries": []}, [SHA256], NO_TOOLS),
        (NATIVE, {"name": "../a", "digest": digest_of([]), "entries": []}, [], NO_TOOLS),
    ],
)
def test_an_input_that_is_not_what_it_says_is_refused(
    kind: str, about: dict[str, object], names: list[str], why: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(SIGNED)
    inputs = Inputs(contents=ArchiveContents())
    inputs.add(kind, "", about, {name: input_file(tmp_path / "file") for name in names})
    with pytest.raises(WrongContent, match=why):
        fill_home(*written(inputs, tmp_path), Home(path=tmp_path / "other"))
    assert not [path for path in tmp_path.rglob("other/**/*") if path.is_file()]


def test_builds_that_share_a_file_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two loads at once, of one build each: a file is never written by both."""
    repository, inputs = archive_of(tmp_path, builds=2)
    home = Home(path=tmp_path / "other")
    read, both = BundledRepository.read_blob, threading.Barrier(2)
    met: list[str] = []

    def slow(self: BundledRepository, wanted: object, path: Path, **more: object) -> None:
        try:
            both.wait(0.5)
            met.append(path.name)
        except threading.BrokenBarrierError:
            pass
        read(self, wanted, path, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(BundledRepository, "read_blob", slow)
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


def some_inputs(folder: Path) -> Inputs:
    """A project's files, a source, native tools, and the packages of a build."""
    root = folder / "native/root"
    root.mkdir(parents=True)
    (folder / "packages/ab").mkdir(parents=True)
    for name in ("matrix.yaml", "source", "native/root/cc", "packages/ab/x.deb"):
        (folder / name).write_bytes(SIGNED)
        (folder / name).chmod(0o644)
    root.chmod(0o755)
    inputs = Inputs(contents=ArchiveContents())
    project = dict.fromkeys(("matrix.yaml", "recipes/x.yaml"), input_file(folder / "matrix.yaml"))
    inputs.add(PROJECT, "", {"files": sorted(project)}, project)
    inputs.add(SOURCES, "", {"sources": [SHA256]}, {SHA256: input_file(folder / "source")})
    entries = entries_of(root)
    made = NativeTools(root=root, name="trixie-ppc64le", digest=digest_of(entries), made="2026")
    add_native(inputs, made, entries)
    given = [ServedFile(url="http://mirror/x.deb", file="ab/x.deb")]
    add_build(inputs, "0" * 32, given, Journals(cache=folder / "packages"))
    return inputs


def test_inputs_are_written_as_other_clients_find_them(tmp_path: Path) -> None:
    """Of all kinds: docs/air-gap.md."""
    inputs, name = some_inputs(tmp_path), f"docker.io/library/sample@sha256:{'1' * 64}"
    file = {"x": input_file(tmp_path / "source")}
    about = {"key": "k", "digest": f"sha256:{'5' * 64}", "made": "2026", "name": "debian13"}
    inputs.add(BASE, "", {**about, "arch": "x86_64"}, file)
    about = {"name": name, "arch": "x86_64", "digest": f"sha256:{'1' * 64}"}
    inputs.add(REGISTRY_BASE, "", about, file)
    inputs.add_index()
    size, _ = write_archive(tmp_path / "site.tar", inputs.contents)
    assert size == (tmp_path / "site.tar").stat().st_size
    with tarfile.open(tmp_path / "site.tar") as tar:
        contents = {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]
    assert contents.pop(f"blobs/sha256/{SHA256}") == SIGNED
    documents = [f"{name[-64:]} {content.decode()}\n" for name, content in contents.items()]
    compare_with_golden("".join(documents), "inputs.txt")


def signed_archive(folder: Path) -> Path:
    """An archive of inputs, signed by the policy's key."""
    inputs = some_inputs(folder)
    index = inputs.add_index()
    image = Descriptor(media_type=index.media_type, digest=index.digest, size=index.size)
    key = private_key(str(private_file("cosign")), os.environ)
    time = "2026-01-01T00:00:00Z"
    proof = proofs(image, (), key, reference="inputs", created=time)
    inputs.contents.add_attached(INPUTS, proof)
    write_archive(folder / "inputs.tar", inputs.contents)
    return folder / "inputs.tar"


@pytest.mark.parametrize("name", ["/x", "../x", "a/../../x", ".", "a\0b"])
def test_a_file_of_a_project_that_leads_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(SIGNED)
    project = Inputs(contents=ArchiveContents())
    project.add(PROJECT, "", {"files": [name]}, {name: input_file(tmp_path / "file")})
    repository, inputs = written(project, tmp_path)
    with pytest.raises(WrongContent, match="not a project path"):
        write_project(repository, inputs, tmp_path / "project")


def checked_out(archive: Path, policy: Path, place: Path, *more: str) -> int:
    words = ["load", str(archive), "--policy", str(policy), "--host", HOST, "--home", "--checkout"]
    return main([*words, str(place), *more])


def _emptied(place: Path) -> None:
    shutil.rmtree(place)
    place.mkdir()


def _linked(place: Path) -> None:
    place.rename(place.with_name("elsewhere"))
    place.symlink_to("elsewhere")


OTHERS: dict[str, Callable[[Path], object]] = {
    "nothing": _emptied,
    "a file more": lambda place: (place / "site.yaml").touch(),
    "a file less": lambda place: (place / "matrix.yaml").unlink(),
    "another file": lambda place: (place / "matrix.yaml").write_bytes(OTHER),
    "a link to it": _linked,
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_folder_is_refused_before_anything_is_brought(
    name: str, policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, place = signed_archive(tmp_path), tmp_path / "project"
    assert checked_out(archive, policy, place) == 0
    shutil.rmtree(tmp_path / "home")
    OTHERS[name](place)
    assert checked_out(archive, policy, place) == 2
    assert f"{place} exists, and is not the project of this archive" in capsys.readouterr().err
    assert not (tmp_path / "home/sources").exists()


def test_a_checkout_that_a_killed_one_made_is_taken(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, place = signed_archive(tmp_path), tmp_path / "project"
    assert checked_out(archive, policy, place) == 0
    home = tmp_path / "home"
    counts = f"0 bases, 1 source, 1 package, native tools trixie-ppc64le in {home}"
    assert capsys.readouterr().out == f"{counts}\n2 files of the project in {place}\n"
    [tools] = home.glob("native/trixie-ppc64le-*")
    assert (tools / "root/cc").read_bytes() == SIGNED
    assert json.loads((tools / "native.json").read_text())["name"] == "trixie-ppc64le"
    (tmp_path / ".project.lock").touch()
    assert checked_out(archive, policy, place, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "home": str(home),
        "bases": 0,
        "sources": 1,
        "native": ["trixie-ppc64le"],
        "builds": 1,
        "packages": 1,
        "project": ["matrix.yaml", "recipes/x.yaml"],
    }
    assert (place / "recipes/x.yaml").read_bytes() == SIGNED
    assert not (tmp_path / ".project.lock").exists()


def test_an_archive_takes_the_place_of_no_device_pipe_or_folder(tmp_path: Path) -> None:
    """Root could put a file in the place of /dev/full."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(BadInput, match=r"a regular file\n  hint: name another file$"):
            write_archive(tmp_path / name, ArchiveContents())
    assert stat.S_ISFIFO((tmp_path / "pipe").lstat().st_mode)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["folder", "pipe"]
