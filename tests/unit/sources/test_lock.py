"""Locking: what becomes of what images need, and what lock.yaml then says."""

from __future__ import annotations

import dataclasses
import hashlib
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from samples import alone, compare_with_golden

from builder.load.document import Faults
from builder.load.lock import read_lock
from builder.model import Lock, LockedSource
from builder.model.errors import Interrupted, MissingPrerequisite, Refused, StepFailed
from builder.sources.base_digests import (
    Registries,
    RegistryFails,
    RegistryUnreachable,
    pin_references,
    registry_of,
)
from builder.sources.debian import DebianSources
from builder.sources.download import Downloader, Fetched, NotFetched, digest_of
from builder.sources.locking import (
    Locking,
    SourceRequest,
    lock_sources,
    lock_text,
    merged,
    mismatches,
)
from builder.sources.store import SourceStore, Unfetched
from builder.system.process import Processes

ONE, TWO = "https://up.example/one-1.0.tar.gz", "https://up.example/two-2.0.tar.gz"
DEBIAN = "https://debian.example/debian"
DIGEST = "sha256:" + "ab" * 32


class FakeNetwork(Downloader):
    """Files by URL; what is not there cannot be reached."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__()
        self.files = files
        self.asked: list[str] = []

    def fetch(self, url: str, target: Path, **_: Any) -> Fetched:
        self.asked.append(url)
        if url not in self.files:
            target.write_bytes(b"a part")
            raise NotFetched("up.example cannot be reached: no network in unit tests")
        target.write_bytes(self.files[url])
        return digest_of(target)


def no_debian(url: str) -> LockedSource:
    raise Unfetched(f"{url}: no Debian here")


def locking(
    root: Path,
    network: FakeNetwork,
    *,
    update: bool = False,
    resolve: Callable[[str], LockedSource] = no_debian,
    mirrors: tuple[str, ...] = (),
    said: list[str] | None = None,
) -> Locking:
    return Locking(
        store=SourceStore(path=root, mirrors=mirrors, debian=DEBIAN),
        downloader=network,
        resolve=resolve,
        update=update,
        say=(said if said is not None else []).append,
    )


def wanted(*urls: str, recipes: tuple[str, ...] = ("core",)) -> SourceRequest:
    return SourceRequest(urls=urls, recipes=recipes)


def entry(url: str = ONE, content: bytes = b"old", **changes: Any) -> LockedSource:
    made = LockedSource(
        url=url,
        file=url.rpartition("/")[2],
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
        recipes=("core",),
    )
    return dataclasses.replace(made, **changes)


def test_a_new_source_is_fetched_and_kept(tmp_path: Path) -> None:
    sources, _ = lock_sources([wanted(ONE)], Lock(), locking(tmp_path, FakeNetwork({ONE: b"1"})))
    assert sources == [entry(content=b"1")]
    assert SourceStore(path=tmp_path).holds(sources[0])
    assert not list(tmp_path.glob(".*.new"))


def test_what_is_locked_stays_without_a_look_at_the_network(tmp_path: Path) -> None:
    network = FakeNetwork({ONE: b"new"})
    want = wanted(ONE, recipes=("app", "core"))
    sources, _ = lock_sources([want], Lock(sources={ONE: entry()}), locking(tmp_path, network))
    assert sources == [entry(recipes=("app", "core"))]
    assert network.asked == []


def test_an_update_accepts_what_changed_and_says_both_checksums(tmp_path: Path) -> None:
    said: list[str] = []
    gone, moved = "https://up.example/gone", "https://up.example/moved"
    files = {ONE: b"new", TWO: b"old", moved: b"old"}
    how = locking(tmp_path, FakeNetwork(files), update=True, said=said)
    known = {url: entry(url, mirrors=("https://m.example/x",)) for url in (ONE, TWO)}
    new = entry(content=b"new", mirrors=known[ONE].mirrors)
    wants = [wanted(gone, ONE), wanted(TWO), wanted(moved, TWO)]
    found = lock_sources(wants, Lock(sources=known), how)
    assert found == ([new, known[TWO], entry(moved)], [])
    [change, reason] = said
    assert change == f"{ONE}: was sha256 {entry().sha256}, is {new.sha256}"
    assert reason.startswith(f"  instead of {gone}: ")


def test_an_update_without_a_network_loses_nothing(tmp_path: Path) -> None:
    how = locking(tmp_path, FakeNetwork({}), update=True)
    sources, failures = lock_sources([wanted(ONE)], Lock(sources={ONE: entry()}), how)
    assert sources == [entry()]
    assert len(failures) == 1


def test_the_next_of_some_alternatives_is_taken_and_told(tmp_path: Path) -> None:
    said: list[str] = []
    how = locking(tmp_path, FakeNetwork({TWO: b"2"}), said=said, mirrors=("https://near.example",))
    sources, _ = lock_sources([wanted(ONE, "debian-source:one/1", TWO)], Lock(), how)
    assert [one.url for one in sources] == [TWO]
    assert said == [
        f"{TWO}: locked, sha256 {sources[0].sha256[:12]}, 1 bytes",
        f"  instead of {ONE}: up.example cannot be reached: no network in unit tests",
        "  instead of debian-source:one/1: no Debian here",
    ]


def test_what_can_be_locked_is_locked(tmp_path: Path) -> None:
    def refused(url: str) -> LockedSource:
        raise Refused(f"{url}: not signed")

    how = locking(tmp_path, FakeNetwork({TWO: b"2"}), resolve=refused)
    wants = [wanted(ONE, recipes=("app",)), wanted(TWO), wanted("debian-source:one/1")]
    sources, failures = lock_sources(wants, Lock(), how)
    assert [one.url for one in sources] == [TWO]
    [debians, others] = sorted(map(str, failures))
    assert debians == "debian-source:one/1: not signed"
    assert others.startswith(f"{ONE} (app)\n  {ONE}: up.example cannot be reached")
    assert not list(tmp_path.glob(".*.new"))


def test_an_interrupted_lock_ends_its_downloads(tmp_path: Path) -> None:
    def interrupted(url: str) -> LockedSource:
        raise KeyboardInterrupt(url)

    how = locking(tmp_path, FakeNetwork({}), resolve=interrupted)
    with pytest.raises(KeyboardInterrupt):
        lock_sources([wanted("debian-source:one/1")], Lock(), how)
    with pytest.raises(Interrupted):
        Downloader.fetch(how.downloader, "file:///dev/null", tmp_path / "x")


def test_a_sites_mirror_stands_in(tmp_path: Path) -> None:
    network = FakeNetwork({"https://near.example/one-1.0.tar.gz": b"1"})
    how = locking(tmp_path, network, mirrors=("https://near.example/",))
    assert lock_sources([wanted(ONE)], Lock(), how) == ([entry(content=b"1")], [])


def test_locking_shows_no_user_name_and_no_password(tmp_path: Path) -> None:
    said: list[str] = []
    secret, near = (f"https://user:secret@{host}.example/" for host in ("up", "near"))
    network = FakeNetwork({f"{secret}there.tar": b"1"})
    how = locking(tmp_path, network, mirrors=(near,), said=said)
    wants = [wanted(f"{secret}{name}") for name in ("there.tar", "gone.tar", "get?id=1")]
    _, failures = lock_sources(wants, Lock(), how)
    text = "\n".join([*said, *map(str, failures)])
    for place in ("up.example/there.tar", "up.example/gone.tar", "near.example/gone.tar"):
        assert f"https://{place}: " in text
    assert "secret" not in text


def test_a_url_without_a_file_name_cannot_be_locked(tmp_path: Path) -> None:
    how = locking(tmp_path, FakeNetwork({}))
    url = "https://up.example/get?id=1"
    _, [failure] = lock_sources([wanted(url)], Lock(), how)
    reason = f"{url}: its last part, 'get?id=1', is not a valid file name"
    assert str(failure) == f"{url} (core)\n  {reason}"


# The text


def test_the_text_is_read_as_what_was_written(tmp_path: Path) -> None:
    debian = entry("debian-source:one/1", file="one_1.orig.tar.xz", path="pool/main/o/one_1")
    lock = Lock(
        sources={
            TWO: entry(TWO, mirrors=("https://m.example/two",), recipes=("app", "core")),
            ONE: entry(sha256="1" * 64),
            debian.url: debian,
        },
        references={
            ("docker.io/library/debian:13", arch): DIGEST for arch in ("aarch64", "ppc64le")
        },
    )
    (tmp_path / "lock.yaml").write_text(lock_text(lock))
    faults = Faults()
    assert read_lock(alone(tmp_path).own, faults) == lock
    assert faults.found == []
    compare_with_golden(lock_text(lock), "lock.yaml")
    turned = Lock(
        sources={
            url: dataclasses.replace(one, recipes=one.recipes[::-1])
            for url, one in reversed(list(lock.sources.items()))
        },
        references=dict(reversed(list(lock.references.items()))),
    )
    assert lock_text(turned) == lock_text(lock)


def test_an_empty_lock_is_read(tmp_path: Path) -> None:
    (tmp_path / "lock.yaml").write_text(lock_text(Lock()))
    faults = Faults()
    assert read_lock(alone(tmp_path).own, faults) == Lock()
    assert faults.found == []


def test_a_lock_of_some_images_keeps_the_rest() -> None:
    known = Lock(
        sources={ONE: entry(recipes=("app", "core")), TWO: entry(TWO, recipes=("app",))},
        references={("a", "x86_64"): DIGEST},
    )
    found = Lock(sources={ONE: entry(content=b"new")})
    result = merged(known, found, recipes=["core"])
    assert result.sources[ONE].recipes == ("app", "core")
    assert result.sources[ONE].sha256 == entry(content=b"new").sha256
    assert result.sources[TWO] == known.sources[TWO]
    assert result.references == known.references


# Whether it matches


def test_a_lock_that_matches_has_no_faults() -> None:
    lock = Lock(sources={ONE: entry()}, references={("a", "x86_64"): DIGEST})
    assert not mismatches(
        lock, [wanted(TWO, ONE)], [("a", "x86_64")], FILES, own=lock, retained=Lock()
    )


FILES = {"core": "recipes/core.yaml", "app": "recipes/app.yaml"}


def test_a_missing_source_is_a_fault_where_others_are_locked() -> None:
    lock = Lock(sources={ONE: entry()})
    needs = [wanted(ONE), wanted(TWO, recipes=("app", "core"))]
    [fault] = mismatches(lock, needs, [], FILES, own=lock, retained=Lock())
    assert str(fault) == (
        f"recipes/core.yaml:1: its source {TWO} is not in lock.yaml, but others are\n"
        "    run: build-images lock --recipe core"
    )


def test_entries_that_nobody_needs_are_faults() -> None:
    lock = Lock(
        sources={ONE: entry(recipes=("app", "core"), line=4), TWO: entry(TWO, line=9)},
        references={("a", "x86_64"): DIGEST},
    )
    faults = mismatches(lock, [wanted(ONE)], [], FILES, own=lock, retained=Lock())
    hint = "\n    run: build-images lock, which removes it"
    assert [str(one).removesuffix(hint) for one in faults] == [
        f"lock.yaml:4: {ONE}: app does not use it",
        f"lock.yaml:9: {TWO}: core does not use it",
        "lock.yaml:1: a for x86_64: no image uses it",
    ]
    assert {one.valid for one in faults} == {hint.strip()}
    assert not mismatches(lock, [wanted(ONE)], [], FILES, own=lock, retained=lock)


# Digests of references


class FakeRegistries(Registries):
    def digest(self, reference: str, arch: str) -> str:
        if reference.startswith("gone"):
            lost = f"the registry {registry_of(reference)} cannot be reached"
            raise RegistryUnreachable(f"{reference}: {lost}", lost=lost)
        if "none" in reference:
            raise RegistryFails(f"{reference}: no such image for {arch}")
        return DIGEST


def test_an_unreachable_registry_is_one_error_and_the_rest_is_pinned() -> None:
    keys = [("gone.example/a:1", "x86_64"), ("gone.example/b:1", "x86_64")]
    references, failures = pin_references(
        [
            *keys,
            ("gone2.example/a:1", "x86_64"),
            ("here.example/c:1", "x86_64"),
            ("here.example/none", "ppc64le"),
        ],
        {keys[0]: "sha256:old"},
        FakeRegistries(),
        update=True,
    )
    assert references == {keys[0]: "sha256:old", ("here.example/c:1", "x86_64"): DIGEST}
    assert [str(one) for one in failures] == [
        (
            "the registry gone.example cannot be reached\n"
            "  not requested: gone.example/a:1, gone.example/b:1"
        ),
        "the registry gone2.example cannot be reached\n  not requested: gone2.example/a:1",
        "here.example/none: no such image for ppc64le",
    ]


def test_a_pinned_reference_is_written_without_its_tag() -> None:
    keys = ["docker.io/library/debian:13", "localhost:5000/debian", "debian"]
    lock = Lock(references={(one, "x86_64"): DIGEST for one in keys})
    assert [lock.pinned(one, "x86_64") for one in keys] == [
        f"docker.io/library/debian@{DIGEST}",
        f"localhost:5000/debian@{DIGEST}",
        f"debian@{DIGEST}",
    ]
    assert lock.pinned(keys[0], "ppc64le") == keys[0]


# Debian's source packages

ORIG = b"upstream's tarball"
INDEX = f"""\
Package: hello-extra
Version: 9-1

Package: hello
Binary: hello
Version: 1:2.10+ds-3.1
Checksums-Sha256:
 {"0" * 64} 99 hello_2.10+ds-3.1.dsc
 {hashlib.sha256(ORIG).hexdigest()} {len(ORIG)} hello_2.10+ds.orig.tar.xz
 {"1" * 64} 99 hello_2.10+ds.orig-docs.tar.xz
Directory: pool/main/h/hello
Format: 3.0 (quilt)

Package: native
Version: 5
Checksums-Sha256:
 {"2" * 64} 99 native_5.tar.xz
Directory: pool/main/n/native
"""


class FakeGpgv(Processes):
    def __init__(self, *, trusts: bool = True) -> None:
        super().__init__()
        self.trusts = trusts

    def capture(self, argv: Any, **_: Any) -> Any:
        if not self.trusts:
            raise StepFailed("gpgv: exit status 1", tail=["gpgv: BAD signature"])
        command, keyring, _, output, plain, signed = argv
        assert (command, keyring, output) == ("gpgv", "--keyring", "--output")
        Path(plain).write_bytes(Path(signed).read_bytes())


def archive(*, codename: str = "trixie", sha256: str = "") -> dict[str, bytes]:
    packed = lzma.compress(INDEX.encode())
    promised = sha256 or hashlib.sha256(packed).hexdigest()
    release = (
        f"Suite: stable\nCodename: {codename}\nMD5Sum:\n {'0' * 32} 1 main/source/Sources.xz\n"
        f"SHA256:\n {promised} {len(packed)} main/source/Sources.xz\n"
    )
    return {
        f"{DEBIAN}/dists/trixie/InRelease": release.encode(),
        f"{DEBIAN}/dists/trixie/main/source/Sources.xz": packed,
        f"{DEBIAN}/pool/main/h/hello/hello_2.10+ds.orig.tar.xz": ORIG,
    }


def debian(root: Path, files: dict[str, bytes], *, trusts: bool = True) -> DebianSources:
    keyring = root / "keyring.gpg"
    keyring.touch()
    return DebianSources(
        store=SourceStore(path=root / "home" / "store", debian=DEBIAN),
        suites=["trixie"],
        downloader=FakeNetwork(files),
        processes=FakeGpgv(trusts=trusts),
        keyring=keyring,
    )


def test_a_source_package_is_found_in_the_signed_index(tmp_path: Path) -> None:
    """Of one suite or the next; each index is read once."""
    said: list[str] = []
    older = f"{DEBIAN}/dists/bookworm/InRelease"
    sources = debian(tmp_path, {**archive(), older: b"Suite: bookworm\n"})
    sources.suites, sources.say = ["trixie", "bookworm"], said.append
    for _ in range(2):
        found = sources.resolve("debian-source:hello/2.10+ds")
    assert said == ["reading Debian's index of sources of trixie"]
    with pytest.raises(Unfetched, match=r"file of bookworm does not list main/source/Sources\.xz"):
        sources.resolve("debian-source:hello/1")
    assert found == LockedSource(
        url="debian-source:hello/2.10+ds",
        file="hello_2.10+ds.orig.tar.xz",
        sha256=hashlib.sha256(ORIG).hexdigest(),
        size=len(ORIG),
        path="pool/main/h/hello/hello_2.10+ds.orig.tar.xz",
    )


def test_a_source_package_is_locked_without_the_mirrors_name(tmp_path: Path) -> None:
    files = archive()
    how = locking(tmp_path, FakeNetwork(files), resolve=debian(tmp_path, files).resolve)
    sources, failures = lock_sources([wanted("debian-source:hello/2.10+ds")], Lock(), how)
    assert failures == []
    assert how.store.holds(sources[0])
    assert "debian.example" not in lock_text(Lock(sources={"x": sources[0]}))


def test_what_a_killed_run_leaves_of_an_index_is_garbage_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[Path] = []
    fetch = FakeNetwork.fetch

    def fetched(self: FakeNetwork, url: str, target: Path) -> Fetched:
        folders.extend((tmp_path / "home" / "store").glob(".*.partial"))
        return fetch(self, url, target)

    network = debian(tmp_path, archive())
    monkeypatch.setattr(FakeNetwork, "fetch", lambda self, url, at, **_: fetched(self, url, at))
    network.resolve("debian-source:hello/2.10+ds")
    assert len(folders) == 1
    assert not folders[0].exists()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("debian-source:hello/2.10", r"not in Debian's trixie; available: 2\.10\+ds \(trixie\)"),
        ("debian-source:other/1", "available: none, no package is called other"),
        ("debian-source:native/5", "no upstream .orig.tar"),
    ],
)
def test_a_version_that_debian_has_not_is_told(url: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(Unfetched, match=said):
        debian(tmp_path, archive()).resolve(url)


@pytest.mark.parametrize(
    ("files", "error", "reason"),
    [
        (archive(codename="forky"), Refused, "is for forky, stable"),
        (archive(sha256="f" * 64), Refused, "differs from the locked one"),
        ({}, Unfetched, "cannot fetch the Release file of trixie"),
    ],
)
def test_an_index_that_is_another_or_not_there(
    files: dict[str, bytes], error: type[Exception], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=reason) as caught:
        debian(tmp_path, files).resolve("debian-source:hello/2.10+ds")
    assert "debian.example" not in str(caught.value)


def test_an_index_that_debian_did_not_sign_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="not signed by Debian") as caught:
        debian(tmp_path, archive(), trusts=False).resolve("debian-source:hello/2.10+ds")
    text = "the Release file of trixie is not signed by Debian:\ngpgv: BAD signature"
    assert str(caught.value) == text


def test_without_keys_a_mirror_or_suites_debian_has_no_sources(tmp_path: Path) -> None:
    sources = debian(tmp_path, archive())
    sources.keyring.unlink()
    texts = []
    changes: list[dict[str, Any]] = [{}, {"store": SourceStore(path=tmp_path)}, {"suites": []}]
    for change in changes:
        with pytest.raises(MissingPrerequisite) as caught:
            dataclasses.replace(sources, **change).resolve("debian-source:hello/2.10+ds")
        texts.append(str(caught.value))
    assert texts == [
        (
            f"{sources.keyring}: Debian's keys are not on this machine\n"
            "  hint: apt-get install debian-archive-keyring, or: build-images setup"
        ),
        "no Debian mirror is known for the sources of trixie",
        (
            "debian-source:hello/2.10+ds: not in Debian's suites; available: none, "
            "no package is called hello\n"
            "  hint: use the upstream version as Debian writes it, without epoch and revision"
        ),
    ]
