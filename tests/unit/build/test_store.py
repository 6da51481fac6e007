"""The store of base images: each made once, whole or not at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from samples import a_file, base, tar_bytes

from builder.build import base_store
from builder.build.base_store import Bootstrapping, StoredBase, base_key, ensure_base
from builder.build.mirror import DebianMirror
from builder.model import Bootstrap
from builder.model.errors import MissingPrerequisite, StepFailed
from builder.model.package_indices import IndexState
from builder.sources.site_store import SiteStore
from builder.system.process import Completed, Processes

MIRROR = DebianMirror(main="http://mirror.example.org/debian", security=None)
BOTH = DebianMirror(main=MIRROR.main, security="http://security.example.org/debian-security")
BOOTSTRAP = Bootstrap(
    suite="trixie",
    components=("main", "contrib"),
    packages=("ca-certificates", "less"),
    keyring="sample-keyring.gpg",
    pockets=("updates", "security"),
)


class FakeProcesses(Processes):
    """Writes a root file system where mmdebstrap would, or fails half-way."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[list[str]] = []
        self.environments: list[dict[str, str]] = []
        self.failure: Exception | None = None

    def logged(self, argv: Sequence[Any], **named: Any) -> Completed:
        words = [str(word) for word in argv]
        self.commands.append(words)
        self.environments.append(dict(named["env"]))
        target = next(Path(word) for word in words if word.endswith(".tar"))
        target.write_bytes(tar_bytes(a_file("etc/debian_version", f"{len(self.commands)}")))
        if self.failure:
            raise self.failure
        return Completed(argv=tuple(words), returncode=0)


@pytest.fixture(name="_keyrings")
def own_keyrings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keyrings").mkdir()
    (tmp_path / "keyrings/sample-keyring.gpg").write_text("")
    monkeypatch.setattr(base_store, "KEYRINGS", tmp_path / "keyrings")


@pytest.fixture(name="processes")
def fake_processes(_keyrings: None) -> FakeProcesses:
    return FakeProcesses()


def ensured(processes: FakeProcesses, folder: Path, **changes: Any) -> StoredBase:
    given = {"arch": "ppc64le", "base": base(), "name": "localhost/debian13:x", **changes}
    way = Bootstrapping(
        store=folder / "bases",
        mirror=given.pop("mirror", MIRROR),
        processes=processes,
        log=folder / "log",
        say=lambda _text: None,
        not_before=given.pop("not_before", ""),
        shared=given.pop("shared", SiteStore()),
    )
    return ensure_base(given.pop("base"), given.pop("arch"), given.pop("name"), way, **given)


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "bases").iterdir() if ".lock" not in path.name)


def test_a_base_is_made_once_and_kept(processes: FakeProcesses, tmp_path: Path) -> None:
    first = ensured(processes, tmp_path)
    assert ensured(processes, tmp_path) == first
    assert len(processes.commands) == 1
    assert first.archive.is_file()
    assert first.digest.startswith("sha256:")
    assert (first.name, first.arch) == ("localhost/debian13:x", "ppc64le")
    assert left_in(tmp_path) == [first.archive.parent.name]
    assert sorted(path.name for path in first.archive.parent.iterdir()) == [
        "base.json",
        "debian13-ppc64le.oci.tar",
    ]


def test_a_kept_base_has_the_name_by_which_it_is_asked_for(
    processes: FakeProcesses, tmp_path: Path
) -> None:
    first = ensured(processes, tmp_path)
    again = ensured(processes, tmp_path, name="localhost/debian13:renamed")
    assert len(processes.commands) == 1
    assert (again.name, again.digest) == ("localhost/debian13:renamed", first.digest)


def test_a_base_is_made_anew_when_it_is_too_old(processes: FakeProcesses, tmp_path: Path) -> None:
    first = ensured(processes, tmp_path)
    assert ensured(processes, tmp_path, not_before=first.made) == first
    second = ensured(processes, tmp_path, not_before="9999-01-01T00:00:00+00:00")
    assert len(processes.commands) == 2
    assert second.digest != first.digest
    assert ensured(processes, tmp_path) == second
    assert left_in(tmp_path) == [second.archive.parent.name]


@pytest.mark.parametrize("failure", [StepFailed("exit status 1"), KeyboardInterrupt()])
def test_what_fails_leaves_nothing_but_the_base_before_it(
    failure: Exception, processes: FakeProcesses, tmp_path: Path
) -> None:
    def fails(**changes: Any) -> None:
        processes.failure = failure
        with pytest.raises(type(failure)):
            ensured(processes, tmp_path, **changes)
        processes.failure = None

    fails()
    assert left_in(tmp_path) == []
    first = ensured(processes, tmp_path)
    fails(not_before="9999-01-01T00:00:00+00:00")
    assert ensured(processes, tmp_path) == first
    assert first.archive.is_file()
    assert len(processes.commands) == 3


def test_what_a_killed_run_left_is_not_taken_for_whole(
    processes: FakeProcesses, tmp_path: Path
) -> None:
    name = ensured(processes, tmp_path).archive.parent.name
    (tmp_path / "bases" / name / "base.json").unlink()
    partial = tmp_path / "bases" / f".{name}.partial"
    partial.mkdir()
    (partial / "base.json").write_text("{}")
    assert ensured(processes, tmp_path).archive.is_file()
    assert len(processes.commands) == 2
    assert left_in(tmp_path) == [name]


def test_a_store_can_be_moved(processes: FakeProcesses, tmp_path: Path) -> None:
    ensured(processes, tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "bases").rename(tmp_path / "elsewhere/bases")
    found = ensured(processes, tmp_path / "elsewhere")
    assert found.archive.is_file()
    assert len(processes.commands) == 1


def test_command_line(processes: FakeProcesses, tmp_path: Path) -> None:
    ensured(processes, tmp_path, base=base(bootstrap=BOOTSTRAP), mirror=BOTH)
    [command] = processes.commands
    before = command[: command.index("--variant=minbase")]
    assert before[-2:] == ["mmdebstrap", "--mode=root"]
    assert "--architectures=ppc64el" in command
    assert "--include=ca-certificates,less" in command
    assert "--variant=minbase" in command
    assert "--format=tar" in command
    at = command.index("trixie")
    assert command[at + 1].endswith("/rootfs.tar")
    keyring = base_store.KEYRINGS / "sample-keyring.gpg"
    signed = f"deb [signed-by={keyring}]"
    lines = command[at + 2 :]
    assert lines == [
        f"{signed} {MIRROR.main} trixie main contrib",
        f"{signed} {MIRROR.main} trixie-updates main contrib",
        f"{signed} {BOTH.security} trixie-security main contrib",
    ]
    assert processes.environments[0]["SOURCE_DATE_EPOCH"] == "1"


def test_a_base_without_further_packages_includes_none(
    processes: FakeProcesses, tmp_path: Path
) -> None:
    """mmdebstrap ends with its usage on an empty list."""
    bare = base(bootstrap=dataclasses.replace(BOOTSTRAP, packages=()))
    ensured(processes, tmp_path, base=bare, mirror=BOTH)
    assert not [word for word in processes.commands[0] if word.startswith("--include")]


def test_a_base_without_pockets_has_one_line(processes: FakeProcesses, tmp_path: Path) -> None:
    ensured(processes, tmp_path)
    assert [word for word in processes.commands[0] if word.startswith("deb ")] == [
        f"deb [signed-by={base_store.KEYRINGS / 'sample-keyring.gpg'}] {MIRROR.main} trixie main"
    ]


def test_security_updates_can_be_left_out(processes: FakeProcesses, tmp_path: Path) -> None:
    without = DebianMirror(main=MIRROR.main, security="")
    ensured(processes, tmp_path, base=base(bootstrap=BOOTSTRAP), mirror=without)
    lines = [word for word in processes.commands[0] if word.startswith("deb ")]
    assert [line.split()[3] for line in lines] == ["trixie", "trixie-updates"]


def test_a_base_says_which_package_indices_it_was_made_with(
    processes: FakeProcesses, tmp_path: Path
) -> None:
    state = IndexState(
        archive="debian", suite="trixie", taken_as="stable", date="", sha256="a" * 64, behind_days=3
    )
    made = ensured(processes, tmp_path, indices=lambda: (state,))
    assert made.indices == (state,)
    assert ensured(processes, tmp_path).indices == (state,), "kept with it"


def test_a_missing_security_archive_is_named(processes: FakeProcesses, tmp_path: Path) -> None:
    with pytest.raises(MissingPrerequisite, match="no security mirror is known"):
        ensured(processes, tmp_path, base=base(bootstrap=BOOTSTRAP))
    assert processes.commands == []


@pytest.mark.parametrize("root", [True, False])
def test_whoever_bootstraps_is_root_of_the_folder(
    root: bool, processes: FakeProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user could not go through a home that is closed to others."""
    monkeypatch.setattr("os.geteuid", lambda: 0 if root else 1000)
    ensured(processes, tmp_path)
    expected = ["unshare", "--mount"] if root else ["buildah", "unshare"]
    assert processes.commands[0][:2] == expected
    scratch = next(word for word in processes.commands[0] if word.startswith("TMPDIR="))
    assert scratch.startswith(f"TMPDIR={tmp_path}/")


def test_a_missing_keyring_is_named(processes: FakeProcesses, tmp_path: Path) -> None:
    (base_store.KEYRINGS / "sample-keyring.gpg").unlink()
    with pytest.raises(MissingPrerequisite, match=r"sample-keyring\.gpg") as caught:
        ensured(processes, tmp_path)
    assert "debian-archive-keyring" in caught.value.hint
    assert processes.commands == []
    assert left_in(tmp_path) == []


def test_each_input_has_a_base_of_its_own(processes: FakeProcesses, tmp_path: Path) -> None:
    made = [
        ensured(processes, tmp_path),
        ensured(processes, tmp_path, arch="x86_64"),
        ensured(processes, tmp_path, mirror=BOTH),
        ensured(processes, tmp_path, base=base(bootstrap=BOOTSTRAP), mirror=BOTH),
        ensured(processes, tmp_path, base=base("debian12")),
    ]
    assert len({one.key for one in made}) == len({one.archive for one in made}) == 5


def test_key_covers_what_is_made_and_nothing_else() -> None:
    key = base_key(base(), "x86_64", MIRROR)
    assert base_key(base(about="another text", cuda=("12.4",)), "x86_64", MIRROR) == key
    assert (
        base_key(base(), "x86_64", DebianMirror(main="http://b.example.org", security=None)) != key
    )
