"""`build-images lock` and `fetch`, and builds' way to the store: everything but the network."""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from samples import ROOT

from builder.build import inputs
from builder.cli import main
from builder.host import doctor
from builder.model import LockedSource
from builder.sources.download import Downloader, Fetched, NotFetched, digest_of
from builder.system.terminal import Progress

Capture = pytest.CaptureFixture[str]

UP = "https://upstream.example"
LIBRARY = """\
recipe: library
version: "1.0"
about: a library from source
sources:
  one: [{up}/gone-1.0.tar.gz, {up}/one-1.0.tar.gz]
development:
  - generic_autotools: {{url: "{{{{ sources.one.url }}}}", prefix: /opt/one}}
  - generic_cmake: {{url: {up}/two-2.0.tar.gz, prefix: /opt/two}}
  - generic_cmake: {{repository: {up}/three.git, branch: v3, prefix: /opt/three}}
  - generic_cmake: {{repository: {up}/four.git, commit: 0123abc, prefix: /opt/four}}
"""


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Commands set handlers for these."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Network(Downloader):
    """What upstream serves now, by file name."""

    files: dict[str, bytes]

    def fetch(self, url: str, target: Path, **_: Any) -> Fetched:
        name = url.removeprefix(f"{UP}/")
        if name not in self.files:
            raise NotFetched("upstream.example answers 404 Not Found")
        target.write_bytes(self.files[name])
        return digest_of(target)


@pytest.fixture(name="upstream")
def fake_upstream(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    files = {"one-1.0.tar.gz": b"one", "two-2.0.tar.gz": b"two"}
    monkeypatch.setattr(Network, "files", files, raising=False)
    monkeypatch.setattr(inputs, "Downloader", Network)
    return files


@pytest.fixture(name="project")
def small_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the shipped project with one more recipe, and a home of its own."""
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    folder = tmp_path / "project"
    (folder / "recipes").mkdir(parents=True)
    for name in ("base-images", "tests"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "recipes" / "library.yaml").write_text(LIBRARY.format(up=UP))
    (folder / "matrix.yaml").write_text(
        "axes: {arch: [x86_64, ppc64le], base: [debian13], cuda: [none], mpi: [none]}\n"
        "default: {arch: [x86_64]}\n"
        "inherit: false\n"
    )
    return folder


def run(project: Path, *words: str) -> int:
    return main([*words, "--project", str(project)])


def empty_store(folder: Path) -> None:
    for path in (folder / "home/sources/sha256").iterdir():
        path.unlink()


def test_lock_then_fetch_then_spec(
    project: Path, upstream: dict[str, bytes], capsys: Capture, tmp_path: Path
) -> None:
    assert run(project, "lock", "--check") == 0
    lacking = "2 sources and 0 base images are not locked yet"
    assert capsys.readouterr().out == f"lock.yaml matches the recipes; {lacking}\n"
    assert run(project, "lock", "--quiet") == 0
    assert capsys.readouterr().out.splitlines() == [
        "lock.yaml: 2 sources; 2 new, 0 changed, 0 removed",
        "lock.yaml: 0 base images; 0 new, 0 changed, 0 removed",
        f"not lockable: library clones {UP}/three.git without a commit: it can change at any time",
        f"not lockable: library clones {UP}/four.git at commit 0123abc",
    ]
    text = (project / "lock.yaml").read_text()
    assert f"{UP}/one-1.0.tar.gz" in text
    assert "gone-1.0" not in text
    assert run(project, "lock", "--check") == 0
    assert capsys.readouterr().out == "lock.yaml matches the recipes\n"
    assert run(project, "lock", "--check", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"unlocked": [], "unpinned": []}
    upstream.clear()
    assert run(project, "lock", "--quiet") == 0
    assert (project / "lock.yaml").read_text() == text
    capsys.readouterr()
    assert run(project, "fetch", "--offline", "--json", "--quiet") == 0
    store = tmp_path / "home/sources"
    assert json.loads(capsys.readouterr().out) == {
        f"{UP}/{name}.tar.gz": str(store / "sha256" / hashlib.sha256(content).hexdigest())
        for name, content in (("one-1.0", b"one"), ("two-2.0", b"two"))
    }
    assert run(project, "fetch", "--offline", "--quiet") == 0
    assert capsys.readouterr().out == f"2 sources, 0.0 MB, in {store}\n"
    assert run(project, "spec", "--output", str(tmp_path / "specs")) == 0
    copied = {path.name: path.read_bytes() for path in tmp_path.glob("specs/*/files/sources/*/*")}
    assert copied == {"one-1.0.tar.gz": b"one", "two-2.0.tar.gz": b"two"}


def test_the_progress_of_large_files_is_told_by_quarters(capsys: Capture) -> None:
    told = inputs.DownloadProgress(Progress())
    large, small = (
        LockedSource(url=f"{UP}/{name}", file=name, sha256="0" * 64, size=size)
        for name, size in (("large", 20_000_001), ("small", 20_000_000))
    )
    for part in (0, 4_000_000, 5_000_001, 5_000_002, 10_000_001, 19_999_999, 20_000_000):
        told(large, part)
        told(small, part)
    told(large, 20_000_001)
    told(large, 20_000_009)
    assert [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "large: 0 % of 20.0 MB",
        "small: 0 % of 20.0 MB",
        "large: 25 % of 20.0 MB",
        "large: 50 % of 20.0 MB",
        "large: 75 % of 20.0 MB",
        "small: 100 % of 20.0 MB",
        "large: 100 % of 20.0 MB",
    ]


def test_a_changed_file_is_refused_until_it_is_accepted(
    project: Path, upstream: dict[str, bytes], capsys: Capture, tmp_path: Path
) -> None:
    assert run(project, "lock", "--quiet") == 0
    before = (project / "lock.yaml").read_text()
    empty_store(tmp_path)
    upstream["two-2.0.tar.gz"] = b"TWO"
    assert run(project, "fetch", "--quiet") == 5
    said = capsys.readouterr().err
    assert f"{UP}/two-2.0.tar.gz: the file differs from the locked one:" in said
    assert said.count("sha256 ") == 2
    assert (project / "lock.yaml").read_text() == before
    assert run(project, "lock", "--update", "--quiet", "--json") == 0
    written = json.loads(capsys.readouterr().out)
    assert written["references"] == []
    assert [(one["url"], one["size"]) for one in written["sources"]] == [
        (f"{UP}/one-1.0.tar.gz", 3),
        (f"{UP}/two-2.0.tar.gz", 3),
    ]
    assert run(project, "fetch", "--quiet") == 0


@pytest.mark.usefixtures("upstream")
def test_offline_names_what_is_missing_and_asks_nobody(
    project: Path, capsys: Capture, tmp_path: Path
) -> None:
    assert run(project, "lock", "--quiet") == 0
    empty_store(tmp_path)
    assert run(project, "fetch", "--offline", "--quiet") == 4
    said = capsys.readouterr().err
    assert f"one-1.0.tar.gz ({UP}/one-1.0.tar.gz), sha256 " in said
    assert f"two-2.0.tar.gz ({UP}/two-2.0.tar.gz), sha256 " in said
    assert str(tmp_path / "home" / "sources") in said


def test_what_could_be_locked_is_written(
    project: Path, upstream: dict[str, bytes], capsys: Capture
) -> None:
    del upstream["two-2.0.tar.gz"]
    assert run(project, "lock", "--quiet") == 4
    said = capsys.readouterr().err
    assert "1 thing could not be locked; the rest is written:" in said
    assert f"{UP}/two-2.0.tar.gz (library)" in said
    assert "name a mirror (sources: [URL] in site.yaml)" in said
    assert "one-1.0.tar.gz" in (project / "lock.yaml").read_text()
    assert run(project, "lock", "--check") == 2
    assert "its source https://upstream.example/two-2.0.tar.gz" in capsys.readouterr().err
    assert run(project, "spec", "--output", str(project / "specs")) == 2
    assert "is not in lock.yaml, but other sources" in capsys.readouterr().err


def test_the_shipped_lock_matches_the_shipped_recipes(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails: build-images lock."""
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path))
    assert main(["lock", "--check", "--project", str(ROOT)]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.startswith("lock.yaml matches the recipes")


def test_a_lock_that_does_not_match_is_a_fault(
    project: Path, upstream: dict[str, bytes], capsys: Capture
) -> None:
    assert run(project, "lock", "--quiet") == 0
    recipe = project / "recipes" / "library.yaml"
    recipe.write_text(recipe.read_text().replace("two-2.0", "two-2.1"))
    assert run(project, "lock", "--check") == 2
    said = capsys.readouterr().err
    assert "recipes/library.yaml:1: its source https://upstream.example/two-2.1.tar.gz" in said
    assert "two-2.0.tar.gz: library does not use it" in said
    upstream["two-2.1.tar.gz"] = b"2.1"
    assert run(project, "lock", "--quiet") == 0
    assert "2 sources; 1 new, 0 changed, 1 removed" in capsys.readouterr().out


@pytest.mark.usefixtures("upstream")
def test_a_lock_for_a_recipe_that_is_gone_is_a_fault_that_lock_mends(
    project: Path, capsys: Capture
) -> None:
    assert run(project, "lock", "--quiet") == 0
    old, new = (project / "recipes" / f"{name}.yaml" for name in ("library", "other"))
    new.write_text(old.read_text().replace("recipe: library", "recipe: other"))
    old.unlink()
    assert run(project, "plan") == 2
    assert 'is locked for an unknown recipe: "library"' in capsys.readouterr().err
    assert run(project, "lock", "--quiet") == 0
    assert run(project, "plan") == 0


@pytest.mark.usefixtures("upstream")
def test_a_build_offline_is_refused_before_anything_is_built(
    project: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run(project, "lock", "--quiet") == 0
    empty_store(tmp_path)
    monkeypatch.setattr(doctor, "require", lambda *_, **__: None)
    assert run(project, "build", "--offline", "--quiet") == 4
    assert "2 sources are not in the store" in capsys.readouterr().err
    assert not list((project / "out").glob("*/*"))
