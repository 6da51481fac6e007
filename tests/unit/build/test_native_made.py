"""Native tools as they are brought: what is started, what is left of the packages, what is kept."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from samples import base, compare_with_golden
from test_store import own_keyrings  # noqa: F401 - fixture

from builder.build.base_store import Bootstrapping
from builder.build.mirror import DebianMirror
from builder.build.native import tools
from builder.build.native.tools import NativeTools, ensure_tools, newest_tools, stored_tools
from builder.model import CudaSupport, PackagedCuda
from builder.system.process import Completed, Processes

MIRROR = DebianMirror(main="http://mirror.example.org/debian", security=None)
TRIPLET = "powerpc64le-linux-gnu"
NATIVE = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x3e\x00" + bytes(44)
FOREIGN = NATIVE[:18] + b"\x15\x00" + NATIVE[20:]
FILES = {
    "./usr/bin/bash": NATIVE,
    "./usr/bin/foreign": FOREIGN,
    "./usr/bin/script": b"#!/bin/sh\n",
    f"./usr/bin/{TRIPLET}-gcc-14": NATIVE,
    "./usr/lib/apt/methods/http": NATIVE,
    f"./usr/libexec/gcc-cross/{TRIPLET}/14/cc1": NATIVE,
    f"./usr/libexec/gcc-cross/{TRIPLET}/14/liblto.so.0": NATIVE,
    f"./usr/lib/gcc-cross/{TRIPLET}/14/collect2": NATIVE,
    "./usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2": NATIVE,
    "./usr/lib/python3/site.py": b"",
    "./usr/share/doc/bash/copyright": b"",
    f"./usr/{TRIPLET}/lib/libc.so.6": FOREIGN,
    f"./usr/{TRIPLET}/include/stdio.h": b"",
    f"./usr/{TRIPLET}/include/c++/14/vector": b"",
    f"./usr/{TRIPLET}/bin/ld": NATIVE,
    "./bin/sh": NATIVE,
    "./sbin/ldconfig": NATIVE,
    "./lib/apt/methods/mirror": NATIVE,
    "./etc/passwd": b"root",
    "./tmp/x": b"",
}


class Bootstraps(Processes):
    """Packs the files that mmdebstrap would, and notes all that is started."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.started = folder, list[str]()

    def logged(self, argv: Sequence[Any], **options: Any) -> Completed:
        words = [str(word) for word in argv]
        if target := next((word for word in words if word.endswith("root.tar")), ""):
            with tarfile.open(target, "w") as archive:
                for name, content in FILES.items():
                    member = tarfile.TarInfo(name)
                    member.size, member.mode, member.uid = len(content), 0o711, 1234
                    archive.addfile(member, io.BytesIO(content))
                link = tarfile.TarInfo("./usr/lib64")
                link.type, link.linkname = tarfile.SYMTYPE, "lib/x86_64-linux-gnu"
                archive.addfile(link)
                device = tarfile.TarInfo("./usr/bin/null")
                device.type = tarfile.CHRTYPE
                archive.addfile(device)
        named = {name: options[name] for name in ("env", "what", "hint") if name in options}
        self.started += [*words, *(f"{name}: {value}" for name, value in named.items()), ""]
        return Completed(argv=tuple(words), returncode=0)


@pytest.fixture
def processes(
    _keyrings: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bootstraps]:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    before = os.umask(0o022)
    yield Bootstraps(tmp_path)
    os.umask(before)


def ensured(processes: Bootstraps, **more: Any) -> NativeTools:
    chosen = more.pop("base", base())
    way = Bootstrapping(
        store=processes.folder / "native",
        mirror=MIRROR,
        processes=processes,
        log=processes.folder / "log",
        say=processes.started.append,
        **more,
    )
    return ensure_tools(chosen, "ppc64le", way)


def text_of(processes: Bootstraps, made: NativeTools) -> str:
    """All that was started, and all that is in the store."""
    lines = list(processes.started)
    for path in sorted(made.root.rglob("*")):
        kind = "->" if path.is_symlink() else stat.filemode(path.lstat().st_mode)
        lines.append(f"{kind} {path.relative_to(made.root)}")
    for path in sorted((made.root / "twins").rglob("*")):
        if path.is_file():
            lines += ["", f"# {path.relative_to(made.root)}", path.read_text()]
    key = made.root.parent.name.rpartition("-")[2]
    return "\n".join([*lines, ""]).replace(str(processes.folder), "HERE").replace(key, "KEY")


def test_tools_are_brought_and_reduced(processes: Bootstraps) -> None:
    made = ensured(processes, environment={"http_proxy": "http://127.0.0.1:1"})
    assert made.name == "trixie-ppc64le"
    text = text_of(processes, made)
    assert not [path for path in made.root.rglob("*") if path.lstat().st_uid == 1234]
    compare_with_golden(text, "commands/native-tools.txt")


def test_passes_of_nvcc_are_brought_where_the_base_packages_it(processes: Bootstraps) -> None:
    with_cuda = base(
        cuda=CudaSupport(
            distribution=(PackagedCuda(version="12.4", gcc="13", development=(), runtime=()),)
        )
    )
    ensured(processes, base=with_cuda)
    text = "\n".join([*processes.started, ""]).replace(str(processes.folder), "HERE")
    assert "gcc-13-powerpc64le-linux-gnu" in text
    assert "--extract-hook=export APT_CONFIG=" in text
    assert "apt-get download nvidia-cuda-toolkit" in text


def test_tools_are_brought_once_and_known_by_their_digest(processes: Bootstraps) -> None:
    made = ensured(processes)
    started = len(processes.started)
    assert ensured(processes) == made
    assert ensured(processes, not_before=made.made) == made
    assert len(processes.started) == started
    assert stored_tools(processes.folder / "native") == [made]
    assert newest_tools(base(), "ppc64le", store=processes.folder / "native") == made
    assert newest_tools(base(), "aarch64", store=processes.folder / "native") is None
    again = ensured(processes, not_before="2999-01-01T00:00:00+00:00")
    assert len(processes.started) > started
    assert again.digest == made.digest


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"name": "x", "made": 3}', '{"digest": "x", "made": "2999"}']
)
def test_what_is_no_record_is_passed_over(text: str, processes: Bootstraps) -> None:
    made = ensured(processes)
    record = made.root.parent / "native.json"
    assert json.loads(record.read_text()).keys() == {"name", "digest", "made"}
    record.write_text(text)
    assert stored_tools(processes.folder / "native") == []
    shutil.rmtree(made.root)
    assert ensured(processes).digest == made.digest


@pytest.mark.parametrize(
    ("head", "is_native"),
    [(NATIVE, True), (FOREIGN, False), (b"#!/bin/sh\n", False), (b"", False), (NATIVE[:4], False)],
)
def test_programs_of_this_machine_are_known_by_their_header(
    head: bytes, is_native: bool, tmp_path: Path
) -> None:
    (tmp_path / "program").write_bytes(head)
    assert tools._is_native_program(tmp_path / "program") == is_native
