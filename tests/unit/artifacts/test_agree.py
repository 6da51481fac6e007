"""Two images of one recipe held against each other: what agrees, and what is found to differ."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import agree
import elf
import pytest

from builder.artifacts.oci import LayerBlob, finish_layout, start_layout

LOG = """\
[1/2] STEP 1/9: FROM localhost/base
[1/2] STEP 2/9: RUN ./configure
checking for gcc... gcc
checking for broken... yes
a failed build, which was repeated
[1/2] STEP 1/9: FROM localhost/base
[1/2] STEP 2/9: RUN ./configure
checking for gcc... gcc
checking for stdio.h... yes
configure: creating ./config.status
make: checking nothing
[1/2] STEP 3/9: RUN ../ucx/configure
checking for gcc... gcc
"""


def program(*, symbol: str = "sum", code: bytes = b"code", comment: bytes = b"GCC 12") -> bytes:
    """A library with one symbol, which needs libc."""
    texts = f"\0{symbol}\0libc.so.6\0".encode()
    names = b"\0.text\0.dynstr\0.dynsym\0.dynamic\0.comment\0.note.gnu.build-id\0.shstrtab\0"
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 0x12, 0, 1, 0x40, len(code))
    dynamic = struct.pack("<qQqQ", 1, len(symbol) + 2, 0, 0)
    parts = [  # name, type, flags, link, content
        ("", 0, 0, 0, b""),
        (".text", 1, 6, 0, code),
        (".dynstr", 3, 2, 0, texts),
        (".dynsym", 11, 2, 2, symbols),
        (".dynamic", 6, 2, 2, dynamic),
        (".comment", 1, 0, 0, comment),
        (".note.gnu.build-id", 7, 2, 0, hashlib.sha256(code + comment).digest()),
        (".shstrtab", 3, 0, 0, names),
    ]
    data, rows = bytearray(64), b""
    for name, kind, flags, link, content in parts:
        at = names.index(f"{name}\0".encode()) if name else 0
        rows += struct.pack(
            "<IIQQQQIIQQ", at, kind, flags, 0, len(data), len(content), link, 0, 1, 0
        )
        data += content
    data[:16] = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    data[0x28:0x30] = struct.pack("<Q", len(data))
    data[0x3A:0x40] = struct.pack("<HHH", 64, len(parts), len(parts) - 1)
    return bytes(data) + rows


FILES = {"usr/local/lib/libsum.so": program(), "usr/local/share/text": b"text", "etc/x": b"x"}


def image(
    folder: Path,
    files: dict[str, bytes],
    *,
    native: str = "",
    log: str = LOG,
    mpi: str = "passed",
    **inputs: Any,
) -> Path:
    """An image's folder, as the main job leaves it."""
    layout = folder / "image.oci"
    folder.mkdir()
    start_layout(layout)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, data in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    blob = gzip.compress(buffer.getvalue(), mtime=0)
    digest, plain = (hashlib.sha256(one).hexdigest() for one in (blob, buffer.getvalue()))
    (layout / "blobs/sha256" / digest).write_bytes(blob)
    config = {"os": "linux", "rootfs": {"type": "layers", "diff_ids": [f"sha256:{plain}"]}}
    layer = LayerBlob(diff_id=f"sha256:{plain}", digest=f"sha256:{digest}", size=len(blob))
    finish_layout(layout, config, [layer])
    manifest = {
        "inputs": {"base": {"digest": "sha256:0"}, "specs": {}, "native_tools": native, **inputs},
        "checks": {"oci": [{"check": "mpi", "outcome": mpi}]},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "build.log").write_text(log)
    return folder


@pytest.fixture(name="native")
def native_image(tmp_path: Path) -> Path:
    return image(tmp_path / "native", FILES, native="sha256:1")


def test_images_that_are_the_same_agree(native: Path, tmp_path: Path) -> None:
    told, agrees = agree.compared([native, image(tmp_path / "plain", FILES)])
    assert agrees
    assert told["inputs that differ"] == []
    assert told["configure's results"] == {"alike": 4, "native alone": [], "QEMU alone": []}
    assert told["symbols and needs"] == {"alike": 2, "native alone": [], "QEMU alone": []}
    assert told["checks"] == {"alike": 1, "native alone": [], "QEMU alone": []}
    assert told["files"] == {"alike": 3, "different": {}}


def test_a_revision_of_the_compiler_is_listed_and_no_difference(
    native: Path, tmp_path: Path
) -> None:
    files = {**FILES, "usr/local/lib/libsum.so": program(comment=b"GCC 12+deb12u1")}
    told, agrees = agree.compared([native, image(tmp_path / "plain", files)])
    assert agrees
    assert told["files"] == {"alike": 2, "different": {"/usr/local/lib/libsum.so": agree.NOTES}}


@pytest.mark.parametrize(
    ("changed", "where", "line"),
    [
        ({"code": b"CODE"}, "files", "/usr/local/lib/libsum.so"),
        ({"symbol": "sun"}, "symbols and needs", "sun (has, 4 bytes, kind 0x12)"),
    ],
)
def test_another_program_is_found(
    changed: dict[str, Any], where: str, line: str, native: Path, tmp_path: Path
) -> None:
    files = {**FILES, "usr/local/lib/libsum.so": program(**changed)}
    told, agrees = agree.compared([native, image(tmp_path / "plain", files)])
    assert not agrees
    assert line in json.dumps(told[where])


@pytest.mark.parametrize(
    ("changes", "where", "line"),
    [
        ({"log": LOG.replace("stdio.h... yes", "stdio.h... no")}, "configure's results", "... no"),
        ({"log": LOG + "checking for gcc... gcc\n"}, "configure's results", "for gcc... gcc"),
        ({"mpi": "failed"}, "checks", "oci: mpi failed"),
        ({"specs": {"Dockerfile": "another"}}, "inputs that differ", "specs"),
        ({"files": {**FILES, "etc/x": b"y"}}, "files", '"/etc/x": "another content"'),
        ({"files": {**FILES, "etc/y": b"y"}}, "files", '"/etc/y": "in the second alone"'),
    ],
)
def test_what_differs_is_found(
    changes: dict[str, Any], where: str, line: str, native: Path, tmp_path: Path
) -> None:
    files = changes.pop("files", FILES)
    told, agrees = agree.compared([native, image(tmp_path / "plain", files, **changes)])
    assert not agrees
    assert line in json.dumps(told[where])


def test_the_command_says_it_as_data_and_by_its_exit_code(
    native: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = image(tmp_path / "plain", {**FILES, "etc/x": b"y"})
    assert agree.main([str(native), str(native)]) == 0
    assert agree.main([str(native), str(plain), "/usr/local"]) == 1
    assert '"different": {\n   "/etc/x": "another content"' in capsys.readouterr().out


def test_a_real_program_is_read() -> None:
    """The interpreter that runs this: what it needs, and that its code is its own."""
    data = Path("/proc/self/exe").read_bytes()
    assert elf.is_elf(data)
    lines = list(elf.interface(data))
    assert any(line.startswith("needs libc.") for line in lines)
    assert any(" (has, " in line for line in lines)
    assert elf.code_digest(data) != elf.code_digest(program())
