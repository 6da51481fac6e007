"""Hostile images in a real registry, signed by whom the site trusts: refused, and nothing is left.

A trusted key may sign what its owner was tricked into.
"""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path

import pytest
from harness import LONG, Ended
from pulling import assert_refused, known_images, one_registry, pull, site
from registry_site import GOOD, Content, Site, file, folder, layer_of

from builder.distribute.pull.streams import LIMITS, LayerLimits

pytestmark = pytest.mark.engines
__all__ = ["known_images", "one_registry", "site"]  # fixtures
HOSTILE = {
    "up": [file("../x", b"1")],
    "absolute": [file("/etc/x", b"1")],
    "through a link": [
        file("a", type=tarfile.SYMTYPE, linkname="/"),
        file("a/tmp/hostile", b"1"),
    ],
    "a device": [folder("etc"), file("etc/x", type=tarfile.BLKTYPE, devmajor=8)],
    "a hard link out": [file("x", type=tarfile.LNKTYPE, linkname="/etc/passwd")],
}
PIECES = 100
# Reading millions of headers takes ten seconds: in `make test` the limit is a twentieth.
MOST = LIMITS.entries if LONG else LIMITS.entries // 20
# As many entries as are just too many in all pieces: an empty folder, and what hides nothing.
ROOT = folder(".")[0].tobuf() * (MOST // PIECES + 1)
GONE = file("opt/.wh.x")[0].tobuf() * (MOST // PIECES + 1)


@pytest.fixture
def _limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LayerLimits, "entries", MOST)


def publish(site: Site, layers: tuple[bytes, ...], tarball: bytes = b"") -> None:
    content = Content(layers=layers, tarball=tarball, tree="sha256:" + "00" * 32)
    site.publish(content, tag="hostile")


def assert_nothing_is_kept(done: Ended, site: Site, before: set[str]) -> None:
    assert_refused(done, site)
    assert "all of its data was removed" in done.stderr
    added = {one.name for one in site.place.rglob("*") if "home" not in one.parts} - before
    assert added <= {"policy.yaml", "site.pub", site.record().name, "home"}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("artifact_format", ["directory", "oci"])
def test_a_hostile_layer_is_refused(site: Site, name: str, artifact_format: str) -> None:
    publish(site, (GOOD[0], layer_of(HOSTILE[name])))
    before = {one.name for one in site.place.rglob("*")}
    done = pull(site, artifact_format, name="site/tool:hostile")
    assert_nothing_is_kept(done, site, before)
    assert not Path("/tmp/hostile").exists()


@pytest.mark.campaign
@pytest.mark.usefixtures("_limit")
@pytest.mark.parametrize("entry", [ROOT, GONE], ids=["many entries", "whiteouts"])
def test_a_bomb_of_many_layers_is_refused(site: Site, entry: bytes) -> None:
    """It is one small layer, named many times: none of them is too much alone."""
    publish(site, (GOOD[0], *[gzip.compress(entry, mtime=0)] * PIECES), tarball=b"none")
    before = {one.name for one in site.place.rglob("*")}
    done = pull(site, "oci", name="site/tool:hostile")
    assert_nothing_is_kept(done, site, before)
    assert f"possible decompression bomb: more than {MOST:,} entries" in done.stderr


@pytest.mark.long(reason="reads two million headers, which takes most of a minute")
def test_a_bomb_in_one_layer_is_refused(site: Site) -> None:
    """A gigabyte of headers in a few megabytes: the members of a gzip file may be the same.

    All of its headers are read; of the layer above that is named many times, but once.
    """
    bomb = gzip.compress(ROOT, mtime=0) * PIECES
    publish(site, (GOOD[0], bomb), tarball=b"none")
    before = {one.name for one in site.place.rglob("*")}
    done = pull(site, "directory", name="site/tool:hostile")
    assert_nothing_is_kept(done, site, before)
    assert f"possible decompression bomb: more than {LIMITS.entries:,} entries" in done.stderr
