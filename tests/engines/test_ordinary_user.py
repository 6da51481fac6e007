"""Ordinary users of a shared host: homes of mode 0700, umask 077, with and without sub-ids.

One user makes a base by mmdebstrap. All else is built on a small one that is shared: by two users,
by root, with both drivers.
"""

from __future__ import annotations

import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness import FORMATS, Ended, build_images, manifest_of, passed, small_disk
from ordinary_users import User, users, verified_digest
from projects import copy_of_project
from small_base import add_small_base, store_small_base

from builder.build.engines import Tools
from builder.build.mirror import SECURITY_VARIABLE

pytestmark = pytest.mark.engines

IMAGE = "steps-1.0-small-x86_64"
BARE = "lean-1.0-bare-x86_64"
BASE = """\
base: bare
about: Debian 13 with nothing more
distribution: debian
version: "13"
hpccm: ubuntu24
architectures: [x86_64]
bootstrap:
  suite: trixie
  components: [main]
  pockets: [security]
  packages: []
  keyring: debian-archive-keyring.gpg
"""
# What drivers see differently: modes, owners, links, and what a step changes of the layer below.
RECIPE = """\
recipe: steps
version: "1.0"
about: steps that change what is below
development: []
runtime:
  - shell:
      commands:
        - mkdir -p /opt/m/deep /opt/m/tree/of/folders
        - echo X=1 >/opt/m/module
        - seq 99 >/opt/m/tree/of/folders/numbers
        - chmod 2750 /opt/m/deep
        - chown 1234:4321 /opt/m/deep
        - mkfifo /opt/m/pipe
        - ln /opt/m/module /opt/m/same
  - shell:
      commands:
        - chown root:root /etc/passwd
        - touch -r /usr/bin/ls /usr/bin/ls
        - rm -rf /opt/m/deep
        - mkdir /opt/m/deep
        - echo new >/opt/m/deep/file
        - ln /usr/bin/cat /usr/bin/cat-again
        - cp -a /opt/m/tree /opt/m/copy
        - rm -rf /opt/m/tree
        - mv /opt/m/copy /opt/m/tree
        - chmod u+s /usr/bin/env
        - sed -i s/1/2/ /opt/m/module
"""
MATRIX = "axes: {arch: [x86_64], base: [small, bare], cuda: [none], mpi: [none]}\ninherit: false\n"
WITH_SECURITY = {SECURITY_VARIABLE: ""}  # as where nobody set it: updates are taken


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A shared host: two users with sub-ids and one without, and what an administrator shares."""

    first: User
    second: User
    without_ids: User
    project: Path
    shared: Path

    def environment(self, home: Path, **more: str) -> dict[str, str]:
        folders = {"BUILD_IMAGES_HOME": str(home), "BUILD_IMAGES_SHARED": str(self.shared)}
        return {**folders, **more}

    def build(self, user: User, name: str, *formats: str, driver: str = "") -> Ended:
        """Build the image in a store of the user's own, with the output beside it."""
        more = {"STORAGE_DRIVER": driver} if driver else {}
        return user.build_images(
            *self.argv(IMAGE, user.home / f"out-{name}", *formats),
            env=self.environment(user.home / f"store-{name}", **more),
        )

    def argv(self, image: str, out: Path, *formats: str) -> list[str | Path]:
        chosen = [f"--format={one}" for one in formats or ("oci",)]
        return ["--project", self.project, "--image", image, "--output", out, *chosen]


@pytest.fixture(scope="module")
def host(tools: Tools) -> Iterator[Host]:
    names = ("bi-test-first", "bi-test-second", "bi-test-without")
    with users(*names, without_ids=names[2:]) as made:
        place = made[0].home.parent
        project = copy_of_project(place / "project")
        add_small_base(project)
        (project / "base-images/bare.yaml").write_text(BASE)
        (project / "recipes/steps.yaml").write_text(RECIPE)
        (project / "matrix.yaml").write_text(MATRIX)
        shared = place / "shared"
        store_small_base(project, shared)
        for name in ("tools", "packages"):
            (shared / name).symlink_to(tools.home.path / name)
        yield Host(
            first=made[0],
            second=made[1],
            without_ids=made[2],
            project=project,
            shared=shared,
        )


@pytest.fixture(scope="module")
def built(host: Host) -> Path:
    """The image's folder, as the first user built it in all formats."""
    passed(host.build(host.first, "overlay", *FORMATS, driver="overlay"))
    return host.first.home / "out-overlay" / IMAGE


@pytest.fixture(scope="module")
def on_bare(host: Host) -> Path:
    """The folder of an image on a base that the second user made."""
    out = host.second.home / "out-bare"
    env = host.environment(host.second.home / "store-bare", **WITH_SECURITY)
    done = host.second.build_images(*host.argv(BARE, out), env=env)
    assert done.status == 0, done.stderr
    return out / BARE


def test_in_a_closed_home_a_base_is_made(on_bare: Path) -> None:
    """With security updates, for nobody said that they are to be left out."""
    manifest = manifest_of(on_bare)
    assert manifest["outcome"] == "verified"
    suites = {one["suite"] for one in manifest["inputs"]["indices"]}
    assert suites == {"trixie", "trixie-security"}


@pytest.mark.long(reason="makes a base once more")
def test_a_base_that_root_makes_is_the_same(host: Host, on_bare: Path) -> None:
    env = host.environment(host.shared.parent / "root-bare", **WITH_SECURITY)
    out = host.shared.parent / "out-root-bare"
    passed(build_images(*host.argv(BARE, out), env=env))
    assert verified_digest(out / BARE) == verified_digest(on_bare)


def test_in_a_closed_home_all_formats_are_built_and_proven(host: Host, built: Path) -> None:
    manifest = manifest_of(built)
    assert manifest["outcome"] == "verified"
    assert manifest["formats_equal"] is True
    assert stat.S_IMODE(host.first.home.stat().st_mode) == 0o700
    for name in ("image.sif", "Singularity.def"):
        assert bytes(host.first.home) not in (built / name).read_bytes(), name


def test_root_builds_the_same(host: Host, built: Path) -> None:
    place = host.shared.parent
    env = host.environment(place / "root", STORAGE_DRIVER="overlay")
    passed(build_images(*host.argv(IMAGE, place / "out-root"), env=env))
    assert verified_digest(place / "out-root" / IMAGE) == verified_digest(built)


def test_vfs_builds_the_same_and_says_that_it_is_taken(host: Host, built: Path) -> None:
    done = passed(host.build(host.first, "vfs", driver="vfs"))
    assert "the store: vfs" in done.stderr
    assert verified_digest(host.first.home / "out-vfs" / IMAGE) == verified_digest(built)


def test_two_users_build_at_once(host: Host, built: Path) -> None:
    """Each in a store of their own, with the base that is shared; whatever driver works here."""
    started = [
        user.started(
            *(*user.python, "-m", "builder"),
            *host.argv(IMAGE, user.home / "out-beside"),
            env=host.environment(user.home / "store-beside"),
        )
        for user in (host.first, host.second)
    ]
    ended = [(one.communicate(timeout=900), one.returncode) for one in started]
    assert [status for _, status in ended] == [0, 0], ended
    for user in (host.first, host.second):
        assert verified_digest(user.home / "out-beside" / IMAGE) == verified_digest(built)
        [base] = (user.home / "store-beside/bases").glob("small-*")
        assert base.resolve().is_relative_to(host.shared)
    assert host.second.run("ls", host.first.home).status != 0


def test_without_sub_ids_nothing_is_built_and_a_free_range_is_told(host: Host, built: Path) -> None:
    del built
    done = host.build(host.without_ids, "none")
    assert done.status == 4, done.stderr
    assert f"--add-subuids {100_000}-" not in done.stderr, "which another user has"
    [told] = [one for one in done.stderr.split() if one.count("-") == 1 and one[0].isdigit()][:1]
    first, last = map(int, told.split("-"))
    for line in Path("/etc/subuid").read_text().splitlines():
        _, start, count = line.split(":")
        assert last < int(start) or first >= int(start) + int(count)


def test_without_sub_ids_verify_leaves_good_evidence(host: Host, built: Path) -> None:
    """What cannot be tried here says nothing of the image: exit code 4, and nothing is written."""
    copy = host.without_ids.home / "out/image"
    shutil.copytree(built, copy)
    subprocess.run(["chown", "-R", host.without_ids.name, copy.parent], check=True)
    before = {one: one.read_bytes() for one in (copy / "evidence/oci.json", copy / "manifest.json")}
    done = host.without_ids.build_images(
        *("verify", copy, "--runner", "buildah", "--project", host.project),
        env=host.environment(host.without_ids.home / "store"),
    )
    assert done.status == 4, done.stderr
    assert {one: one.read_bytes() for one in before} == before


@pytest.mark.parametrize(
    ("options", "why"),
    [("ro", "Read-only file system"), ("noexec", "mounted noexec"), ("size=1m", "may be needed")],
)
def test_a_home_that_will_not_do_ends_with_4(host: Host, options: str, why: str) -> None:
    """Read-only, without programs, or full: found out by trying, before anything starts."""
    user = host.second
    with small_disk(user.home / f"disk-{options}", size="64m") as disk:
        subprocess.run(["chown", user.name, disk], check=True)
        subprocess.run(["mount", "-o", f"remount,{options}", disk], check=True)
        env = host.environment(disk / "store")
        done = user.build_images(*host.argv(IMAGE, user.home / "out-disk"), env=env)
        assert done.status == 4, done.stderr
        assert str(disk) in done.stderr
        assert why in done.stderr
        looked = user.build_images("doctor", env=env)
        assert looked.status == 4
        lines = looked.stdout.splitlines()
        assert any("✗" in line and str(disk) in line and why in line for line in lines)


def test_doctor_finds_that_such_a_user_can_build(host: Host, built: Path) -> None:
    del built
    done = host.first.build_images("doctor", env=host.environment(host.first.home / "store-doctor"))
    assert "✓ yes  build x86_64 images" in done.stdout, done.stdout
    assert "unpacked" in done.stdout
