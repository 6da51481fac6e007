"""What is mounted below a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.system import files
from builder.system.files import as_root_of_own, mounted_below, type_of, unmount_below
from builder.system.process import Completed, Processes

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


@pytest.mark.parametrize(
    ("status", "said", "reason"),
    [(1, "one\ntwo\n", "two"), (1, "", "umount /proc failed"), (0, "a warning", "")],
)
def test_what_stays_mounted_is_told(status: int, said: str, reason: str) -> None:
    class Umount(Processes):
        def capture(self, argv: Any, **_: object) -> Completed:
            assert argv[0] == "umount"
            is_last = argv[1] == Path("/proc")
            return Completed(argv=argv, returncode=status if is_last else 0, stderr=said)

    assert unmount_below(Path("/proc"), Umount()) == reason


def test_rights_of_root_are_those_of_sub_ids_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for user, prefix in ((0, ("unshare", "--mount")), (1000, ("buildah", "unshare"))):
        monkeypatch.setattr("os.geteuid", lambda user=user: user)
        assert as_root_of_own() == prefix


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
