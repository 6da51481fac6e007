"""The default images that ordinary users build are those that root builds, whatever the driver."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import PROJECT, passed
from ordinary_users import users, verified_digest

from builder.build.engines import Tools

pytestmark = [
    pytest.mark.engines,
    pytest.mark.long(reason="builds the default images twice more, for both architectures"),
]


@pytest.mark.parametrize("driver", ["overlay", "vfs"])
def test_the_digests_are_those_of_root(
    hpc_base: dict[str, Path], tools: Tools, out: Path, driver: str
) -> None:
    """The user makes both bases; packages and native tools are taken from root's home."""
    with users("bi-test-default") as [user]:
        shared = user.home.parent / "shared"
        shared.mkdir()
        for name in ("tools", "packages", "native"):
            (shared / name).symlink_to(tools.home.path / name)
        env = {
            "BUILD_IMAGES_HOME": str(user.home / "store"),
            "BUILD_IMAGES_SHARED": str(shared),
            "STORAGE_DRIVER": driver,
        }
        target = user.home / "out"
        words = ("--project", PROJECT, "--output", target, "--format", "oci")
        passed(user.build_images(*words, env=env))
        digests = {name.name: verified_digest(target / name.name) for name in hpc_base.values()}
    (out / f"digests-of-a-user-{driver}.json").write_text(json.dumps(digests, indent=1))
    assert digests == {name.name: verified_digest(name) for name in hpc_base.values()}
