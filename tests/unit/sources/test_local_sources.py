"""Files of the project that images are made from: archives that nobody may pass on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from samples import alone, block, image, recipe

from builder.artifacts.sbom import source_components
from builder.compile.spec import block_faults, compile_spec, downloads_of
from builder.compile.spec.downloads import Asked
from builder.load.document import Faults, parse
from builder.load.lock import source_url
from builder.model import BlockUse, Lock, LockedSource, PlannedImage
from builder.model.errors import BadInput
from builder.sources.download import Downloader
from builder.sources.locking import Locking, SourceRequest, lock_sources
from builder.sources.store import Changed, SourceStore, Unfetched

URL = "local:archives/pgilinux-2019-1910-x86-64.tar.gz"
CONTENT = b"an archive"
PGI = {"eula": True}
PLACE = "files/sources/abababababab/pgilinux-2019-1910-x86-64.tar.gz"


def entry(**changes: Any) -> LockedSource:
    made = LockedSource(
        url=URL, file=URL.rpartition("/")[2], sha256="ab" * 32, size=7, recipes=("core",)
    )
    return dataclasses.replace(made, **changes)


def planned(root: Path, lock: Lock, *uses: BlockUse, **parts: Any) -> PlannedImage:
    return image(root, recipes=[recipe("core", development=uses, **parts)], lock=lock)


def project_with_archive(root: Path) -> Path:
    folder = root / "a project"
    (folder / "archives").mkdir(parents=True)
    (folder / URL.removeprefix("local:")).write_bytes(CONTENT)
    return folder


def locking(root: Path, project: Path) -> Locking:
    def resolve(url: str) -> LockedSource:
        raise Unfetched(url)

    store = SourceStore(path=root / "store", layers=alone(project))
    return Locking(store=store, downloader=Downloader(), resolve=resolve)


def test_it_is_locked_and_stored_by_its_checksum(tmp_path: Path) -> None:
    project = project_with_archive(tmp_path)
    how = locking(tmp_path, project)
    [found], _ = lock_sources([SourceRequest(urls=(URL,), recipes=("core",))], Lock(), how)
    assert (found.url, found.size) == (URL, len(CONTENT))
    assert how.store.place(found.sha256).read_bytes() == CONTENT
    again = SourceStore(path=tmp_path / "other", layers=alone(project))
    assert again.ensure(found, downloader=Downloader(), offline=True).read_bytes() == CONTENT


def test_another_file_in_its_place_is_refused(tmp_path: Path) -> None:
    store = SourceStore(path=tmp_path / "store", layers=alone(project_with_archive(tmp_path)))
    with pytest.raises(Changed) as caught:
        store.ensure(entry(), downloader=Downloader())
    assert "the file differs from the locked one" in str(caught.value)


def test_one_that_is_not_there_is_named(tmp_path: Path) -> None:
    for project, reason in ((tmp_path, "No such file"), (None, "no URL to fetch it from")):
        layers = alone(project) if project else None
        store = SourceStore(path=tmp_path / "store", layers=layers)
        with pytest.raises(Unfetched, match=rf"archives/pgilinux-2019-1910-.*\s.*{reason}"):
            store.ensure(entry(), downloader=Downloader())


@pytest.mark.parametrize("tarball", [URL, "{{ sources.pgi.url }}"])
def test_a_block_that_copies_it_is_given_the_locked_file(tmp_path: Path, tarball: str) -> None:
    lock = Lock(sources={URL: entry()})
    use = block("pgi", tarball=tarball, **PGI)
    spec = compile_spec(planned(tmp_path, lock, use, sources={"pgi": (URL,)}), run_checks="")
    target = "/usr/local/src/pgilinux-2019-1910-x86-64.tar.gz"
    assert f"COPY {PLACE} {target}\n" in spec.dockerfile
    assert f"%files\n    {PLACE} {target}\n" in spec.singularity
    for text in (spec.dockerfile, spec.singularity):
        assert f"tar -x -f {target}" in text
        assert "local:" not in text
        assert "/var/tmp" not in text  # Singularity hides it while it copies
    assert [one.in_context for one in spec.sources] == [PLACE]


def test_a_block_that_downloads_takes_it_by_its_url(tmp_path: Path) -> None:
    use = block(
        "generic_autotools", url=URL, directory="pgi", prefix="/usr/local/pgi", install=True
    )
    lock = Lock(sources={URL: entry()})
    text = compile_spec(planned(tmp_path, lock, use), run_checks="").dockerfile
    assert "| sha256sum -c -" in text
    assert "wget -q" not in text


def test_what_is_not_locked_yet_can_be_locked_and_not_built(tmp_path: Path) -> None:
    made = planned(tmp_path, Lock(), block("pgi", tarball=URL, **PGI))
    assert Asked(recipe="core", urls=(URL,)) in downloads_of([made]).asked
    with pytest.raises(BadInput) as caught:
        compile_spec(made, run_checks="")
    [fault] = caught.value.faults
    assert fault.problem == f"{URL} is not in lock.yaml: a file of the project needs its checksum"
    assert fault.valid == "run: build-images lock --recipe core"


def test_a_licence_is_a_file_of_the_project_as_well() -> None:
    use = block("intel_psxe", tarball=URL, license="licence.lic", eula=True)
    [fault] = block_faults(use)
    assert fault.problem == '"licence.lic" has no checksum'
    assert "local:PATH of a file in the project" in fault.valid


@pytest.mark.parametrize(
    "path", ["../secret", "/etc/passwd", "a/../../b", "a//b", ".git/config", ""]
)
def test_it_lies_below_the_projects_folder(path: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f'"local:{path}"\n')
    faults = Faults()
    node = parse(tmp_path / "a.yaml", "a.yaml", faults)
    assert node is not None
    source_url(node, faults)
    [fault] = faults.found
    assert "local:PATH for a file in the project's folder" in fault.valid


def test_the_bill_of_materials_names_no_place_to_fetch_it_from() -> None:
    [found] = source_components([entry()])
    assert not found.get("externalReferences")
    assert found["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]
