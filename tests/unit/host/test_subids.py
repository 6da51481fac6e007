"""Sub-ids: a range that nobody has is proposed, and ranges that users share are told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builder.host.doctor.diagnosis import Item, SystemRoots
from builder.host.doctor.machine import IDS, IdRange, free_range, id_items

PASSWD = "root:x:0:0::/root:/bin/sh\nbuild-images:x:999:999::/:/x\nalice:x:1000:1000::/:/bin/sh\n"


def host(folder: Path, subuid: str, subgid: str = "", *, passwd: str = PASSWD) -> SystemRoots:
    for name, text in (("subuid", subuid), ("subgid", subgid or subuid), ("passwd", passwd)):
        (folder / name).write_text(text)
    return SystemRoots(etc=folder)


def items(user: str, roots: SystemRoots) -> dict[str, Item]:
    return {one.key: one for one in id_items(user, roots)}


def test_the_proposed_range_is_free(tmp_path: Path) -> None:
    """Two users with the same range could read and overwrite each other's files."""
    roots = host(tmp_path, "build-images:100000:65536\n")
    found = items("alice", roots)
    assert found["subuid"].remedy == "sudo usermod --add-subuids 165536-231071 alice"
    assert found["subgid"].remedy == "sudo usermod --add-subgids 165536-231071 alice"


@pytest.mark.parametrize(
    "taken",
    [
        pytest.param("bob:100000:65536\n", id="the first"),
        pytest.param("bob:90000:20000\n", id="its beginning"),
        pytest.param("bob:165535:2\n", id="the end of one and the beginning of the next"),
        pytest.param("bob:100000:1000000\n", id="many"),
        pytest.param("1234:100000:65536\n", id="of a user id"),
    ],
)
def test_no_line_overlaps_the_proposed_range(tmp_path: Path, taken: str) -> None:
    owner, first, count = taken.strip().split(":")
    there = IdRange(owner=owner, first=int(first), count=int(count))
    for subuid, subgid in ((taken, "\n"), ("\n", taken)):
        assert not free_range("alice", host(tmp_path, subuid, subgid)).overlaps(there)


def test_no_users_own_id_is_in_the_proposed_range(tmp_path: Path) -> None:
    """Directory services give ids above 100000, too."""
    roots = host(tmp_path, "\n", passwd=f"{PASSWD}carol:x:120000:100::/:/bin/sh\n")
    assert free_range("alice", roots).first == 100_000 + IDS


def test_two_users_who_ask_at_once_are_told_two_ranges(tmp_path: Path) -> None:
    roots = host(tmp_path, "\n", passwd=f"{PASSWD}bob:x:1001:1001::/:/bin/sh\n")
    assert not free_range("alice", roots).overlaps(free_range("bob", roots))


@pytest.mark.parametrize("subuid", ["alice:100000:65536\n", "1000:100000:65536\n"])
def test_a_line_by_user_id_counts(tmp_path: Path, subuid: str) -> None:
    found = items("alice", host(tmp_path, subuid))
    assert all(item.ok for item in found.values()), found


def test_a_user_of_a_directory_service_is_known_by_its_id(tmp_path: Path) -> None:
    roots = host(tmp_path, "50123:100000:65536\n")
    assert not items("dora", roots)["subuid"].ok
    roots = SystemRoots(etc=tmp_path, caller={"dora": 50123})
    assert items("dora", roots)["subuid"].ok


def test_who_is_not_in_passwd_is_added_without_usermod(tmp_path: Path) -> None:
    remedy = items("dora", host(tmp_path, "\n"))["subuid"].remedy
    assert re.fullmatch(r"echo dora:\d+:65536 \| sudo tee --append /etc/subuid", remedy)


def test_shared_ranges_are_told_with_the_way_out(tmp_path: Path) -> None:
    roots = host(tmp_path, "build-images:100000:65536\nalice:150000:65536\n")
    found = items("alice", roots)["subids"]
    assert not found.ok
    assert not found.optional
    assert "build-images (100000-165535)" in found.text
    assert "alice (150000-215535)" in found.text
    command = "sudo usermod --del-subuids 150000-215535 --add-subuids 231072-296607 alice"
    assert found.remedy.startswith(f"{command}  (while logged out")
    assert not items("build-images", roots)["subids"].optional
    assert items("carol", roots)["subids"].optional, "a warning for whom it does not concern"


def test_a_users_own_id_in_a_range_is_told(tmp_path: Path) -> None:
    passwd = f"{PASSWD}carol:x:120000:100::/:/bin/sh\n"
    found = items("alice", host(tmp_path, "alice:100000:65536\n", passwd=passwd))["subids"]
    assert "carol (120000) and alice (100000-165535)" in found.text
    assert found.remedy.startswith("sudo usermod --del-subuids 100000-165535 ")


def test_two_lines_of_one_user_are_none_of_that(tmp_path: Path) -> None:
    roots = host(tmp_path, "alice:100000:65536\n1000:100000:65536\n")
    assert items("alice", roots)["subids"].ok
