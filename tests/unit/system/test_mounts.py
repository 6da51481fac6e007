"""What is mounted below a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.system import files
from builder.system.files import mounted_below, type_of

TABLE = r"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:20 / /proc rw - proc proc rw
41 22 254:0 /home/tmp/a /home/tmp/a rw - ext4 /dev/vda rw
42 41 0:40 / /home/tmp/a/with\040space\134 rw - overlay overlay rw
43 22 0:41 / /home/tmpfs rw - tmpfs tmpfs rw
"""


def test_what_is_below_comes_last_mounted_first(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(TABLE)
    below = [Path("/home/tmp/a/with space\\"), Path("/home/tmp/a")]
    assert mounted_below(Path("/home/tmp"), mounts=mounts) == below
    assert mounted_below(Path("/home/tmp/a"), mounts=mounts) == below
    assert mounted_below(Path("/home/tm"), mounts=mounts) == []


def test_this_machines_mounts() -> None:
    assert Path("/proc") in mounted_below(Path("/"))
    assert type_of(Path("/proc/self")) == "proc"


def test_the_file_system_of_a_folder_is_the_last_one_mounted_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(TABLE + "44 22 0:42 / /home/tmp/a rw - xfs /dev/vdb rw\n")
    monkeypatch.setattr(files, "_MOUNTS", mounts)
    found = {name: type_of(Path("/home", name)) for name in ("tmpfs/x", "tmp/a/b", "tmp", "tmpf")}
    assert found == {"tmpfs/x": "tmpfs", "tmp/a/b": "xfs", "tmp": "ext4", "tmpf": "ext4"}
    mounts.write_text("")
    assert type_of(Path("/home")) == ""
