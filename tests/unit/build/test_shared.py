"""What an administrator shares: found, taken as it is, and never written to."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_packages import CONTENT, Mirror
from test_store import FakeProcesses, ensured, fake_processes, own_keyrings  # noqa: F401 - fixtures
from web_server import client, serving

from builder.build.at_work import link_shared, name_shared
from builder.model.errors import BadInput, MissingPrerequisite
from builder.sources.journals import Journals, ServedFile
from builder.sources.package_proxy import package_cache
from builder.system.home import Home, shared_folder


@pytest.fixture(name="shared")
def folder_of_the_administrator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "opt"
    folder.mkdir(mode=0o755)
    monkeypatch.setenv("BUILD_IMAGES_SHARED", str(folder))
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    return folder


def contents(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


# ---- Which folder ----


def test_its_programs_come_after_the_users_own(shared: Path) -> None:
    home = Home.of_environment()
    assert home.shared == shared
    own, theirs, *_ = home.search_path().split(":")
    assert (own, theirs) == (str(home.tools), f"{shared}/tools/bin")


def test_what_is_where_in_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Homes are kept for years, and a site without a network copies folders of them by name."""
    home = Home(path=Path("/home"), shared=Path("/shared"))
    names = [name for name, value in vars(Home).items() if isinstance(value, property)]
    alike = ("bases", "native", "packages", "sources", "storage", "pulls", "work", "rehearsals")
    assert {name: str(getattr(home, name)) for name in names} == {
        "temporary": "/home/tmp",
        "tools": "/home/tools/bin",
        **{
            name: f"/home/{name}" for name in (*alike, "stages", "builders", "clusters", "projects")
        },
    }
    assert str(home.source("abc")) == "/home/sources/sha256/abc"
    monkeypatch.setenv("PATH", "/bin")
    system = "/usr/local/sbin:/usr/sbin:/sbin"
    assert home.search_path() == f"/home/tools/bin:/shared/tools/bin:/bin:{system}"


def test_a_home_is_not_shared_with_itself(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(shared))
    assert Home.of_environment().shared is None


def test_what_others_may_change_is_refused(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its programs would run as whoever builds."""
    for mode in (0o777, 0o775, 0o757):
        shared.chmod(mode)
        with pytest.raises(BadInput, match="users other than root can change its programs"):
            shared_folder()
    shared.chmod(0o755)
    assert shared_folder() == shared
    if os.geteuid() == 0:
        os.chown(shared, 12345, 0)
    else:
        monkeypatch.setattr("os.geteuid", lambda: 12345)
    with pytest.raises(BadInput):
        shared_folder()


def test_none_is_shared_where_none_is_named_or_there(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BUILD_IMAGES_SHARED")
    monkeypatch.setattr("builder.system.home.SHARED", str(shared))
    assert shared_folder() == shared
    shutil.rmtree(shared)
    assert shared_folder() is None
    monkeypatch.setenv("BUILD_IMAGES_SHARED", "")
    assert shared_folder() is None


def test_a_site_names_it_and_the_environment_overrules(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.yaml").write_text(f"shared: {tmp_path}/other\n")
    name_shared(tmp_path)
    assert os.environ["BUILD_IMAGES_SHARED"] == str(shared)
    monkeypatch.delenv("BUILD_IMAGES_SHARED")
    name_shared(tmp_path)
    assert os.environ.pop("BUILD_IMAGES_SHARED") == f"{tmp_path}/other"
    (tmp_path / "site.yaml").unlink()
    name_shared(tmp_path)
    assert "BUILD_IMAGES_SHARED" not in os.environ


@pytest.mark.parametrize(
    ("user", "variables", "home"),
    [
        (0, {"XDG_DATA_HOME": "/data", "HOME": "/root"}, "/var/lib/build-images"),
        (0, {"BUILD_IMAGES_HOME": "/chosen"}, "/chosen"),
        (7, {"XDG_DATA_HOME": "/data", "HOME": "/home/me"}, "/data/build-images"),
        (7, {"HOME": "/home/me"}, "/home/me/.local/share/build-images"),
    ],
)
def test_where_a_home_is(
    user: int, variables: dict[str, str], home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BUILD_IMAGES_HOME", "XDG_DATA_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"BUILD_IMAGES_SHARED": "", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("os.geteuid", lambda: user)
    assert str(Home.of_environment().path) == home


def test_a_user_without_a_home_is_asked_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BUILD_IMAGES_HOME", "XDG_DATA_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.geteuid", lambda: 7)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # a user id without a name
    with pytest.raises(
        MissingPrerequisite, match=r"no home folder\n  hint: set BUILD_IMAGES_HOME, or"
    ):
        Home.of_environment()
    monkeypatch.setenv("HOME", "rel")
    with pytest.raises(MissingPrerequisite, match=r"^HOME is a relative path: rel\n  hint: set"):
        Home.of_environment()


# ---- What is taken from it ----


def test_what_is_shared_is_linked_and_own_things_stay(shared: Path) -> None:
    home = Home.of_environment()
    for name in ("bases/a", "bases/b", "native/n", "sources/sha256/s"):
        (shared / name).mkdir(parents=True)
    (shared / "bases/.a.lock").touch()
    (home.bases / "b").mkdir(parents=True)
    (home.bases / "gone").symlink_to(shared / "bases/gone")
    before = contents(shared)
    link_shared(home)
    link_shared(home)
    assert (home.bases / "a").readlink() == shared / "bases/a"
    assert not (home.bases / "b").is_symlink()
    assert sorted(one.name for one in home.bases.iterdir()) == ["a", "b"]
    assert (home.native / "n").is_dir()
    assert (home.sources / "sha256/s").is_dir()
    assert contents(shared) == before


def test_a_shared_base_is_taken_and_a_newer_one_takes_the_links_place(
    shared: Path, processes: FakeProcesses
) -> None:
    home = Home.of_environment()
    theirs = ensured(processes, shared)
    before = contents(shared / "bases" / theirs.archive.parent.name)
    link_shared(home)
    taken = ensured(processes, home.path)
    taken.touch()
    assert taken.digest == theirs.digest
    assert len(processes.commands) == 1
    own = ensured(processes, home.path, not_before="9999-01-01T00:00:00+00:00")
    assert len(processes.commands) == 2
    assert own.digest != theirs.digest
    assert not own.archive.parent.is_symlink()
    assert contents(theirs.archive.parent).keys() == before.keys()
    assert ensured(processes, shared) == theirs


@pytest.fixture(name="mirror")
def a_mirror() -> Iterator[str]:
    with serving(Mirror, asked=[]) as url:
        yield url


def got(url: str, proxy: str) -> bytes:
    return client(proxy).get(url, timeout=10).content


def test_a_shared_package_is_not_fetched(shared: Path, tmp_path: Path, mirror: str) -> None:
    url = f"{mirror}/pool/a_1_amd64.deb"
    with package_cache(shared / "packages") as theirs:
        assert got(url, theirs.url) == CONTENT
    before = contents(shared)
    with package_cache(tmp_path / "packages", shared=shared / "packages") as cache:
        assert got(url, cache.url) == CONTENT
        assert (cache.taken, cache.fetched) == (1, 0)
    assert contents(shared).keys() == before.keys()
    assert list((tmp_path / "packages").glob("*/*.deb")) == []


def test_without_a_network_what_shared_builds_were_given_counts(
    shared: Path, tmp_path: Path
) -> None:
    """An administrator brings an archive by `load --home`, for all users."""
    given = ServedFile(url="http://m.example/InRelease", file="answers/abc")
    Journals(cache=shared).replace("0" * 32, [given])
    (shared / "answers").mkdir()
    (shared / "answers/abc").write_text("index")
    (shared / "journals/index").write_text("https://pypi.example/simple\n")
    with package_cache(tmp_path / "packages", offline=True, shared=shared) as cache:
        assert cache.noted("0" * 32, given.url) == given
        assert cache.newest(given.url) == given
        assert cache.journals.index == "https://pypi.example/simple"
        assert got(given.url, cache.url) == b"index"


def test_gc_leaves_what_is_shared(shared: Path) -> None:
    """And does not count it: it is not the user's to free."""
    from builder.build.garbage import _native  # noqa: PLC0415

    home = Home.of_environment()
    record = shared / "native/n/native.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({}))
    os.utime(record, (1, 1))
    link_shared(home)
    assert list(_native(home, since=10)) == []
