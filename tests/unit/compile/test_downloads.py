"""What blocks download, and what the specs say instead where it is locked."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import hpccm.templates
import pytest
from samples import block, image, recipe

from builder.compile.spec import compile_spec, downloads_of
from builder.compile.spec.downloads import Asked
from builder.model import Lock, LockedSource, PlannedImage
from builder.model.errors import BadInput

UCX = "https://github.com/openucx/ucx/releases/download/v1.18.1/ucx-1.18.1.tar.gz"
DEBIAN = "debian-source:openmpi/5.0.7"
OTHER = "https://upstream.example/other-1.0.tar.gz"


def locked(url: str, file: str, *, path: str = "", recipes: tuple[str, ...] = ("core",)) -> Lock:
    one = LockedSource(url=url, file=file, sha256="ab" * 32, size=7, path=path, recipes=recipes)
    return Lock(sources={url: one})


DEBIAN_LOCK = locked(
    DEBIAN, "openmpi_5.0.7.orig.tar.xz", path="pool/main/o/openmpi/openmpi_5.0.7.orig.tar.xz"
)
UCX_BLOCK = block("ucx", version="1.18.1", cuda=False)


def planned(root: Path, lock: Lock, **parts: Any) -> PlannedImage:
    return image(root, recipes=[recipe("core", **parts)], lock=lock)


def texts(planned_image: PlannedImage) -> tuple[str, str]:
    spec = compile_spec(planned_image, run_checks="")
    return spec.dockerfile, spec.singularity


def test_what_is_not_locked_is_fetched_by_wget(tmp_path: Path) -> None:
    for text in texts(planned(tmp_path, Lock(), development=(UCX_BLOCK,))):
        assert f"wget -q -nc -P /var/tmp {UCX}" in text
        assert "sha256sum" not in text


def test_what_is_locked_is_copied_in_and_verified(tmp_path: Path) -> None:
    lock = locked(UCX, "ucx-1.18.1.tar.gz")
    spec = compile_spec(planned(tmp_path, lock, development=(UCX_BLOCK,)), run_checks="")
    place = "/opt/build-images/sources/core/ucx-1.18.1.tar.gz"
    context = "files/sources/abababababab/ucx-1.18.1.tar.gz"
    assert f"COPY {context} {place}\n" in spec.dockerfile
    assert f"%files\n    {context} {place}\n" in spec.singularity
    for text in (spec.dockerfile, spec.singularity):
        assert f"wget -q -nc -P /var/tmp {UCX}" not in text
        assert f'echo "{"ab" * 32}  {place}" | sha256sum -c -' in text
        assert f"mv {place} /var/tmp/ucx-1.18.1.tar.gz" in text
        assert "tar -x -f /var/tmp/ucx-1.18.1.tar.gz" in text
        assert text.index("COPY" if text is spec.dockerfile else "%files") < text.index("sha256sum")
    assert [one.url for one in spec.sources] == [UCX]


def test_labels_name_a_download_whether_it_is_locked_or_not(tmp_path: Path) -> None:
    noted = block("ucx", version="1.18.1", cuda=False, annotate=True)
    for lock in (Lock(), locked(UCX, "ucx-1.18.1.tar.gz")):
        for text in texts(planned(tmp_path, lock, development=(noted,))):
            assert re.search(rf"hpccm\.ucx\.url[= ]\"?{re.escape(UCX)}", text)


def test_a_source_of_the_recipe_is_given_to_a_block(tmp_path: Path) -> None:
    use = block(
        "generic_autotools",
        url="{{ sources.openmpi.url }}",
        directory="openmpi-5.0.7",
        prefix="/usr/local/openmpi",
    )
    parts: dict[str, Any] = {
        "development": (use,),
        "sources": {"unused": (UCX,), "openmpi": (OTHER, DEBIAN)},
    }
    for text in texts(planned(tmp_path, DEBIAN_LOCK, **parts)):
        assert "mv /opt/build-images/sources/core/openmpi_5.0.7.orig.tar.xz /var/tmp/" in text
        assert "tar -x -f /var/tmp/openmpi_5.0.7.orig.tar.xz -C /var/tmp -J" in text
        assert "cd /var/tmp/openmpi-5.0.7" in text
    for text in texts(planned(tmp_path, Lock(), **parts)):
        assert f"wget -q -nc -P /var/tmp {OTHER}" in text
    asked = downloads_of([planned(tmp_path, Lock(), **parts)]).asked
    assert list(asked) == [Asked(recipe="core", urls=(OTHER, DEBIAN))]


def test_a_source_of_the_recipe_is_there_for_commands(tmp_path: Path) -> None:
    use = block("shell", commands=["tar -xf {{ sources.other.file }}"])
    parts = {"development": (use,), "sources": {"other": (OTHER,), "unused": (UCX,)}}
    place = "/opt/build-images/sources/core/other-1.0.tar.gz"
    for text in texts(planned(tmp_path, locked(OTHER, "other-1.0.tar.gz"), **parts)):
        assert re.search(rf"files/sources/\w+/other-1\.0\.tar\.gz {place}\n", text)
        assert text.index("sha256sum -c -") < text.index(f"tar -xf {place}")
        assert "ucx" not in text
    for text in texts(planned(tmp_path, Lock(), **parts)):
        assert f"wget -q -nc -P /opt/build-images/sources/core {OTHER}" in text


def test_a_block_for_a_toolchain_copies_nothing_again(tmp_path: Path) -> None:
    url = "https://www.open-mpi.org/software/ompi/v4.1/downloads/openmpi-4.1.6.tar.bz2"
    uses = (
        block("openmpi", version="4.1.6", cuda=False, infiniband=False),
        block("hdf5", version="1.14.5", toolchain="mpi"),
    )
    asked = downloads_of([planned(tmp_path, Lock(), development=uses)]).asked
    assert Asked(recipe="core", urls=(url,)) in asked
    lock = Lock(
        sources={
            one.urls[0]: LockedSource(
                url=one.urls[0],
                file=one.urls[0].rpartition("/")[2],
                sha256="cd" * 32,
                size=7,
                recipes=("core",),
            )
            for one in asked
        }
    )
    for text in texts(planned(tmp_path, lock, development=uses)):
        copied = re.findall(r"^(?:COPY|   ) files/sources/\S+/(\S+) ", text, re.MULTILINE)
        assert [name.partition("-")[0] for name in copied] == ["openmpi", "hdf5"]


def test_a_url_that_is_not_locked_beside_others_that_are_is_a_fault(tmp_path: Path) -> None:
    one = planned(tmp_path, locked(OTHER, "other-1.0.tar.gz"), development=(UCX_BLOCK,))
    with pytest.raises(BadInput) as caught:
        compile_spec(one, run_checks="")
    [fault] = caught.value.faults
    assert (fault.file, fault.line) == ("recipes/core.yaml", 5)
    assert f"{UCX} is not in lock.yaml" in fault.problem
    assert "build-images lock --recipe core" in fault.valid


def test_only_the_lock_knows_where_debian_has_a_source(tmp_path: Path) -> None:
    use = block("generic_autotools", url="{{ sources.it.url }}", prefix="/opt/it")
    parts = {"development": (use,), "sources": {"it": (DEBIAN,)}}
    with pytest.raises(BadInput, match="only the lock has its URL"):
        compile_spec(planned(tmp_path, Lock(), **parts), run_checks="")
    found = downloads_of([planned(tmp_path, Lock(), **parts)])
    assert list(found.asked) == [Asked(recipe="core", urls=(DEBIAN,))]


def test_clones_are_told(tmp_path: Path) -> None:
    use = block("ucx", repository="https://github.com/openucx/ucx.git", commit="abc", cuda=False)
    found = downloads_of([planned(tmp_path, Lock(), development=(use,))])
    assert list(found.clones) == [("core", "https://github.com/openucx/ucx.git", "abc")]


def test_the_lock_is_a_part_of_the_content_key(tmp_path: Path) -> None:
    lock = locked(UCX, "ucx-1.18.1.tar.gz")
    changed = Lock(sources={UCX: dataclasses.replace(lock.sources[UCX], sha256="cd" * 32)})
    others = locked(UCX, "ucx-1.18.1.tar.gz", recipes=("another",))
    keys = [
        planned(tmp_path, one, development=(UCX_BLOCK,)).content_key
        for one in (Lock(), others, lock, changed)
    ]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_hpccm_is_left_as_it_was(tmp_path: Path) -> None:
    before = hpccm.templates.wget.download_step, hpccm.templates.git.clone_step
    compile_spec(planned(tmp_path, Lock(), development=(UCX_BLOCK,)), run_checks="")
    assert before == (hpccm.templates.wget.download_step, hpccm.templates.git.clone_step)
