"""Files of a package index on loopback: found on its pages, locked, and fetched by their names."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from web_server import Answering, serving

from builder.artifacts.sbom import source_components
from builder.load.document import Faults, parse
from builder.load.lock import locked_source_url, source_url
from builder.model import Lock, LockedSource
from builder.sources.download import Downloader, NotFetched
from builder.sources.locking import Locking, SourceRequest, lock_sources
from builder.sources.package_index import PackageIndex
from builder.sources.store import Changed, SourceStore, Unfetched

URL = "wheel:nvidia-tool/13.0.88/x86_64"
X86_64 = "nvidia_tool-13.0.88-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"
AARCH64 = "nvidia_tool-13.0.88-py3-none-manylinux_2_27_aarch64.whl"
CP311 = "nvidia_tool-13.0.88-cp311-cp311-manylinux_2_28_x86_64.whl"
CP310 = "nvidia_tool-13.0.88-cp310-abi3-manylinux_2_28_x86_64.whl"
PURE = "nvidia_tool-13.2.1-py2.py3-none-any.whl"
SDIST = "nvidia_tool-13.0.88.tar.gz"
OTHERS = (
    "nvidia_tool-13.0.88-py3-none-win_amd64.whl",
    "nvidia_tool-13.0.88-cp311-cp311t-manylinux_2_28_x86_64.whl",
    "nvidia_tool-13.0.88-cp312-cp312-manylinux_2_28_x86_64.whl",
    *(CP310, CP311, PURE),
    "nvidia_tool-13.1.1-py3-none-manylinux_2_27_x86_64.whl",
    *(SDIST, "nvidia_tool-13.0.88.zip", "nvidia_tool-13.0.87.tar.gz"),
)
PAGE = "/simple/nvidia-tool/"


@dataclass
class Index:
    """An index with a page of one project; `rows` are its files, without what `drop` names."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    drop: str = ""
    yanked: str = ""  # the name of a file that its project has withdrawn
    at: str = "/files/"
    html: bool = False
    asked: list[tuple[str, str]] = field(default_factory=list)

    def page(self) -> bytes:
        if self.html:
            return b"<a href='/files/x.whl'>x.whl</a>"
        rows = [
            {
                "filename": name,
                "url": f"{self.at}{name}",
                "hashes": {"sha256": hashlib.sha256(content).hexdigest()},
                "size": len(content),
                "yanked": "a bad build" if name == self.yanked else False,
            }
            for name, content in self.files.items()
        ]
        kept = [{key: row[key] for key in row if key != self.drop} for row in rows]
        return json.dumps({"files": kept}).encode()


class Handler(Answering):
    told: Index

    def get(self) -> None:
        self.told.asked.append((self.path, self.headers.get("Accept", "")))
        name = self.path.rpartition("/")[2]
        if self.path == PAGE:
            self.answer(self.told.page())
        elif name in self.told.files:
            self.answer(self.told.files[name])
        else:
            self.send_error(404)


@pytest.fixture(name="index")
def package_index() -> Iterator[Index]:
    names = (X86_64, AARCH64, *OTHERS)
    told = Index(files={name: name.encode() for name in names})
    with serving(Handler, told=told) as told.url:
        yield told


def wheels(index: Index, folder: Path) -> PackageIndex:
    downloader = Downloader(wait=lambda _: None)
    return PackageIndex(url=f"{index.url}/simple", downloader=downloader, folder=folder)


def store(index: Index, folder: Path, *mirrors: str) -> SourceStore:
    return SourceStore(path=folder / "store", index=f"{index.url}/simple", mirrors=mirrors)


def entry(content: bytes = X86_64.encode()) -> LockedSource:
    sha256 = hashlib.sha256(content).hexdigest()
    return LockedSource(url=URL, file=X86_64, sha256=sha256, size=len(content))


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("wheel:nvidia-tool/13.0.88/x86_64", X86_64),
        ("wheel:nvidia-tool/13.0.88/aarch64", AARCH64),
        ("wheel:nvidia-tool/13.0.88/x86_64/cp311", CP311),
        ("wheel:nvidia-tool/13.0.88/x86_64/cp310", CP310),
        ("wheel:nvidia-tool/13.2.1/any", PURE),
        ("sdist:nvidia-tool/13.0.88", SDIST),
    ],
)
def test_the_file_of_a_release_is_found(index: Index, tmp_path: Path, url: str, name: str) -> None:
    found = wheels(index, tmp_path).resolve(url)
    assert (found.file, found.size) == (name, len(name))
    assert found.sha256 == hashlib.sha256(name.encode()).hexdigest()
    assert index.asked == [(PAGE, "application/vnd.pypi.simple.v1+json")]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("wheel:nvidia-tool/13.0.88/ppc64le", "has no wheel of it for ppc64le"),
        ("wheel:nvidia-tool/13.0.8/x86_64", "has no wheel of it for x86_64"),
        ("wheel:nvidia-tool/13.0.88/any", "has no wheel of it for any"),
        ("wheel:nvidia-tool/13.2.1/x86_64", "has no wheel of it for x86_64"),
        ("wheel:nvidia-tool/13.0.88/x86_64/cp39", "has no wheel of it for x86_64 and cp39"),
        ("sdist:nvidia-tool/13.1.1", "has no sdist of it"),
        ("wheel:unknown/13.0.88/x86_64", "404"),
    ],
)
def test_a_file_that_is_not_there_has_a_reason(
    index: Index, tmp_path: Path, url: str, reason: str
) -> None:
    with pytest.raises(NotFetched, match=reason):
        wheels(index, tmp_path).resolve(url)


@pytest.mark.parametrize(
    ("about", "reason"),
    [
        ({"drop": "hashes"}, "no wheel"),
        ({"drop": "size"}, "gives no size of nvidia_tool-"),
        ({"yanked": X86_64}, "no wheel"),
        ({"at": "file:///etc/"}, "no wheel"),
        ({"html": True}, "has no JSON page"),
    ],
)
def test_a_page_that_does_not_say_enough_is_not_used(
    index: Index, tmp_path: Path, about: dict[str, object], reason: str
) -> None:
    for name, value in about.items():
        setattr(index, name, value)
    with pytest.raises(NotFetched, match=reason):
        wheels(index, tmp_path).resolve(URL)


@pytest.mark.parametrize("about", [{"drop": "size"}, {"yanked": X86_64}])
def test_a_locked_wheel_is_fetched_all_the_same(
    index: Index, tmp_path: Path, about: dict[str, str]
) -> None:
    for name, value in about.items():
        setattr(index, name, value)
    place = store(index, tmp_path).ensure(entry(), downloader=Downloader())
    assert place.read_bytes() == X86_64.encode()


def test_a_lock_takes_the_checksum_of_the_page_and_fetches_nothing(
    index: Index, tmp_path: Path
) -> None:
    how = Locking(
        store=store(index, tmp_path),
        downloader=Downloader(),
        resolve=wheels(index, tmp_path).resolve,
    )
    requests = [
        SourceRequest(urls=(one,), recipes=("core",)) for one in (URL, f"{URL[:-6]}ppc64le")
    ]
    sources, [failure] = lock_sources(requests, Lock(), how)
    assert [(one.url, one.sha256, one.recipes) for one in sources] == [
        (URL, entry().sha256, ("core",))
    ]
    assert isinstance(failure, Unfetched)
    assert {path for path, _ in index.asked} == {PAGE}


def test_a_locked_wheel_is_fetched_by_its_name(index: Index, tmp_path: Path) -> None:
    place = store(index, tmp_path).ensure(entry(), downloader=Downloader())
    assert place.read_bytes() == X86_64.encode()
    assert [path for path, _ in index.asked] == [PAGE, f"/files/{X86_64}"]


def test_a_site_with_the_file_needs_no_index(index: Index, tmp_path: Path) -> None:
    near = store(Index(), tmp_path, f"{index.url}/files")
    near.ensure(entry(), downloader=Downloader())
    assert [path for path, _ in index.asked] == [f"/files/{X86_64}"]


def test_another_wheel_under_the_name_is_refused_and_the_index_not_named(
    index: Index, tmp_path: Path
) -> None:
    index.files[X86_64] = b"another"
    with pytest.raises(Changed) as caught:
        store(index, tmp_path).ensure(entry(), downloader=Downloader())
    assert f"{URL}: the file differs from the locked one" in str(caught.value)
    index.files.clear()
    with pytest.raises(Unfetched, match=f"the package index has no {X86_64}") as lost:
        store(index, tmp_path).ensure(entry(), downloader=Downloader())
    assert index.url.partition("//")[2] not in str(lost.value)


def test_without_an_index_it_is_said(tmp_path: Path) -> None:
    tmp_path.joinpath("store").mkdir()
    with pytest.raises(Unfetched, match="this machine's pip names no package index"):
        SourceStore(path=tmp_path / "store").ensure(entry(), downloader=Downloader())


def test_a_login_of_the_index_goes_to_its_own_server_alone(index: Index, tmp_path: Path) -> None:
    own = index.url.replace("//", "//user:secret@")
    for listed, place in (
        ("/files/", f"{own}/files/"),
        (f"{index.url}/files/", f"{own}/files/"),
        ("https://files.example/", "https://files.example/"),
    ):
        index.at = listed
        at = PackageIndex(url=f"{own}/simple", downloader=Downloader(), folder=tmp_path)
        assert at.file(URL).url == f"{place}{X86_64}"


@pytest.mark.parametrize(
    ("url", "valid", "in_lock"),
    [
        (URL, True, True),
        ("wheel:nvidia-tool/13.0.88/any", True, True),
        ("wheel:nvidia-tool/13.0.88/{{ arch }}/cp313", True, False),
        ("wheel:nvidia-tool/13.0.88/x86_64/313", False, False),
        ("wheel:nvidia-tool/13.0.88/{{ base }}", False, False),
        ("wheel:nvidia-tool/13.0.88/riscv64", False, False),
        ("wheel:nvidia-tool/13.0.88", False, False),
        ("wheel:../13.0.88/x86_64", False, False),
        ("sdist:nvidia-tool/13.0.88", True, True),
        ("sdist:nvidia-tool/13.0.88/x86_64", False, False),
        ("sdist:nvidia-tool", False, False),
        ("https://files.example/{{mpi.version}}.tgz", True, True),  # is text
    ],
)
def test_urls_of_files(tmp_path: Path, url: str, valid: bool, in_lock: bool) -> None:
    for read, is_read in ((source_url, valid), (locked_source_url, in_lock)):
        file, faults = tmp_path / "a.yaml", Faults()
        file.write_text(json.dumps(url))
        node = parse(file, "a.yaml", faults)
        assert node
        read(node, faults)
        assert bool(faults.found) is not is_read


def test_a_bill_of_materials_names_the_project_and_no_server() -> None:
    for url, file in ((URL, X86_64), (f"{URL}/cp311", CP311), ("sdist:nvidia-tool/13.0.88", SDIST)):
        source = dataclasses.replace(entry(), url=url, file=file)
        [found] = source_components([source])
        assert (found["name"], found["version"]) == ("nvidia-tool", "13.0.88")
        assert "externalReferences" not in found
