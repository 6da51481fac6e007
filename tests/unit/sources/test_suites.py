"""Mirrors amid a sync: what the cache of packages asks for in place of a torn suite."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import itertools
import lzma
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import format_datetime
from pathlib import Path

import pytest
import requests
from web_server import Answering, client, serving

from builder.model.errors import StepFailed
from builder.sources.journals import as_build, build_id
from builder.sources.package_cache import PackageCache
from builder.sources.package_proxy import package_cache
from builder.sources.suites import Suites, _packages, state_beside

OLD, NEW = b"Package: tree\nVersion: 1\n", b"Package: tree\nVersion: 1.1\n"
PATH = "main/binary-ppc64el/Packages.xz"


def release(index: bytes, date: str, *, suite: str = "stable", by_hash: bool = True) -> bytes:
    """A Release file of trixie that names one index for two architectures."""
    promised = f"{hashlib.sha256(index).hexdigest()} {len(index)}"
    lines = [
        *("-----BEGIN PGP SIGNED MESSAGE-----", "Hash: SHA256", ""),
        *("Origin: Debian", f"Suite: {suite}", "Codename: trixie", f"Date: {date}"),
        f"Acquire-By-Hash: {'yes' if by_hash else 'no'}",
        *("Components: main contrib", "SHA256:"),
        *(f" {promised} main/binary-{arch}/Packages.xz" for arch in ("amd64", "ppc64el")),
        f" {'0' * 64} 9 contrib/binary-ppc64el/Packages.xz",
    ]
    return "\n".join([*lines, ""]).encode()


@dataclass
class Site:
    """A mirror: files by path, and what was asked for."""

    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    status: int = 404
    tells_sizes: bool = True
    url: str = ""

    def has(self, name: str, text: bytes, ppc64el: bytes, *, by_hash: bool = True) -> None:
        """A suite under a name: its Release file, and the index that is there for ppc64el."""
        amd64 = NEW if hashlib.sha256(NEW).hexdigest().encode() in text else OLD
        folder = f"/debian/dists/{name}"
        self.files[f"{folder}/InRelease"] = text
        for arch, index in {"amd64": amd64, "ppc64el": ppc64el}.items():
            self.files[f"{folder}/main/binary-{arch}/Packages.xz"] = index
            if by_hash:
                digest = hashlib.sha256(index).hexdigest()
                self.files[f"{folder}/main/binary-{arch}/by-hash/SHA256/{digest}"] = index


class Handler(Answering):
    site: Site

    def get(self) -> None:
        self.site.asked.append(f"{self.command} {self.path}")
        content = self.site.files.get(self.path)
        if content is not None and self.command == "HEAD" and not self.site.tells_sizes:
            self.send_response(200)
            self.end_headers()
        else:
            self.answer(content or b"", self.site.status if content is None else 200)


@pytest.fixture
def mirror() -> Iterator[Site]:
    site = Site()
    with serving(Handler, site=site) as url:
        site.url = f"{url}/debian"
        yield site


Get = Callable[[str], requests.Response]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def suites(said: list[str]) -> Suites:
    return Suites(
        architectures=frozenset({"amd64", "ppc64el"}),
        say=said.append,
        most_behind=dt.timedelta(days=70),
    )


@pytest.fixture
def cache(tmp_path: Path, suites: Suites) -> Iterator[PackageCache]:
    with package_cache(tmp_path / "packages", suites=suites) as cache:
        yield cache


@pytest.fixture
def get(cache: PackageCache, mirror: Site) -> Get:
    def asked(path: str) -> requests.Response:
        return client(cache.url).get(f"{mirror.url}/{path}", timeout=10)

    return asked


LATER, BEFORE = "Sat, 21 Nov 2026 09:15:44 UTC", "Sat, 12 Sep 2026 07:55:41 UTC"
TORN, WHOLE = release(NEW, LATER), release(OLD, BEFORE)


def test_a_whole_suite_is_asked_for_by_its_own_name(
    mirror: Site, get: Get, said: list[str]
) -> None:
    mirror.has("trixie", TORN, NEW)
    mirror.has("stable", WHOLE, OLD)
    assert get("dists/trixie/InRelease").content == TORN
    assert get(f"dists/trixie/{PATH}").content == NEW
    assert said == []


@pytest.mark.parametrize("missing", ["", "tree", "zoo"])
def test_an_index_that_came_before_its_packages_is_not_taken(
    missing: str, mirror: Site, get: Get, said: list[str]
) -> None:
    """Packages of all architectures are there early; unchanged and added ones say nothing."""
    pool, archs = "pool/main/t/tree", ("all", "amd64", "ppc64el")
    for suite, version, date in (("trixie", 2, LATER), ("stable", 1, BEFORE)):
        index = "\n".join(
            f"Package: {name}\nDescription: a\n b\nFilename: {pool}/{new}-{name}_{arch}.deb\n"
            for arch in archs
            for name, new in (("same", 1), ("tree", version), ("zoo", version), ("added", 2))
            if new <= version
        )
        packed = lzma.compress(index.encode())
        mirror.has(suite, release(packed, date), packed)
        mirror.files[f"/debian/dists/{suite}/main/binary-amd64/Packages.xz"] = packed
    for arch, name in itertools.product(archs, ("tree", "zoo")):
        if (arch, name) != ("ppc64el", missing):
            mirror.files[f"/debian/{pool}/2-{name}_{arch}.deb"] = b"package"
    for arch in archs[1:]:
        listing = lzma.decompress(get(f"dists/trixie/main/binary-{arch}/Packages.xz").content)
        assert (b"/2-" in listing) is (not missing)
    text = f"syncing trixie: {pool}/2-{missing}_ppc64el.deb is still missing; using its stable, of"
    assert [text in line for line in said] == ([True] if missing else [])


def test_of_an_index_no_more_is_unpacked_than_is_compared(mirror: Site) -> None:
    entries = [f"Package: {name}\nFilename: pool/{name}_1_amd64.deb\n".encode() for name in "ab"]
    mirror.files["/debian/a.xz"] = lzma.compress((b"\n" * (40 << 20)).join(entries))
    assert _packages(f"{mirror.url}/a.xz", "amd64") == {"a": "pool/a_1_amd64.deb"}


def test_an_index_that_breaks_off_is_no_response() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"
        threading.Thread(target=answering, args=(server, answer), daemon=True).start()
        with pytest.raises(requests.RequestException):
            _packages(f"http://127.0.0.1:{server.getsockname()[1]}/a.xz", "amd64")


@pytest.mark.parametrize(("by_hash", "status"), [(True, 404), (False, 410)])
def test_of_a_torn_suite_all_is_taken_from_its_whole_state(
    by_hash: bool, status: int, mirror: Site, get: Get, said: list[str]
) -> None:
    mirror.status = status
    mirror.has("trixie", release(NEW, LATER, by_hash=by_hash), OLD, by_hash=by_hash)
    mirror.has("stable", release(OLD, BEFORE, by_hash=by_hash), OLD, by_hash=by_hash)
    for _ in range(2):
        assert b"12 Sep 2026" in get("dists/trixie/InRelease").content
        assert get(f"dists/trixie/{PATH}").content == OLD
        assert get("dists/trixie/main/binary-amd64/Packages.xz").content == OLD
    [line] = said
    assert f"syncing trixie: {PATH} is still missing; " in line
    assert line.endswith(f"using its stable, of {BEFORE}")
    assert sum(one.startswith("HEAD") for one in mirror.asked) <= 8, "found out once"


def test_a_state_that_is_too_old_is_not_taken(
    mirror: Site, get: Get, suites: Suites, cache: PackageCache, said: list[str]
) -> None:
    """The step that then fails, as apt finds no index, says what would have been taken, and how."""
    suites.most_behind = dt.timedelta(days=69)
    mirror.has("trixie", TORN, OLD)
    mirror.has("stable", WHOLE, OLD)
    assert get("dists/trixie/InRelease").content == TORN
    [line] = said
    other = "BUILD_IMAGES_MIRROR or BUILD_IMAGES_SECURITY_MIRROR sets another mirror"
    assert line.endswith(
        f", is not used: it is 70 days older; --max-index-age 70 accepts it, or {other}"
    )
    with pytest.raises(StepFailed) as failed, cache.step():
        raise StepFailed("the build failed at: RUN apt-get update", hint="ask for the log")
    assert "--max-index-age 70 accepts it" in failed.value.hint
    assert failed.value.hint.endswith("ask for the log")
    with pytest.raises(StepFailed) as failed, cache.step():
        raise StepFailed("the base image was not made", tail=["E: mmdebstrap failed to run"])
    assert failed.value.hint == suites.refused[0]
    with pytest.raises(StepFailed) as failed, cache.step():
        raise StepFailed("the build failed at: RUN make")
    assert failed.value.hint == ""


@pytest.mark.parametrize(("until", "taken"), [(-60, False), (60, True)])
def test_a_state_that_apt_would_refuse_is_not_taken(
    until: int, taken: bool, mirror: Site, get: Get, suites: Suites
) -> None:
    """Archives of security updates say how long a state is good."""
    end = format_datetime(dt.datetime.now(tz=dt.timezone.utc) + dt.timedelta(minutes=until))
    dated = WHOLE.replace(b"Codename:", f"Valid-Until: {end}\nCodename:".encode())
    mirror.has("trixie", TORN, OLD)
    mirror.has("stable", dated, OLD)
    assert (get("dists/trixie/InRelease").content == dated) is taken
    why = (
        "it has expired; BUILD_IMAGES_MIRROR or BUILD_IMAGES_SECURITY_MIRROR sets another mirror, "
        "or BUILD_IMAGES_SECURITY_MIRROR=none leaves it out"
    )
    assert [one.endswith(f" {why}") for one in suites.refused] == ([] if taken else [True])


def test_which_state_a_build_was_told_of_is_known(
    mirror: Site, cache: PackageCache, tmp_path: Path
) -> None:
    mirror.has("trixie", TORN, OLD)
    mirror.has("stable", WHOLE, OLD)
    who = build_id("localhost/build-images/stage:1")
    for path in ("dists/forky/InRelease", "dists/trixie/InRelease", f"dists/trixie/{PATH}"):
        client(as_build(cache.url, who)).get(f"{mirror.url}/{path}", timeout=10)
    [state] = cache.index_states(who)
    assert (state.archive, state.suite, state.taken_as) == ("debian", "trixie", "stable")
    assert state.date == "2026-09-12T07:55:41+00:00"
    assert state.sha256 == hashlib.sha256(WHOLE).hexdigest()
    assert state.behind_days == 70
    assert cache.journals.states(who) == (state,)
    with package_cache(tmp_path / "packages", offline=True) as again:
        url, proxy = f"{mirror.url}/dists/trixie/InRelease", as_build(again.url, who)
        assert client(proxy).get(url, timeout=10).content == WHOLE
        assert [one.sha256 for one in again.index_states(who)] == [state.sha256]


def test_what_is_asked_past_the_proxy_is_asked_again(mirror: Site) -> None:
    mirror.has("trixie", WHOLE, OLD)
    state = state_beside(mirror.url, "trixie")
    assert state
    assert state.sha256 == hashlib.sha256(WHOLE).hexdigest()
    assert state_beside(mirror.url, "forky") is None
    assert state_beside("http://127.0.0.1:9/debian", "trixie") is None


@pytest.mark.parametrize(
    "other",
    [
        None,
        release(NEW, BEFORE),  # as torn
        release(OLD, BEFORE, suite="oldstable"),  # of another release
        release(OLD, "some day"),
        WHOLE.replace(b"Origin: Debian", b"Origin: Other"),
        WHOLE.replace(b"Codename: trixie", b"Label: Other\nCodename: trixie"),
        WHOLE.replace(b"Codename: trixie", b"Codename: bookworm"),
        b"<html>no Release file</html>",
    ],
)
def test_without_a_whole_state_everything_stays_as_it_is(
    other: bytes | None, mirror: Site, get: Get, said: list[str]
) -> None:
    mirror.has("trixie", TORN, OLD)
    if other is not None:
        mirror.has("stable", other, OLD)
    assert get("dists/trixie/InRelease").content == TORN
    assert get(f"dists/trixie/{PATH}").content == OLD
    assert said == []


def _security(mirror: Site) -> None:
    """The security archive names its components otherwise."""
    torn = TORN.replace(b"Components: main", b"Components: updates/main updates")
    mirror.has("trixie", torn, OLD)


def _without_components(mirror: Site) -> None:
    mirror.has("trixie", TORN.replace(b"Components: main contrib\n", b""), OLD)


def _by_its_codename(mirror: Site) -> None:
    mirror.has("trixie", WHOLE, OLD)
    mirror.has("stable", TORN, OLD)


def _missing_altogether(mirror: Site) -> None:
    mirror.tells_sizes = False
    mirror.has("trixie", TORN, NEW)
    for path in [path for path in mirror.files if "/trixie/" in path and "ppc64el" in path]:
        del mirror.files[path]


@pytest.mark.parametrize(
    ("change", "suite"),
    [
        (_security, "trixie"),
        (_without_components, "trixie"),
        (_by_its_codename, "stable"),
        (_missing_altogether, "trixie"),
    ],
)
def test_the_whole_state_is_taken(
    change: Callable[[Site], None], suite: str, mirror: Site, get: Get, said: list[str]
) -> None:
    mirror.has("stable", WHOLE, OLD)
    change(mirror)
    assert get(f"dists/{suite}/InRelease").content == WHOLE
    assert len(said) == 1


def test_a_newer_state_is_not_behind(mirror: Site, suites: Suites) -> None:
    mirror.has("trixie", release(NEW, BEFORE), OLD)
    mirror.has("stable", release(OLD, LATER), OLD)
    url = f"{mirror.url}/dists/trixie/InRelease"
    assert suites.address(url) == f"{mirror.url}/dists/stable/InRelease"
    assert [suites.behind_days(one) for one in (url, f"{mirror.url}/pool/a.deb")] == [0, 0]


def test_an_architecture_that_nobody_wants_may_be_missing(
    mirror: Site, get: Get, suites: Suites
) -> None:
    suites.architectures = frozenset({"amd64"})
    mirror.has("trixie", TORN, OLD)
    mirror.has("stable", WHOLE, OLD)
    assert get("dists/trixie/InRelease").content == TORN


@pytest.mark.parametrize("status", [403, 405, 500])
def test_a_server_that_does_not_say_is_believed(status: int, mirror: Site, get: Get) -> None:
    mirror.has("trixie", TORN, OLD)
    mirror.has("stable", WHOLE, OLD)
    mirror.status = status
    assert get("dists/trixie/InRelease").content == TORN


def test_other_addresses_are_left_alone(mirror: Site, suites: Suites) -> None:
    for path in ("pool/main/t/tree.deb", "dists/trixie", "dists/", "dists/trixie/InRelease?x=1"):
        assert suites.address(f"{mirror.url}/{path}") == f"{mirror.url}/{path}"
    assert mirror.asked == []


def test_nobody_answers(suites: Suites) -> None:
    url = "http://127.0.0.1:9/debian/dists/trixie/InRelease"
    assert suites.address(url) == url


def test_offline_nothing_is_asked(tmp_path: Path, mirror: Site, suites: Suites) -> None:
    mirror.has("trixie", TORN, OLD)
    mirror.has("stable", WHOLE, OLD)
    with package_cache(tmp_path / "packages", offline=True, suites=suites) as cache:
        url = f"{mirror.url}/dists/trixie/InRelease"
        assert client(cache.url).get(url, timeout=10).content == TORN
    assert mirror.asked == ["GET /debian/dists/trixie/InRelease"]


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\n\r\n"])
def test_a_mirror_that_says_nothing_does_not_hold_the_others(
    answer: bytes, mirror: Site, suites: Suites, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.sources.suites._TIMEOUT_S", 1.0)
    mirror.has("trixie", TORN, OLD)
    mirror.has("stable", WHOLE, OLD)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        if answer:
            threading.Thread(target=answering, args=(silent, answer), daemon=True).start()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/dists/trixie/InRelease"
        waiting = threading.Thread(target=suites.address, args=(url,), daemon=True)
        waiting.start()
        found = suites.address(f"{mirror.url}/dists/trixie/InRelease")
        assert found == f"{mirror.url}/dists/stable/InRelease"
        assert suites.address(url) == url
        waiting.join(10)
        assert not waiting.is_alive()


def answering(server: socket.socket, answer: bytes) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)
