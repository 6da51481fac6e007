"""Two exports of one image become the same layouts; what counts is in them."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import random
import shutil
import tarfile
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from samples import a_file, a_folder, a_hard_link, a_link, member, tar_bytes

from builder.artifacts.flatten import entries, entries_of_layout, flattened
from builder.artifacts.oci import LayerBlob, blob_path, read_layout
from builder.artifacts.repack import PlainLayout, SharedLayers, repack, unpack
from builder.artifacts.tars import APART, PART, Gzip, GzippedTar
from builder.artifacts.tree import comparable
from builder.build.engines import charliecloud
from builder.model import EPOCH
from builder.model.errors import StepFailed

Layer = Sequence[tuple[tarfile.TarInfo, bytes]]
LARGE = "large " * 3 * APART  # more than one part


def exported(folder: Path, *layers: Layer, packed: bool = False, **config: Any) -> Path:
    """A folder as engines export images."""
    folder.mkdir()

    def put(data: bytes) -> dict[str, str]:
        digest = hashlib.sha256(data).hexdigest()
        (folder / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}"}

    tars = [tar_bytes(*layer) for layer in layers]
    blobs = [put(gzip.compress(data) if packed else data) for data in tars]
    text = json.dumps({"architecture": "amd64", "os": "linux", **config})
    manifest = {"config": put(text.encode()), "layers": blobs}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def at(time: int, layer: Layer) -> Layer:
    """The layer, built at a time."""
    for one, _ in layer:
        one.mtime = time
    return layer


def base() -> Layer:
    etc = [a_folder("etc"), a_file("etc/hosts", "base"), a_file("etc/old", "o")]
    return [*etc, a_folder("usr", mode=0o700), a_file("usr/gone", "g")]


def layer() -> Layer:
    return [
        a_folder("usr"),
        a_file("usr/large", LARGE, mode=0o755),
        a_hard_link("usr/a", "usr/large"),
        a_file("usr/.wh.gone", ""),
        a_file("etc/.wh.old", ""),
        a_link("bin", "usr"),
        a_hard_link("bin2", "bin"),
        a_file("etc/hosts", "the build host"),
        a_file("var/log/dpkg.log", "today"),
    ]


def repacked(
    folder: Path,
    *layers: Layer,
    shared: SharedLayers | None = None,
    notes: dict[str, str] | None = None,
    **more: Any,
) -> PlainLayout:
    folder.mkdir()
    given, plain = exported(folder / "in", *layers, **more), folder / "plain.oci"
    return repack(
        given, folder / "image.oci", plain=plain, epoch=EPOCH, shared=shared, notes=notes or {}
    )


def members(layer: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(layer) as archive:
        return {one.name: one for one in archive}


def history(day: int) -> list[dict[str, Any]]:
    created = f"2026-01-0{day}T00:00:00Z"
    copied = f"/bin/sh -c #(nop) COPY dir:{str(day) * 64} in /opt "
    return [
        {"created": created, "created_by": "RUN x", "comment": f"{day}"},
        {"created": created, "created_by": copied},
    ]


def test_two_builds_give_the_same_layouts(tmp_path: Path) -> None:
    def config(day: int) -> dict[str, Any]:
        engine = {"Labels": {"io.buildah.version": f"1.{day}"}, "Hostname": f"host{day}"}
        return {"created": f"2026-01-0{day}", "history": history(day), "config": engine}

    one = repacked(tmp_path / "1", base(), at(EPOCH + 1, layer()), **config(1))
    reverse = [*layer()[::-1][:-1], layer()[0]]
    moved = [*(m for m in reverse if not m[0].islnk()), *(m for m in reverse if m[0].islnk())]
    other = repacked(tmp_path / "2", base(), at(EPOCH + 9, moved), packed=True, **config(2))
    assert one.layout.digest == other.layout.digest
    digests = {read_layout(tmp_path / name / "image.oci").digest for name in ("1", "2")}
    assert len(digests) == 1


def test_images_do_not_tell_with_which_native_tools_they_were_built(tmp_path: Path) -> None:
    said = "/bin/sh -c #(nop) LABEL build-images.native=abc"
    about = {"created_by": said, "empty_layer": True}
    lent = repacked(
        tmp_path / "lent",
        base(),
        history=[*history(1), about],
        config={"Labels": {"build-images.native": "abc", "a": "b"}},
    )
    plain = repacked(tmp_path / "plain", base(), history=history(1), config={"Labels": {"a": "b"}})
    assert lent.layout.digest == plain.layout.digest


def test_a_layer_is_sorted_with_what_it_removes_first(tmp_path: Path) -> None:
    plain = repacked(tmp_path / "x", base(), layer())
    found = members(plain.layout.layers[1])
    expected = ["bin", "bin2", "etc", "etc/.wh.old", "usr", "usr/.wh.gone", "usr/a", "usr/large"]
    assert list(found) == expected
    assert (found["usr/a"].isreg(), found["usr/large"].linkname) == (True, "usr/a")
    assert found["bin2"].linkname == "usr"
    assert found["usr/large"].mode == 0o755
    assert found["usr/.wh.gone"].mtime == EPOCH
    assert "etc/hosts" in members(plain.layout.layers[0])


SETTINGS: dict[str, Any] = {
    "Cmd": ["a"],
    "Entrypoint": ["b"],
    "Env": ["A=b"],
    "ExposedPorts": {"1/tcp": {}},
    "Healthcheck": {"Test": ["c"]},
    "OnBuild": ["RUN d"],
    "Shell": ["sh"],
    "StopSignal": "SIGINT",
    "User": "e",
    "Volumes": {"/f": {}},
    "WorkingDir": "/g",
}
ABOUT: dict[str, Any] = {
    "architecture": "arm64",
    "author": "h",
    "os": "linux",
    "os.version": "1",
    "variant": "v8",
}


def test_both_layouts_hold_the_image(tmp_path: Path) -> None:
    labels = {"org.opencontainers.image.title": "t", "a": "b", "io.buildah.version": "1.28.2"}
    given: dict[str, Any] = {"history": history(1), "config": {**SETTINGS, "Labels": labels}}
    plain = repacked(tmp_path / "x", base(), layer(), **given, **ABOUT, docker_version="1")
    packed = read_layout(tmp_path / "x/image.oci")
    assert comparable(entries_of_layout(packed)) == comparable(entries(flattened(plain.layout)))
    assert comparable(entries_of_layout(plain.layout)) == comparable(entries_of_layout(packed))
    assert packed.config == plain.layout.config
    created, copied = "2000-01-01T00:00:00Z", "/bin/sh -c #(nop) COPY dir in /opt "
    kept = {"org.opencontainers.image.title": "t", "a": "b"}
    assert packed.config == {
        **ABOUT,
        "created": created,
        "config": {**SETTINGS, "Labels": kept},
        "rootfs": {"type": "layers", "diff_ids": list(plain.layout.diff_ids)},
        "history": [{"created": created, "created_by": by} for by in ("RUN x", copied)],
    }
    assert packed.environment == {"A": "b"}
    for blob, diff_id in zip(packed.layers, packed.config["rootfs"]["diff_ids"], strict=True):
        found = hashlib.sha256(gzip.decompress(blob.read_bytes())).hexdigest()
        assert f"sha256:{found}" == diff_id
    assert not (tmp_path / "x/in").exists()


def test_labels_that_say_what_an_image_is_and_needs_are_annotations(tmp_path: Path) -> None:
    about = {"org.opencontainers.image.title": "t", "build-images.host.kernel": "3.2.0"}
    notes = {"org.opencontainers.image.base.digest": "sha256:1"}
    labels = {"Labels": {**about, "a": "b"}}
    plain = repacked(tmp_path / "x", base(), config=labels, notes=notes)
    for layout in (read_layout(tmp_path / "x/image.oci"), plain.layout):
        manifest = json.loads(blob_path(layout.path, layout.digest).read_bytes())
        assert manifest["annotations"] == {**about, **notes}
        assert notes.keys().isdisjoint(layout.config["config"]["Labels"])


def test_a_hard_link_into_a_lower_layer_is_a_file_of_its_own(tmp_path: Path) -> None:
    """As drivers have it that copy the file up."""
    plain = repacked(tmp_path / "x", base(), [a_hard_link("again", "./etc/old")])
    assert members(plain.layout.layers[1])["again"].isreg()
    assert flattened(plain.layout)["again"].read() == b"o"


def test_two_steps_that_change_the_same_are_one_blob(tmp_path: Path) -> None:
    steps, shared = [[a_file("etc/old", "n")]] * 3, SharedLayers(folder=tmp_path / "shared")
    plain = repacked(tmp_path / "x", base(), *steps, shared=shared)
    assert len(plain.layout.layers) == 4
    assert plain.layout.layers[2] == plain.layout.layers[3]
    assert plain.layout.layers[2].read_bytes() == bytes(1024)
    again = repacked(tmp_path / "y", base(), *steps, shared=shared)
    assert again.layout.digest == plain.layout.digest


def test_attributes_and_odd_names_are_kept(tmp_path: Path) -> None:
    name, capability = "usr/\udcff" + "long" * 60, {"SCHILY.xattr.security.capability": "\1\0"}
    made = member(name)
    made.pax_headers = capability
    plain = repacked(tmp_path / "x", [(made, b"")])
    found = members(plain.layout.layers[0])[name]
    assert found.pax_headers["SCHILY.xattr.security.capability"] == "\1\0"


def test_the_tarball_is_the_same_with_and_without_the_parts_of_layers(tmp_path: Path) -> None:
    sizes = [a_file("etc/apart", "x" * (1 << 16)), a_file("etc/not", "x" * ((1 << 16) - 1))]
    plain = repacked(tmp_path / "x", base(), layer(), sizes)
    packed = read_layout(tmp_path / "x/image.oci")
    assert len(plain.parts) == 2  # with usr/large
    one = charliecloud.pack(plain, flattened(plain.layout), packed, tmp_path / "1.tar.gz")
    without = unpack(packed, tmp_path / "again.oci")
    assert not without.parts
    two = charliecloud.pack(without, flattened(without.layout), packed, tmp_path / "2.tar.gz")
    assert one == two
    with tarfile.open(fileobj=io.BytesIO((tmp_path / "1.tar.gz").read_bytes())) as archive:
        content = archive.extractfile("usr/large")
        assert content is not None
        assert content.read() == LARGE.encode()


def test_a_plain_layout_whose_removal_was_interrupted_is_written_again(tmp_path: Path) -> None:
    plain = repacked(tmp_path / "x", base(), layer())
    packed = read_layout(tmp_path / "x/image.oci")
    lost = plain.layout.layers[0]
    content = lost.read_bytes()
    lost.unlink()
    unpack(packed, tmp_path / "x/plain.oci")
    assert lost.read_bytes() == content


def test_a_plain_layout_that_is_whole_is_taken_up_again(tmp_path: Path) -> None:
    plain = repacked(tmp_path / "x", base())
    packed = read_layout(tmp_path / "x/image.oci")
    before = plain.layout.layers[0].stat().st_mtime_ns
    assert unpack(packed, plain.layout.path).layout == plain.layout
    assert plain.layout.layers[0].stat().st_mtime_ns == before
    repacked(tmp_path / "y", layer()[:2])
    other = read_layout(tmp_path / "y/image.oci")
    assert unpack(other, plain.layout.path).layout.config == other.config
    (plain.layout.path / "index.json").unlink()
    assert unpack(packed, plain.layout.path).layout.layers == plain.layout.layers
    assert plain.layout.layers[0].stat().st_mtime_ns > before


def test_layers_that_two_images_share_are_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [a_file("own", "two")]
    one, two = repacked(tmp_path / "1", base(), layer()), repacked(tmp_path / "2", base(), own)
    taken: list[bool] = []
    take = SharedLayers.take

    def told(self: SharedLayers, key: str, **into: Path) -> LayerBlob | None:
        found = take(self, key, **into)
        taken.append(found is not None)
        return found

    monkeypatch.setattr(SharedLayers, "take", told)
    shared = SharedLayers(folder=tmp_path / "shared")
    first = repacked(tmp_path / "3", base(), layer(), shared=shared)
    again = repacked(tmp_path / "4", base(), layer(), shared=shared)
    other = repacked(tmp_path / "5", base(), own, shared=shared)
    assert taken == [False, False, True, True, True, False]
    found = [read_layout(tmp_path / f"{name}/image.oci") for name in range(1, 6)]
    assert [one.digest for one in found[2:]] == [found[0].digest, found[0].digest, found[1].digest]
    for made, alone in ((first, one), (again, one), (other, two)):
        assert made.layout.digest == alone.layout.digest
        assert made.parts == {
            (blob_path(made.layout.path, f"sha256:{blob.name}"), offset): parts
            for (blob, offset), parts in alone.parts.items()
        }
    found[3].layers[1].write_bytes(b"changed by hand")
    assert found[2].layers[1].read_bytes() != b"changed by hand"


def test_a_base_is_not_written_as_a_layer_above(tmp_path: Path) -> None:
    shared = SharedLayers(folder=tmp_path / "shared")
    repacked(tmp_path / "one", base(), shared=shared)
    twice = repacked(tmp_path / "two", layer(), base(), shared=shared)
    assert twice.layout.digest == repacked(tmp_path / "alone", layer(), base()).layout.digest
    assert "etc/hosts" not in members(twice.layout.layers[1])


def test_the_layers_used_last_are_kept(tmp_path: Path) -> None:
    shared = SharedLayers(folder=tmp_path / "shared", limit=5 * APART)
    layers = {name: [a_file(name, name * 2 * APART)] for name in "abc"}
    layers["large"] = [a_file("large", "x" * 8 * APART)]
    for number, name in enumerate(["a", "b", "a", "c", "large"]):
        repacked(tmp_path / f"{number}-{name}", layers[name], shared=shared)
    names = {path.read_bytes()[:1] for path in (tmp_path / "shared").glob("*/plain")}
    assert names == {b"a", b"c"}


@pytest.mark.parametrize("links", [True, False])
def test_what_is_changed_in_an_image_changes_no_later_one(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    if not links:
        monkeypatch.setattr("os.link", refuse)
    shared = SharedLayers(folder=tmp_path / "shared")
    repacked(tmp_path / "1", base(), shared=shared)
    [blob] = read_layout(tmp_path / "1/image.oci").layers
    sound = blob.read_bytes()
    blob.write_bytes(b"changed by hand")
    repacked(tmp_path / "2", base(), shared=shared)
    [again] = read_layout(tmp_path / "2/image.oci").layers
    assert again.read_bytes() == sound


def test_half_an_export_is_a_failure(tmp_path: Path) -> None:
    folder = exported(tmp_path / "in", base())
    shutil.rmtree(folder)
    with pytest.raises(StepFailed, match="the engine exported an incomplete image"):
        repack(folder, tmp_path / "a", plain=tmp_path / "b", epoch=EPOCH)


# ---- Gzip in parts ----


def random_text(size: int, seed: int = 0) -> bytes:
    """Bytes that compress to a fifth, and by each level to another size."""
    words = [b"%d " % (number**5) for number in range(999)]
    return b"".join(random.Random(seed).choices(words, k=size // 4))[:size]


LONG = random_text(PART) + random_text(PART, 1)[:-3]


def gzipped(path: Path, *pieces: bytes, workers: int = 2) -> Gzip:
    with ThreadPoolExecutor(workers) as pool, path.open("wb") as sink:
        made = Gzip(sink, pool)
        for piece in pieces:
            made.write(piece)
        made.close()
    return made


@pytest.mark.parametrize("data", [b"", b"x", LONG], ids=["nothing", "a byte", "two parts"])
def test_what_is_written_is_read(data: bytes, tmp_path: Path) -> None:
    made = gzipped(tmp_path / "x.gz", data)
    found = (tmp_path / "x.gz").read_bytes()
    assert gzip.decompress(found) == data
    assert found[:10] == b"\x1f\x8b\x08" + bytes(6) + b"\xff", "no time and no system"
    assert (made.size, made.digest) == (len(found), hashlib.sha256(found).hexdigest())


def test_neither_threads_nor_writes_nor_the_day_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = gzipped(tmp_path / "one", LONG, workers=1)
    monkeypatch.setattr("time.time", lambda: 1e9)
    cut = [LONG[at : at + 99_999] for at in range(0, len(LONG), 99_999)]
    assert gzipped(tmp_path / "two", *cut, workers=7).digest == one.digest
    # With the same zlib, digests of published images depend on these numbers.
    parts = [zlib.compressobj(5, wbits=-15) for _ in range(2)]
    deflated = [
        part.compress(data) + part.flush(zlib.Z_FULL_FLUSH)
        for part, data in zip(parts, (LONG[: 1 << 20], LONG[1 << 20 :]), strict=True)
    ]
    end = zlib.crc32(LONG).to_bytes(4, "little") + len(LONG).to_bytes(4, "little")
    whole = bytes.fromhex("1f8b08000000000000ff") + b"".join(deflated) + b"\x03\0" + end
    assert one.digest == hashlib.sha256(whole).hexdigest()


def test_parts_are_used_again(tmp_path: Path) -> None:
    first, second = tmp_path / "one.gz", tmp_path / "two.gz"
    with ThreadPoolExecutor(2) as pool, first.open("wb") as sink:
        made = Gzip(sink, pool)
        made.write(b"before")
        made.write_apart(LONG[:PART], 6)
        made.write_apart(LONG[PART:], 6)
        made.write(b"after")
        made.close()
    assert gzip.decompress(first.read_bytes()) == b"before" + LONG + b"after"
    with ThreadPoolExecutor(2) as pool, second.open("wb") as sink, first.open("rb") as file:
        again = Gzip(sink, pool)
        again.write(b"elsewhere")
        for part, place in zip([LONG[:PART], LONG[PART:]] * 2, made.places[6] * 2, strict=True):
            again.write_again(part, place, file)
        again.close()
        member, tar = tarfile.TarInfo("x"), GzippedTar(Gzip(io.BytesIO(), pool))
        member.size = len(LONG)
        with pytest.raises(ValueError, match=r"longer|shorter"):
            tar.add_again(member, io.BytesIO(LONG), made.places[6][:1], file)
    assert gzip.decompress(second.read_bytes()) == b"elsewhere" + LONG + LONG
