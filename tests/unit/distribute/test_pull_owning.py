"""What a pull keeps and leaves is its user's own, whatever the umask."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from registry_site import file, layer_of
from test_pull_existing import judged_image
from test_pull_placing import pulled

from builder.distribute.pull.artifacts import FormatPacker, existing_output
from builder.distribute.pull.cache import BlobStore
from builder.distribute.pull.folders import atomic_folder
from builder.distribute.pull.receipts import Last, PulledImage, PullReceipt, write_json
from builder.distribute.pull.remote_image import RemoteImage
from builder.distribute.pull.request import Judged
from builder.model.errors import Interrupted, Refused
from builder.model.records import write
from builder.registry import MANIFEST, Descriptor, Source
from builder.trust.policy.judgement import Judgement
from builder.trust.policy.records import Image
from builder.trust.policy.site_policy import Policy

CONFIG = Descriptor.of(b"{}", "application/vnd.oci.image.config.v1+json")


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Groups may write what this user makes."""
    before = os.umask(0o002)
    yield
    os.umask(before)


GZIPPED = "application/vnd.oci.image.layer.v1.tar+gzip"
LAYER = layer_of([file("file", b"good")])


class Registry:
    """Gives the layer."""

    def read_blob(self, _wanted: Descriptor, path: Path) -> None:
        path.write_bytes(LAYER)

    def stop(self) -> None:
        pass

    check = stop


def found() -> RemoteImage:
    layer = Descriptor.of(LAYER, GZIPPED)
    content = json.dumps({"config": CONFIG.as_json(), "layers": [layer.as_json()]}).encode()
    manifest = Descriptor.of(content, MANIFEST)
    return RemoteImage(
        manifest=manifest,
        content=content,
        config=b"{}",
        config_descriptor=CONFIG,
        layers=(layer,),
        directory="/",
        image=Image(digest=manifest.digest, architecture="x86_64", asked="x86_64"),
    )


def store_of(tmp_path: Path) -> BlobStore:
    return BlobStore(folder=tmp_path / "home/pulls/blobs")


def laid_out(tmp_path: Path) -> tuple[Path, Judged]:
    """A layout that was pulled, and the image that it was."""
    output, registry, remote = tmp_path / "out", cast("Source", Registry()), found()
    digest = remote.image.digest
    image = judged_image("oci", "", source=registry, remote=remote)
    with atomic_folder(output) as folder:
        assert folder is not None
        unpacked = FormatPacker(judged=image, store=store_of(tmp_path)).make(folder)
        assert unpacked is not None
        receipt = PullReceipt(
            format="oci", digest=digest, image=PulledImage(digest=digest), tree=unpacked.tree
        )
        write_json(folder / "receipt.json", write(receipt))
        (folder / "receipt.json").chmod(0o644)
    return output, replace(image, judgement=Judgement(rulings=(), tree=unpacked.tree))


def test_a_layout_is_written_by_its_owner_alone(tmp_path: Path) -> None:
    output, expected = laid_out(tmp_path)
    modes = {one: one.stat().st_mode & 0o777 for one in (output, *output.rglob("*"))}
    assert {modes[one] for one in modes if one.is_dir()} == {0o755}
    assert {modes[one] for one in modes if one.is_file()} == {0o644}
    assert existing_output(output, expected).format == "oci"
    other = replace(expected, judgement=Judgement(rulings=(), tree=f"sha256:{'0' * 64}"))
    with pytest.raises(Refused, match="has changed since it was pulled"):
        existing_output(output, other)
    files = {one: (output / "image.oci" / one).read_text() for one in ("oci-layout", "index.json")}
    assert files.pop("oci-layout") == '{"imageLayoutVersion":"1.0.0"}'
    named = {"annotations": {"org.opencontainers.image.ref.name": "latest"}}
    assert json.loads(files["index.json"]) == {
        "schemaVersion": 2,
        "manifests": [{**expected.remote.manifest.as_json(), **named}],
    }


def test_a_tarball_that_is_a_layer_of_a_layout_is_no_other_name_of_it(tmp_path: Path) -> None:
    output, image = laid_out(tmp_path)
    layer = image.remote.layers[0]
    tarball = judged_image(
        "charliecloud", "", source=image.source, remote=image.remote, artifact=layer
    )
    (tmp_path / "tarball").mkdir()
    FormatPacker(judged=tarball, store=store_of(tmp_path)).make(tmp_path / "tarball")
    shown = output / "image.oci/blobs/sha256" / layer.digest.partition(":")[2]
    assert (tmp_path / "tarball/image.tar.gz").read_bytes() == shown.read_bytes() == LAYER
    assert not shown.samefile(tmp_path / "tarball/image.tar.gz")


DATA = [layer_of([file(name)]) for name in "abcdef"]
LAYERS = {Descriptor.of(data, GZIPPED).digest: data for data in DATA}


def with_layers(source: Registry) -> Judged:
    """An image with seven layers, one of them twice."""
    layers = tuple(Descriptor.of(data, GZIPPED) for data in (*DATA, DATA[0]))
    remote = replace(found(), layers=layers)
    return judged_image("oci", "", source=cast("Source", source), remote=remote)


def test_four_layers_arrive_at_once_and_each_one_once(tmp_path: Path) -> None:
    asked, four = list[str](), threading.Barrier(4)

    class Counting(Registry):
        def read_blob(self, wanted: Descriptor, path: Path) -> None:
            asked.append(wanted.digest)
            if len(asked) <= 4:
                four.wait(20)
            path.write_bytes(LAYERS[wanted.digest])

    packer = FormatPacker(judged=with_layers(Counting()), store=store_of(tmp_path))
    (tmp_path / "out").mkdir()
    unpacked = packer.make(tmp_path / "out")
    assert unpacked is not None
    assert unpacked.paths == 6
    assert sorted(asked) == sorted(LAYERS)


def test_a_layer_that_is_refused_stops_the_others(tmp_path: Path) -> None:
    """Those on the way end, and the rest is not asked for."""
    asked, stopped = list[str](), threading.Event()

    class Slow(Registry):
        def read_blob(self, wanted: Descriptor, path: Path) -> None:
            asked.append(wanted.digest)
            if LAYERS[wanted.digest] is not DATA[0]:
                stopped.wait(20)
                raise Interrupted("interrupted")
            path.write_bytes(b"no layer")

        def stop(self) -> None:
            stopped.set()

    packer = FormatPacker(judged=with_layers(Slow()), store=store_of(tmp_path))
    (tmp_path / "out").mkdir()
    with pytest.raises(Refused, match="all of its data was removed"):
        packer.make(tmp_path / "out")
    assert stopped.is_set()
    assert len(asked) <= 5
    assert [path.name for path in store_of(tmp_path).folder.glob("*.partial")] == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("begun", [True, False])
def test_what_is_left_of_a_blob_after_an_error(number: int, begun: bool, tmp_path: Path) -> None:
    """The begin of a download is kept, unless the disk is full."""

    class Failing(Registry):
        def read_blob(self, _wanted: Descriptor, path: Path) -> None:
            if begun:
                path.write_bytes(b"begin")
            raise OSError(number, "it failed")

    store = BlobStore(folder=tmp_path / "pulls/blobs")
    with pytest.raises(OSError, match="it failed"):
        store.get(cast("Source", Failing()), found().layers[0])
    is_kept = begun and number == errno.EIO
    assert len([path for path in store.folder.iterdir() if path.is_file()]) == is_kept


LEVELS = ("", "blobs", "blobs/sha256", "index.json", "oci-layout", "blobs/sha256/*")


@pytest.mark.parametrize("level", LEVELS)
def test_a_layout_that_others_may_write_is_refused(level: str, tmp_path: Path) -> None:
    output, expected = laid_out(tmp_path)
    layout = output / "image.oci"
    [one, *_] = layout.glob(level) if level else [layout]
    one.chmod(0o775)
    with pytest.raises(Refused, match="writable by other users"):
        existing_output(output, expected)


def into_blobs(pulls: Path) -> None:
    BlobStore(folder=pulls / "blobs").get(cast("Source", Registry()), found().layers[0])


def into_last(pulls: Path) -> None:
    Last(folder=pulls / "last").write("x:1", pulled("sha256:1", None), Policy(keys=()))


def from_last(pulls: Path) -> None:
    Last(folder=pulls / "last").read("x:1", "x86_64")


KEPT: list[tuple[Callable[[Path], None], str]] = [
    (into_blobs, "blobs"),
    (into_last, "last"),
    (from_last, "last"),
]


@pytest.mark.parametrize(("use", "name"), KEPT)
def test_what_is_kept_is_out_of_others_reach(
    use: Callable[[Path], None], name: str, tmp_path: Path
) -> None:
    pulls = tmp_path / "no/home/pulls"
    use(pulls)
    for one in (pulls, pulls / name) if use is not from_last else ():
        assert one.stat().st_mode & 0o777 == 0o700
    (pulls / name).mkdir(parents=True, exist_ok=True)
    for one in (pulls, pulls / name):
        pulls.chmod(0o700)
        (pulls / name).chmod(0o700)
        one.chmod(0o770)
        with pytest.raises(Refused, match=f"writable by other users(?s:.*)chmod 700 {one}"):
            use(pulls)
        one.chmod(0o700)
        if os.geteuid() == 0:
            os.chown(one, 12345, 12345)
            with pytest.raises(Refused, match="owned by another user"):
                use(pulls)
            os.chown(one, 0, 0)
    (pulls / name).rename(tmp_path / "moved")
    (pulls / name).symlink_to(tmp_path / "moved")
    with pytest.raises(Refused, match="is not a folder"):
        use(pulls)
