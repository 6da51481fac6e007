"""What builds were given is noted, and given again offline; what is not known is said to be so."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import requests
from web_server import Answering, client, serving

from builder.sources.journals import (
    Journals,
    ServedFile,
    as_build,
    build_id,
    is_file,
    key_of,
    pip_as_build,
)
from builder.sources.package_cache import PackageCache
from builder.sources.package_proxy import package_cache, via

ONE, OTHER = build_id("localhost/build-images/stage:1"), build_id("localhost/build-images/stage:2")


class Mirror(Answering):
    """Serves what its contents are now, under every name."""

    content: ClassVar[bytes] = b""

    def get(self) -> None:
        status = 404 if "missing" in self.path else 200
        self.answer(Mirror.content, status, Content_Type="text/plain")


@pytest.fixture(name="mirror")
def a_mirror() -> Iterator[str]:
    with serving(Mirror) as url:
        yield url


def get(cache: PackageCache, mirror: str, path: str, who: str) -> requests.Response:
    return client(as_build(cache.url, who)).get(f"{mirror}{path}", timeout=10)


def noted(folder: Path, server: str, who: str, content: bytes) -> None:
    """A build that is given an index, a package, and no translation."""
    Mirror.content = content
    with package_cache(folder) as cache:
        cache.journals.begin(who, fresh=True)
        for path in ("/InRelease", "/a.deb", "/missing"):
            get(cache, server, path, who)
        cache.journals.end(who, built=["0123456789a"], taken=(), well=True)


def test_a_build_is_given_the_same_again(tmp_path: Path, mirror: str) -> None:
    noted(tmp_path, mirror, ONE, b"yesterday")
    Mirror.content = b"today"
    index = f"answers/{hashlib.sha256(b'yesterday').hexdigest()}"
    package = hashlib.sha256(f"{mirror}/a.deb".encode()).hexdigest()[:24]
    text = (tmp_path / "journals" / f"{ONE}.jsonl").read_text()
    assert [json.loads(line) for line in text.splitlines()] == [
        {"complete": False},
        {"file": index, "kind": "text/plain", "url": f"{mirror}/InRelease"},
        {
            "file": f"{package[:2]}/{package}-a.deb",
            "kind": "text/plain",
            "url": f"{mirror}/a.deb",
        },
        {"complete": True, "built": ["0123456789a"], "alone": True},
    ]
    with package_cache(tmp_path, offline=True) as cache:
        again = get(cache, mirror, "/InRelease", ONE)
        assert (again.content, again.headers["Content-Type"]) == (b"yesterday", "text/plain")
        assert get(cache, mirror, "/a.deb", ONE).content == b"yesterday"
        assert get(cache, mirror, "/InRelease", OTHER).content == b"today"
        assert get(cache, mirror, "/InRelease", "run").content == b"today"
    with package_cache(tmp_path) as cache:
        assert get(cache, mirror, "/InRelease", ONE).content == b"today"


def test_where_no_server_answers_the_last_that_was_noted_counts(
    tmp_path: Path,
) -> None:
    with serving(Mirror) as mirror:
        noted(tmp_path, mirror, ONE, b"yesterday")
    with package_cache(tmp_path, offline=True) as cache:
        for who in (ONE, OTHER):
            assert get(cache, mirror, "/InRelease", who).content == b"yesterday"
            assert get(cache, mirror, "/missing", who).status_code == 404
    with package_cache(tmp_path) as cache:
        assert get(cache, mirror, "/InRelease", ONE).status_code == 502


def test_what_is_for_one_client_alone_is_not_noted(tmp_path: Path, mirror: str) -> None:
    Mirror.content = b"secret"
    with package_cache(tmp_path) as cache:
        session = client(as_build(cache.url, ONE))
        for header in ("Authorization", "Cookie", "Range"):
            session.get(f"{mirror}/x", headers={header: "x"}, timeout=10)
        get(cache, mirror, "/x", "run")
        assert cache.journals.of(ONE) == {}
        assert not (tmp_path / "answers").exists()


def test_a_build_that_takes_up_a_layer_has_what_that_was_given(tmp_path: Path) -> None:
    journals = Journals(cache=tmp_path)
    journals.begin(ONE, fresh=True)
    journals.note(ONE, [ServedFile(url="http://x/a", file="answers/a")])
    journals.end(ONE, built=["aaaaaaaaaaa"], taken=(), well=True)
    journals.begin(OTHER, fresh=True)
    journals.end(OTHER, built=["bbbbbbbbbbb"], taken=["aaaaaaaaaaa"], well=True)
    assert journals.is_complete(OTHER)
    assert journals.of(OTHER) == journals.of(ONE)
    third = build_id("third")
    journals.begin(third, fresh=True)
    journals.end(third, built=(), taken=["ccccccccccc"], well=True)
    assert not journals.is_complete(third)  # nobody knows what that layer was given


def test_an_index_that_changed_between_two_builds_makes_none_complete(tmp_path: Path) -> None:
    journals = Journals(cache=tmp_path)
    for who, file, taken in ((ONE, "answers/a", []), (OTHER, "answers/b", ["aaaaaaaaaaa"])):
        journals.begin(who, fresh=True)
        journals.note(who, [ServedFile(url="http://x/InRelease", file=file)])
        built = ["bbbbbbbbbbb"] if taken else ["aaaaaaaaaaa"]
        journals.end(who, built=built, taken=taken, well=True)
    assert journals.is_complete(ONE)
    assert not journals.is_complete(OTHER)
    for age, who in enumerate((OTHER, ONE)):
        os.utime(journals.path(who), (0, 9 - age))
    newest = [files["http://x/InRelease"].file for files in journals.newest_first()]
    assert newest == ["answers/b", "answers/a"]


def test_only_builds_have_journals(tmp_path: Path) -> None:
    journals = Journals(cache=tmp_path / "packages")
    for name in ("run", "../x"):
        journals.note(name, [ServedFile(url="http://x/a", file="answers/a")])
    assert list(tmp_path.iterdir()) == []
    journals.note(ONE, [ServedFile(url="http://x/a", file="answers/a")])
    journals.path(ONE).rename(journals.path("../x"))
    assert journals.of("../x") == {}


def test_what_was_cut_short_is_not_complete(tmp_path: Path) -> None:
    journals = Journals(cache=tmp_path)
    journals.begin(ONE, fresh=True)
    assert not journals.is_complete(ONE)
    journals.end(ONE, built=["aaaaaaaaaaa"], taken=(), well=False)
    assert not journals.is_complete(ONE)
    journals.note(ONE, [ServedFile(url="http://x/a", file="answers/a")])
    with journals.path(ONE).open("a") as file:
        file.write('{"built": [3, []]}\n{"url": "http://x/c", "file": "../../c"}\n')
        file.write('{"url": "http://x/b", "fi')
    assert list(journals.of(ONE)) == ["http://x/a"]
    journals.end(ONE, built=["aaaaaaaaaaa"], taken=(), well=False)
    assert not journals.is_complete(ONE)


@pytest.mark.parametrize(
    ("path", "good"),
    [
        ("answers/0a", True),
        ("0a/0a-x_1.0.deb", True),
        ("../x", False),
        ("answers/../../x", False),
        ("answers/.x", False),
        ("/etc/x", False),
        ("journals/x", False),
    ],
)
def test_which_paths_a_journal_may_name(path: str, *, good: bool) -> None:
    assert is_file(path) is good


def test_pip_is_known_as_a_build(tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("index-url = http://run:key@127.0.0.1:1/via/x\n")
    for _ in range(2):  # each engine's steps
        own = pip_as_build(str(tmp_path), ONE)
    key = key_of("key", ONE)
    assert (own / "pip.conf").read_text() == f"index-url = http://{ONE}:{key}@127.0.0.1:1/via/x\n"


def test_a_build_is_known_by_a_key_of_its_own(tmp_path: Path, mirror: str) -> None:
    """A step that takes another build's name writes into no journal but its own."""
    with package_cache(tmp_path) as cache:
        mine = as_build(cache.url, ONE)
        key = mine.partition(f"{ONE}:")[2].partition("@")[0]
        assert cache.secret not in mine
        assert get(cache, mirror, "/a.deb", ONE).status_code == 200
        for name in (OTHER, "run", "", "x"):
            proxy = cache.url.replace(f"run:{cache.secret}", f"{name}:{key}")
            assert client(proxy).get(f"{mirror}/b.deb", timeout=10).status_code == 407
        assert cache.journals.of(ONE)
        assert not cache.journals.of(OTHER)
        index = via(f"{mirror}/c.whl", as_build(cache.url, OTHER))  # as pip's configuration has it
        assert client(mine).get(index, timeout=10).status_code == 200
        assert cache.journals.of(OTHER)


@pytest.mark.parametrize("content", [b"content", b""])
def test_an_answer_is_noted_before_it_has_ended(
    content: bytes, tmp_path: Path, mirror: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build that ends with its last download is noted in full, on a slow disk, too."""
    note = Journals.note

    def slowly(journals: Journals, who: str, given: Iterable[ServedFile]) -> None:
        time.sleep(0.2)
        note(journals, who, given)

    monkeypatch.setattr(Journals, "note", slowly)
    monkeypatch.setattr(Mirror, "content", content)
    with package_cache(tmp_path) as cache:
        for who in (ONE, OTHER):  # from the mirror, and from the cache
            assert get(cache, mirror, "/a.deb", who).content == content
            assert cache.journals.of(who)
    assert cache.fetched == 1


def test_what_is_replaced_stays_until_the_new_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ends `load --home`, a build is given what was noted of it, or the new."""
    journals = Journals(cache=tmp_path)
    old, new = (
        ServedFile(url="http://mirror/x", file=f"ab/{one}") for one in ("old.deb", "new.deb")
    )
    journals.replace(ONE, [old])
    journals.note_index("http://old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            journals.replace(ONE, [new])
        with pytest.raises(KeyboardInterrupt):
            journals.note_index("http://new")
    assert journals.is_complete(ONE)
    assert journals.of(ONE) == {old.url: old}
    assert journals.index == "http://old"
    journals.replace(ONE, [new])
    assert journals.is_complete(ONE)
    assert journals.of(ONE) == {new.url: new}


def _interrupted(_handle: int) -> None:
    raise KeyboardInterrupt
