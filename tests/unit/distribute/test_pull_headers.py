"""Headers of tars: what is read is what `tarfile` makes of them; the rest is refused."""

from __future__ import annotations

import io
import random
import tarfile
import time
from typing import Literal

import pytest
from samples import compare_with_golden

from builder.distribute.pull.members import BROKEN, members
from builder.distribute.pull.streams import PlainLayer
from builder.model.digests import HashedReader
from builder.model.errors import Refused

FIELDS = ("name", "mode", "uid", "gid", "size", "mtime", "type", "linkname")
Header = dict[str, object]
TOLD = dict[bytes, str]()  # why data was not read


def header_of(archive_format: Literal[0, 1, 2] = tarfile.GNU_FORMAT, **more: object) -> bytes:
    made = tarfile.TarInfo("usr/bin/tool")
    made.size, made.mtime, made.uid, made.gid = 12345, 1_000_000_000, 1000, 100
    for name, value in more.items():
        setattr(made, name, value)
    return made.tobuf(archive_format)[:512]


def with_checksum(header: bytes) -> bytes:
    number = 256 + sum(header[:148]) + sum(header[156:])
    return header[:148] + b"%06o\0 " % number + header[156:]


def pax(header: bytes, **said: str) -> bytes:
    """A pax header that says more, before a header."""
    create = tarfile.TarInfo._create_pax_generic_header  # type: ignore[attr-defined]
    records = create(said, tarfile.XHDTYPE, "utf-8")
    return bytes(records) + header


def read(data: bytes) -> list[Header] | str:
    """By ours, out of a stream that comes in pieces."""
    stream = PlainLayer(HashedReader(Pieces(data)), label="it", hashed=False)
    found = []
    try:
        for member, _, _ in members(stream):
            found.append({name: getattr(member, name) for name in FIELDS})
    except (*BROKEN, Refused) as error:
        TOLD[data] = str(error)
        return type(error).__name__
    return found


def read_by_tarfile(data: bytes) -> list[Header] | str:
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:", encoding="utf-8") as archive:
            return [{name: getattr(one, name) for name in FIELDS} for one in archive]
    except BROKEN as error:
        return type(error).__name__


class Pieces(io.BytesIO):
    """A file that gives a few bytes at a time."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(size or 700, 700))


def padded(record: bytes, rest: bytes = b"") -> bytes:
    """A pax header with a record within its size, and another, or anything else, after that."""
    data = pax(header_of(size=0), path="bin/true")
    if record:
        rest = b"%d %s\n" % (len(record) + 4, record)
    end = 512 + data[512:1024].index(b"\0")
    return data[:end] + rest + data[end + len(rest) :]


def spoiled(header: bytes, place: int, by: bytes) -> bytes:
    return with_checksum(header[:place] + by + header[place + len(by) :])


def gnu(name: str, link: str = "", kind: bytes = tarfile.REGTYPE) -> bytes:
    """A header after those of GNU's tar for a long name and a long target of a link."""
    made = tarfile.TarInfo(name)
    made.type = kind
    if link:
        made.type, made.linkname = tarfile.SYMTYPE, link
    return made.tobuf(tarfile.GNU_FORMAT)


END = bytes(1024)
LONG = "usr/share/" + "a-long-name/" * 20 + "file"
TARS = {
    "nothing": b"",
    "an empty header": spoiled(tarfile.TarInfo("x").tobuf(), 156, tarfile.XHDTYPE)
    + header_of(size=0),
    "the longest path": pax(header_of(size=0), path="/".join(["x" * 200] * 20 + ["x" * 75])),
    "a long name": pax(header_of(size=0), path=LONG),
    "a long folder": pax(header_of(type=tarfile.DIRTYPE, size=0), path=LONG + "/"),
    "a long file with a slash at its end": pax(header_of(size=0), path=LONG + "/"),
    "GNU's long folder": gnu(LONG, kind=tarfile.DIRTYPE),
    "a long link": pax(header_of(type=tarfile.SYMTYPE, size=0), linkpath=LONG),
    "a time of a part of a second": pax(header_of(size=0), mtime="1000000000.25"),
    "a time that is none": pax(header_of(size=0), mtime="yesterday"),
    "names of other letters": pax(header_of(size=0), path="usr/ä/ö", uname="ü", gname="ß"),
    "what is asked for nowhere": pax(header_of(size=0), path=LONG, atime="1", ctime="2"),
    "a size": pax(header_of(size=5), size="0"),
    "the largest number": pax(header_of(size=0), uid="1" * 20),
    "a larger number": pax(header_of(size=0), uid="1" * 21),
    "an owner": pax(header_of(size=0), uid="70000", gid="5"),
    "attributes": pax(header_of(size=0), **{"SCHILY.xattr.user.x": "y", "path": LONG}),
    "another charset": pax(header_of(size=0), hdrcharset="BINARY", path=LONG),
    "two of them": pax(pax(header_of(size=0), path=LONG), path="usr/other"),
    "one with content": pax(header_of(size=600), path=LONG) + b"x" * 600 + bytes(424),
    "what is about all": tarfile.TarInfo.create_pax_global_header({"path": "usr/all"})
    + header_of(size=0)
    + header_of(size=0, name="usr/bin/other"),
    "more in the padding": padded(b"path=bin/evil"),
    "a size in the padding": padded(b"size=512") + header_of(size=0, name="hidden"),
    "rubbish in the padding": padded(b"", b"\0\0rubbish"),
    "a charset within a name": pax(header_of(size=0), path="a\n1 hdrcharset=\x7f\nb"),
    "a device's number that is two": spoiled(header_of(size=0), 329, b"0 0")
    + header_of(size=0, name="after"),
    "nothing after it": pax(b"", path=LONG),
    "usual ones between": header_of(size=0) + pax(header_of(size=0), path=LONG) + header_of(size=0),
    "GNU's long name": header_of(size=0) + gnu(LONG) + header_of(size=0),
    "GNU's long name and link": gnu(LONG, LONG),
    "GNU's long name twice": gnu(LONG)[:-512] + gnu(LONG),
    "GNU's long name, then pax's": gnu(LONG)[:-512] + pax(header_of(size=0), path="usr/other"),
    "pax's long name, then GNU's": pax(gnu(LONG), path="usr/other"),
    "a prefix alone": header_of(
        tarfile.USTAR_FORMAT, type=tarfile.DIRTYPE, size=0, name="x" * 100 + "/"
    ),
    "a prefix": tarfile.TarInfo("long/" * 30 + "name").tobuf(tarfile.USTAR_FORMAT),
}


TARS |= {
    "a time that is no number": pax(header_of(size=0), mtime="nan"),
    "a time without an end": pax(header_of(size=0), mtime="1e400"),
}
REFUSED = {  # what two readers understand differently, and no sound layer has
    "two of them",
    "GNU's long name twice",
    "GNU's long name, then pax's",
    "pax's long name, then GNU's",
    "a time that is no number",
    "a time without an end",
    "what is about all",
    "a larger number",
    "more in the padding",
    "a size in the padding",
    "rubbish in the padding",
}


@pytest.mark.parametrize("name", TARS)
def test_whole_tars_are_read_as_tarfile_does(name: str) -> None:
    for end in (END, b"", bytes(512), bytes(10240)):
        expected = "Refused" if name in REFUSED else read_by_tarfile(TARS[name] + end)
        assert read(TARS[name] + end) == expected
    if name not in REFUSED | {"nothing after it", "a device's number that is two"}:
        assert isinstance(read(TARS[name] + END), list)


def test_what_is_about_all_members_and_counts_nowhere_is_passed_over() -> None:
    """As `git archive` writes it: the commit."""
    said = tarfile.TarInfo.create_pax_global_header({"comment": "a commit"})
    assert read(said + header_of(size=0) + END) == read_by_tarfile(header_of(size=0) + END)


@pytest.mark.parametrize(
    "end",
    {
        "a second tar": END + header_of(size=0, name="second"),
        "a second tar after one block": bytes(512) + header_of(size=0, name="second"),
        "a byte": END + bytes(5000) + b"x",
        "a letter": END + b"X",
        "no header": b"x" * 512 + header_of(size=0, name="second"),
        "a part of a header": header_of(size=0, name="second")[:300],
    }.values(),
)
def test_what_one_reader_sees_and_another_does_not_is_refused(end: bytes) -> None:
    assert isinstance(read_by_tarfile(header_of(size=0) + end), list)
    assert read(header_of(size=0) + end) == "Refused"


def test_all_that_is_told_of_headers_that_are_refused() -> None:
    wrong = {name: TARS[name] for name in sorted(REFUSED)}
    wrong["a negative size"] = spoiled(header_of(size=0), 124, b"\xff" * 12)
    wrong["a number that is none"] = pax(header_of(size=0), uid="x")
    wrong["a size that is none"] = pax(header_of(size=0), size="-1")
    wrong["a record without an end"] = extended(tarfile.XHDTYPE, b"9 a=b")
    wrong["a record without a name"] = extended(tarfile.XHDTYPE, b"5 =a\n")
    wrong["a record without a length"] = extended(tarfile.XHDTYPE, b" a=b\n")
    wrong["a larger header"] = extended(tarfile.XHDTYPE, b"1" * ((1 << 20) + 1))
    lines = [f"{name}: {read(data)}: {TOLD.get(data)}\n" for name, data in wrong.items()]
    compare_with_golden("".join(lines), "refused-headers.txt")


def test_damaged_pax_headers() -> None:
    """What is refused here, and read by `tarfile`, is no wrong reading: a path that leads out."""
    rng = random.Random(21)
    same = 0
    for _ in range(4000):
        data = bytearray(rng.choice(list(TARS.values())) + END)
        for _ in range(rng.randint(1, 2)):
            place = rng.randrange(512, 600) if rng.random() < 0.8 else rng.randrange(len(data))
            data[place] = rng.choice(b"\0 0189=\nax/\xff")
        ours, theirs = read(bytes(data)), read_by_tarfile(bytes(data))
        if theirs != "UnicodeDecodeError":  # of a charset, which `tarfile` looks for within names
            assert ours in (theirs, "Refused", "ReadError"), bytes(data)
        same += ours == theirs
    assert same > 1200


def extended(kind: bytes, content: bytes) -> bytes:
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, len(content)
    return header.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512)


def digits(number: int) -> bytes:
    """A pax header with a comment of so many digits."""
    text = b" comment=" + b"1" * number + b"\n"
    return extended(tarfile.XHDTYPE, b"%d%s" % (len(text) + len(str(len(text))), text))


HOSTILE = {
    "digits": digits(1 << 19),
    "nothing but digits": extended(tarfile.XHDTYPE, b"1" * (1 << 20)),
    "records without a value": extended(tarfile.XHDTYPE, b"5 aa\n" * 200_000),
    "records of one byte": extended(tarfile.XHDTYPE, b"1 " * 500_000),
    "many records": extended(tarfile.XHDTYPE, b"6 a=b\n" * 170_000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_extended_headers_take_a_time_in_proportion_to_their_length(name: str) -> None:
    """`tarfile` of many versions looks for a charset at each of a million digits anew: an hour."""
    start = time.process_time()
    read(HOSTILE[name] + header_of(size=0) + END)
    assert time.process_time() - start < 2


def test_an_extended_header_may_have_a_mebibyte() -> None:
    plain = header_of(size=0) + END
    assert read(digits((1 << 20) - 17) + plain) == read(plain)
    assert read(digits((1 << 20) - 16) + plain) == "Refused"


def test_a_chain_of_extended_headers_is_not_kept() -> None:
    name = extended(tarfile.GNUTYPE_LONGNAME, b"a" * (1 << 20))
    assert read(name * 3 + header_of(size=0) + END) == "Refused"
