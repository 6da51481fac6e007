"""The tree of a SIF is read where Apptainer starts it, or not at all."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from made_formats import SifPart, write_sif
from samples import a_file, tar_bytes

from builder.artifacts.oci import (
    Layout,
    blob_path,
    finish_layout,
    plain_layers,
    read_layout,
    start_layout,
)
from builder.artifacts.sif import (
    LAUNCH,
    architecture_of,
    launch_and_architecture,
    root_file_system,
)
from builder.build.engines import Tools
from builder.build.engines.apptainer import _copy_squashfs, pack
from builder.model.errors import StepFailed
from builder.system.home import Home
from builder.system.process import Completed, Processes

EXT3 = 2
SYSTEM, DATA, OVERLAY = 1, 3, 4
TREE = b"hsqs and the rest"
ROOT = SifPart(content=TREE)


def test_the_one_primary_partition_is_read_by_its_descriptor(tmp_path: Path) -> None:
    image = write_sif(tmp_path / "image.sif", [ROOT])
    assert root_file_system(image).size == len(TREE)
    pieces: list[bytes] = []
    _copy_squashfs(image, tmp_path / "squashfs", pieces.append)
    assert (tmp_path / "squashfs").read_bytes() == TREE
    assert b"".join(pieces) == image.read_bytes()


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        ([SifPart(role=DATA), ROOT], "data, primary"),
        ([ROOT, SifPart(system=EXT3, role=OVERLAY)], "primary, overlay"),
        ([ROOT, ROOT], "primary, primary"),
        ([SifPart(role=SYSTEM)], "system"),
        ([SifPart(system=EXT3)], "primary"),
        ([], "none"),
    ],
)
def test_any_other_partitions_are_refused(parts: list[SifPart], names: str, tmp_path: Path) -> None:
    image = write_sif(tmp_path / "image.sif", parts)
    with pytest.raises(StepFailed, match=f"found: {names}$"):
        root_file_system(image)
    with pytest.raises(StepFailed):
        _copy_squashfs(image, tmp_path / "squashfs", lambda _: None)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda data: b"X" * len(data), "not a SIF"),
        (lambda data: data[:127], "not a SIF"),
        (lambda data: data[:200], "it ends within its table of objects"),
        (lambda data: data[:-1], "it ends within its file system"),
        (lambda data: data[:132] + b"\0" + data[133:], "found: none"),  # an unused descriptor
    ],
)
def test_a_file_that_is_no_sif(spoil: Callable[[Any], Any], reason: str, tmp_path: Path) -> None:
    image = write_sif(tmp_path / "image.sif", [ROOT])
    image.write_bytes(spoil(image.read_bytes()))
    with pytest.raises(StepFailed, match=reason):
        root_file_system(image)


@pytest.mark.parametrize(
    ("code", "arch"),
    [(b"02", "x86_64"), (b"04", "aarch64"), (b"06", "ppc64le"), (b"99", "SIF's number 99")],
)
def test_the_architecture_of_a_sif(code: bytes, arch: str, tmp_path: Path) -> None:
    image = write_sif(tmp_path / "image.sif", [SifPart(content=TREE, arch=code)])
    assert architecture_of(image) == arch
    assert launch_and_architecture(image) == (LAUNCH, arch)


class _Noted(Processes):
    """Notes the definition that Apptainer would build."""

    definition = ""

    def logged(self, argv: Sequence[Any], **named: Any) -> Completed:
        self.definition = Path(argv[-1]).read_text()
        assert (named["cwd"] / re.findall("From: (.*)", self.definition)[0]).is_dir()
        return Completed(argv=(), returncode=0)


def test_the_definition_in_a_sif_does_not_name_the_home(tmp_path: Path) -> None:
    program = tmp_path / "home/tools/bin/apptainer"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    work = tmp_path / "home/work"
    start_layout(work / "layout")
    config = {"architecture": "amd64", "os": "linux", "config": {"Env": ["A=1"]}}
    finish_layout(work / "layout", {**config, "rootfs": {"type": "layers", "diff_ids": []}}, [])
    processes = _Noted()
    tools = Tools(processes=processes, home=Home(path=tmp_path / "home"))
    log = work / "log"
    pack(work / "layout", work / "image.sif", ["%help\n  x"], arch="x86_64", tools=tools, log=log)
    assert processes.definition == "Bootstrap: oci\nFrom: layout\n\n%help\n  x\n"


def test_variables_that_apptainer_would_spoil_are_set_by_the_definition(tmp_path: Path) -> None:
    """The layout that it packs is without them, and is otherwise the same."""
    program = tmp_path / "home/tools/bin/apptainer"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    start_layout(tmp_path / "layout")
    layer = tar_bytes(a_file("x", "y"))
    digest = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    blob_path(tmp_path / "layout", digest).write_bytes(layer)
    variables = ["PATH=/bin", 'A=it\'s "x"', "B=`a`", "C=a\\b", "D=a b", "E=\n", "F-=`"]
    config = {"architecture": "amd64", "config": {"Env": variables, "User": "u"}}
    config |= {"rootfs": {"type": "layers", "diff_ids": [digest]}}
    finish_layout(tmp_path / "layout", config, plain_layers(tmp_path / "layout", [digest]))
    seen: list[Layout] = []

    class Reads(_Noted):
        def logged(self, argv: Sequence[Any], **named: Any) -> Completed:
            seen.append(read_layout(tmp_path / "image.pack.oci"))
            return super().logged(argv, **named)

    processes = Reads()
    tools = Tools(processes=processes, home=Home(path=tmp_path / "home"))
    pack(tmp_path / "layout", tmp_path / "image.sif", [], arch="x86_64", tools=tools, log=tmp_path)
    [packed] = seen
    settings = {"Env": ["PATH=/bin", "D=a b", "F-=`"], "User": "u"}
    assert packed.config == {**config, "config": settings}
    assert [one.name for one in packed.layers] == [digest.removeprefix("sha256:")]
    set_there = {"A": "'it'\\''s \"x\"'", "B": "'`a`'", "C": "'a\\b'", "E": "'\n'"}
    lines = [
        f'\n    [ -n "${{{name}:-}}" ] || {name}={value}\n    export {name}'
        for name, value in set_there.items()
    ]
    begin = "Bootstrap: oci\nFrom: image.pack.oci\n\n%environment"
    assert processes.definition == f"{begin}{''.join(lines)}\n"
    assert not list(tmp_path.glob("image.pack*"))
