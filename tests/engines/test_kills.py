"""Builders that are killed at any moment, and two at once: what they leave is whole or redone.

The builder is killed twice in `make test`, at moments that a fixed seed chooses, and 25 times in
`make test-long`, at other moments each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import (
    LONG,
    PROJECT,
    Ended,
    build_images,
    manifest_of,
    passed,
    processes,
    small_disk,
    wait_for,
)

from builder.artifacts import oci
from builder.model.digests import sha256_of_file
from builder.system.orphans import MARK

pytestmark = pytest.mark.engines

KILLS = 25 if LONG else 2
# A SIF takes as long as all else of an image of this size.
FORMATS = ("oci", "charliecloud", *(["sif"] if LONG else []))
PACKED = [f"--format={name}" for name in FORMATS]
MOST_IN_A_ROW = 3
CELLS = ("core-1.0-small-x86_64", "leaf-1.0-small-x86_64")
CORE = """\
recipe: core
version: "1.0"
about: what both images have
development:
  - shell: {{commands: ["echo {number} >> /var/tmp/built; sleep 1; seq 9999 > /opt/core"]}}
runtime:
  - shell: {{commands: ["true {number}; sleep 1; seq 99999 > /opt/seq"]}}
"""
LEAF = """\
recipe: leaf
version: "1.0"
about: one more step
parent: core
development:
  - shell: {{commands: ["true {number}; sleep 1"]}}
runtime:
  - shell: {{commands: ["seq 9 > /opt/leaf"]}}
"""


def shown(number: int) -> str:
    """A number as recipes have it: of one width, so that no size depends on it."""
    return f"{number:04}"


def write_recipes(site: Path, number: int) -> None:
    """Other instructions for the same files: all is built anew, and the history alone differs."""
    for recipe in (site / "recipes").glob("*.yaml"):
        recipe.unlink()
    for name, text in (("core", CORE), ("leaf", LEAF)):
        (site / f"recipes/{name}.yaml").write_text(text.format(number=shown(number)))


def started(site: Path, home: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "builder", "--project", str(site), "--all", *arguments],
        cwd=PROJECT,
        env={**os.environ, "BUILD_IMAGES_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def finished(site: Path, home: Path, *arguments: str) -> float:
    """Run to the end; the seconds that it took."""
    start = time.monotonic()
    env = {"BUILD_IMAGES_HOME": str(home)}
    passed(build_images("--project", site, "--all", *arguments, env=env))
    return time.monotonic() - start


def digests(out: Path, number: int) -> dict[str, dict[str, str]]:
    """The digests of each image, all verified: those of its formats, of its tree and its layers.

    The OCI layout's is that which it would have with the instructions of `write_recipes(site, 0)`,
    byte for byte. A SIF has the time of its making in it: of it there is the tree's.
    """
    found = {}
    for name in CELLS:
        manifest, layout = manifest_of(out / name), oci.read_layout(out / name / "image.oci")
        artifacts = manifest["artifacts"]
        assert manifest["outcome"] == "verified"
        assert manifest["formats_equal"] is True
        assert {a["tree_digest"] for a in artifacts.values()} == {manifest["tree_digest"]}
        assert layout.digest == artifacts["oci"]["digest"]
        tarball = sha256_of_file(out / name / "image.tar.gz")
        assert f"sha256:{tarball}" == artifacts["charliecloud"]["digest"]
        assert set(artifacts) == set(FORMATS)
        if LONG:
            sif = sha256_of_file(out / name / "image.sif")
            assert f"sha256:{sif}" == artifacts["sif"]["digest"]
        found[name] = {
            "tree": manifest["tree_digest"],
            "layers": " ".join(blob.name for blob in layout.layers),
            "oci": as_number_0(layout, number),
            "charliecloud": tarball,
        }
    return found


def as_number_0(layout: oci.Layout, number: int) -> str:
    """The digest of a layout as if its history had the number 0: nothing else of it is changed."""
    manifest = oci.blob_path(layout.path, layout.digest).read_bytes()
    name = json.loads(manifest)["config"]["digest"]
    config = oci.blob_path(layout.path, name).read_bytes()
    there = f"true {shown(number)};".encode()
    assert there in config
    changed = config.replace(there, f"true {shown(0)};".encode())
    digest = hashlib.sha256(changed).hexdigest()
    return hashlib.sha256(manifest.replace(name[7:].encode(), digest.encode())).hexdigest()


def marked(home: Path) -> list[int]:
    """The processes that builders of a home started."""
    mark = f"{MARK}={home.resolve()}/".encode()
    started = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            variables = (entry / "environ").read_bytes().split(b"\0")
            if any(variable.startswith(mark) for variable in variables):
                started.append(int(entry.name))
    return started


@pytest.mark.campaign
def test_killed_at_any_moment(small_site: Path, small_home: Path) -> None:
    write_recipes(small_site, 0)
    full_s = finished(small_site, small_home, *PACKED)
    wanted = digests(small_site / "out", 0)
    seed = random.randrange(1 << 32) if LONG else 3
    print(f"seed {seed}, a whole run takes {full_s:.1f} s")
    chance = random.Random(seed)
    number, in_a_row, kills = 1, 0, 0
    write_recipes(small_site, number)
    while kills < KILLS:
        with started(small_site, small_home, *PACKED) as child:
            assert child.stderr is not None
            try:
                child.wait(timeout=chance.uniform(0.3, full_s))
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
                child.wait()
                kills += 1
                in_a_row += 1
            else:
                assert child.returncode == 0, child.stderr.read().decode()
                in_a_row = MOST_IN_A_ROW
        if in_a_row >= MOST_IN_A_ROW or kills == KILLS:
            finished(small_site, small_home, *PACKED)
            assert digests(small_site / "out", number) == wanted
            assert not marked(small_home)
            number, in_a_row = number + 1, 0
            write_recipes(small_site, number)


def test_what_a_killed_builder_started_is_ended(small_site: Path, small_home: Path) -> None:
    write_recipes(small_site, 0)
    marker = "sleep 4711"
    core = (small_site / "recipes/core.yaml").read_text()
    (small_site / "recipes/core.yaml").write_text(
        core.replace("sleep 1; seq 9999", f"{marker} & {marker}")
    )
    with started(small_site, small_home, "--quiet") as child:
        wait_for(lambda: len(processes(f"^{marker}$")) == 2)
        child.kill()
        child.wait()
    left = marked(small_home)
    assert left
    os.kill(min(left), signal.SIGKILL)  # buildah, too: what runs in the container is nobody's then
    assert processes(f"^{marker}$")
    write_recipes(small_site, 0)
    finished(small_site, small_home, "--format", "oci", "--no-verify")
    assert not processes(f"^{marker}$")
    assert not marked(small_home)


def test_two_builders_share_a_store_and_build_a_stage_once(
    small_site: Path, small_home: Path
) -> None:
    write_recipes(small_site, 0)
    both = [
        started(
            small_site,
            small_home,
            f"--output={small_site}/{name}",
            f"--image={name}*",
            "--format=oci",
            "--no-verify",
        )
        for name in ("core", "leaf")
    ]
    for child in both:
        _, stderr = child.communicate(timeout=600)
        assert child.returncode == 0, stderr.decode()
    logs = list((small_home / "stages").glob("core-development-*/*.log"))
    assert len(logs) == 1
    assert logs[0].read_text().count(f"STEP 2/2: RUN echo {shown(0)} ") == 1
    kept = json.loads(next((small_home / "stages").glob("core-development-*/*.json")).read_text())
    for name in ("core", "leaf"):
        manifest = manifest_of(small_site / name / f"{name}-1.0-small-x86_64")
        assert manifest["inputs"]["stages"]["core-development"] == kept["key"]


def test_a_disk_that_fills_up(small_site: Path, small_home: Path) -> None:
    """The home on a small file system: exit status 4, and what took the room is gone again."""
    write_recipes(small_site, 0)
    core = small_site / "recipes/core.yaml"
    sound = core.read_text()
    big = "dd if=/dev/zero of=/opt/big bs=1M count=4000 && seq 9999"
    words = ("--project", small_site, "--all", "--format=oci", "--no-verify")
    with small_disk(small_home / "small", size="3400m,mode=755") as small:
        for name in ("tools", "bases"):
            (small / name).symlink_to(small_home / name)

        def built() -> Ended:
            """One job at a time: the room for one image is what a run must have."""
            return build_images(*words, "--jobs=1", env={"BUILD_IMAGES_HOME": str(small)})

        core.write_text(sound.replace("sleep 1; seq 9999", big))
        full = built()
        assert full.status == 4, full.stderr
        assert "the disk is full" in full.stderr
        assert not list((small_site / "out").glob("*/manifest.json"))
        assert shutil.disk_usage(small).used < 1 << 30
        core.write_text(sound)
        passed(built())
