"""The bill of materials, read from the files of an image."""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import json
import sqlite3
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import referencing
from samples import ROOT, a_file, a_folder, a_link, blob, compare_with_golden, tar_bytes

from builder import __version__
from builder.artifacts.flatten import TreeNode, flattened
from builder.artifacts.oci import Layout
from builder.artifacts.sbom import bill_of_materials
from builder.artifacts.sbom.packages import (
    _BY_NAME,
    CHECKSUM,
    CHECKSUM_OF,
    berkeley_values,
    expression,
    licence,
    of_copyright,
)
from builder.model import LockedSource
from builder.model.exact_json import part

SCHEMAS = ("bom-1.5.schema.json", "spdx.schema.json", "jsf-0.82.schema.json")
STATUS = """\
Package: libc6
Status: install ok installed
Architecture: ppc64el
Version: 2:2.41-12+deb13u1~x
Description: GNU C Library
 Version: 9, which is a line of the description
Package-Type: deb

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 1

Package: half
Status: install ok half-installed
Architecture: all
Version: 1
"""
METADATA = "Metadata-Version: 2.1\nName: My_Package\nVersion: 1.0+local\n\nName: not this\n"


RELEASE = 'ID=debian\nVERSION_ID="13"\n# a comment\nNAME="Debian GNU/Linux"\nODD="\n'
DIGEST = "sha256:" + "a" * 64
DATA = ROOT / "tests" / "data"


@functools.cache
def validator() -> jsonschema.protocols.Validator:
    """CycloneDX's own schema, with the two that it refers to."""
    read = {name: json.loads((DATA / "cyclonedx" / name).read_text()) for name in SCHEMAS}
    registry = referencing.Registry().with_resources(
        (one["$id"], referencing.Resource.from_contents(one)) for one in read.values()
    )
    return jsonschema.Draft7Validator(read[SCHEMAS[0]], registry=registry)


def bill_of(nodes: Mapping[str, TreeNode], *sources: LockedSource) -> dict[str, Any]:
    """The bill of materials, which is what CycloneDX asks for."""
    found = bill_of_materials(
        nodes,
        identifier="core-1.0-x86_64",
        version="1.0",
        distribution="debian",
        digest=DIGEST,
        built_from=sources,
    )
    validator().validate(json.loads(json.dumps(found)))
    return found


def nodes_of(tmp_path: Path, files: Mapping[str, str | bytes]) -> dict[str, TreeNode]:
    members = [a_folder("var")]
    for name, content in files.items():
        path = name.replace("__", "/")
        if isinstance(content, str) and content.startswith("-> "):
            members.append(a_link(path, content[3:]))
        else:
            data = content.encode() if isinstance(content, str) else content
            made, _ = a_file(path)
            made.size = len(data)
            members.append((made, data))
    layer = blob(tmp_path, tar_bytes(*members))
    return flattened(Layout(path=tmp_path, digest=DIGEST, config={}, layers=(layer,)))


def bill(tmp_path: Path, **files: str) -> dict[str, Any]:
    return bill_of(nodes_of(tmp_path, files))


def test_packages_of_dpkg(tmp_path: Path) -> None:
    found = bill(tmp_path, var__lib__dpkg__status=STATUS)
    purl = "pkg:deb/debian/libc6@2%3A2.41-12%2Bdeb13u1~x?arch=ppc64el"
    assert found["components"] == [
        {
            "type": "library",
            "bom-ref": purl,
            "name": "libc6",
            "version": "2:2.41-12+deb13u1~x",
            "purl": purl,
        }
    ]


NO_PACKAGES = [
    {
        "a-1.dist-info__METADATA": "Name: a\n",
        "b-1.dist-info__METADATA": "-> /nowhere",
        "METADATA": METADATA,
        "c-1.dist-info__RECORD": METADATA,
    },
    {"var__lib__dpkg__status": "\0\n\n\0:\nPackages", "x.egg-info": "\0\0"},
]


@pytest.mark.parametrize("files", NO_PACKAGES)
def test_what_has_no_name_or_version_is_no_package(files: dict[str, str], tmp_path: Path) -> None:
    assert bill(tmp_path, **files)["components"] == []


def test_components_are_sorted_and_named_once(tmp_path: Path) -> None:
    one = "Package: {}\nArchitecture: all\nVersion: 1\n"
    status = "\n".join(one.format(name) for name in ("b", "a", "b"))
    extra = {"var__lib__dpkg__status.d__c": "Package: c\nVersion: 1\n"}  # of no architecture
    found = bill(tmp_path, var__lib__dpkg__status=status, **extra)["components"]
    assert [component["name"] for component in found] == ["a", "b", "c"]


def test_what_dpkg_knows_of_a_package(tmp_path: Path) -> None:
    sums = "d41d8cd98f00b204e9800998ecf8427e  usr/lib/libc.so.6\n"
    text = "Format: https://www.debian.org/x\n\nFiles: *\nLicense: LGPL-2.1+ and Expat\n text\n"
    found = bill(
        tmp_path,
        etc__os_release="-> ../usr/lib/os-release",
        **{
            "usr__lib__os-release": RELEASE,
            "var__lib__dpkg__status": STATUS + "Maintainer: GNU Libc <x@example.org>\n",
            "var__lib__dpkg__info__libc6:ppc64el.md5sums": sums,
            "usr__share__doc__libc6__copyright": text,
        },
    )
    system, package = found["components"]
    assert (system["name"], system["version"]) == ("debian", "13")
    assert package["purl"].endswith("?arch=ppc64el&distro=debian-13")
    assert [one["license"]["id"] for one in package["licenses"]] == ["LGPL-2.1-or-later", "MIT"]
    assert [one["value"] for one in package["properties"]] == [
        f"sha256:{hashlib.sha256(sums.encode()).hexdigest()}",
        "/var/lib/dpkg/info/libc6:ppc64el.md5sums",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Files: *\nLicense: GPL-2\n", ["GPL-2.0-only"]),
        ("Files: *\nLicense: GPL-3+ or Apache-2.0\n", ["Apache-2.0", "GPL-3.0-or-later"]),
        ("Files: *\nLicense: public-domain\n", ["public-domain"]),
        ("Files: *\nLicense: GPL-9\n", ["GPL-9"]),
        ("On Debian, see /usr/share/common-licenses/LGPL-2.1.\n", ["LGPL-2.1-only"]),
        ("see /usr/share/common-licenses/GPL\n", ["GPL"]),
        ("Do what you like.\n", []),
        ("Copyright: me\nLicense: permission is granted to do with it\n", []),
        ("Files: *\nLicense:\nLicense: \n", []),
        ("Files: *\nLicense: " + "x" * 1200, ["x" * 1000]),
        (
            "Files: *\nLicense: " + ", ".join(map(str, range(100, 141))),
            [*map(str, range(100, 141))],
        ),
    ],
)
def test_licences_of_debian(text: str, expected: list[str]) -> None:
    read = of_copyright(text.replace("Files:", "Format: https://x\n\nFiles:"))
    found = [part(one, "license", "id") or part(one, "license", "name") for one in read]
    assert found == expected


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ("MIT", [{"license": {"id": "MIT"}}]),
        (
            f"MIT AND {'ISC AND ' * 20}AGPL-3.0-only",
            [{"expression": f"MIT AND {'ISC AND ' * 20}AGPL-3.0-only"}],
        ),
        ("MIT and ISC", [{"license": {"name": "MIT and ISC"}}]),
        ("GPL v2 or later", [{"license": {"name": "GPL v2 or later"}}]),
        ("Dual License: MIT OR ISC", [{"license": {"name": "Dual License: MIT OR ISC"}}]),
        ("MIT AND (ISC OR BSD-3-Clause)", [{"expression": "MIT AND (ISC OR BSD-3-Clause)"}]),
        ("unknown", []),
    ],
)
def test_stated_licences_are_complete(stated: str, expected: list[object]) -> None:
    assert expression(stated) == expected


UNLISTED = {
    "none": {"etc__os-release": "ID=debian\nVERSION_ID=13\n"},
    "a link": {"var__lib__dpkg__status": "-> /nowhere", "x-1.dist-info__METADATA": METADATA},
    "an empty one": {"var__lib__dpkg__status": "", "x-1.dist-info__METADATA": METADATA},
}


@pytest.mark.parametrize("database", UNLISTED)
def test_a_bill_without_a_package_of_the_distribution_is_incomplete(
    tmp_path: Path, database: str
) -> None:
    document: Any = bill_of(nodes_of(tmp_path, UNLISTED[database]))
    assert [each["aggregate"] for each in document["compositions"]] == ["incomplete"]


@pytest.mark.parametrize("target", ["gcc-14-base", "/usr/share/doc/gcc-14-base"])
def test_the_copyright_of_a_package_may_be_another_ones(tmp_path: Path, target: str) -> None:
    files = {
        "usr__share__doc__libc6": f"-> {target}",
        "usr__share__doc__gcc-14-base__copyright": "see /usr/share/common-licenses/GPL-3.\n",
        "var__lib__dpkg__status": STATUS,
    }
    [found] = bill_of(nodes_of(tmp_path, files))["components"]
    assert found["licenses"] == [{"license": {"id": "GPL-3.0-only"}}]


def test_what_python_packages_say(tmp_path: Path) -> None:
    folder = "usr__lib__python3__dist-packages__"
    files = {
        "a-1.dist-info": "Name: a\nVersion: 1\nLicense-Expression: MIT\nLicense: no\n",
        "b-1.dist-info": "Name: b\nVersion: 1\nLicense: UNKNOWN\n"
        "Classifier: License :: OSI Approved :: BSD License\n",
        "c-1.dist-info": f"Name: c\nVersion: 1\nLicense: {'x' * 200}\n",
        "d-1.dist-info": METADATA,
    }
    metadata = {f"{folder}{name}__METADATA": text for name, text in files.items()}
    found = bill(tmp_path, **metadata, **{f"{folder}a-1.dist-info__RECORD": "a.py,sha256=x,1\n"})
    one, two, three, named = found["components"]
    assert one["licenses"] == [{"license": {"id": "MIT"}}]
    assert one["properties"][1]["value"] == "/usr/lib/python3/dist-packages/a-1.dist-info/RECORD"
    assert two["licenses"] == [{"license": {"name": "BSD License"}}]
    assert "licenses" not in three
    assert (named["name"], named["version"]) == ("My_Package", "1.0+local")
    assert named["purl"].endswith("/my-package@1.0%2Blocal")


def test_what_was_built_from_source(tmp_path: Path) -> None:
    sha = "0" * 64
    files = {
        "etc__os-release": RELEASE,
        "var__lib__dpkg__status": STATUS + "Maintainer: GNU Libc <x@example.org>\n",
        "var__lib__dpkg__info__libc6.md5sums": "",
        "a-1.dist-info__METADATA": "License: MIT\n" + METADATA,
    }
    found = bill_of(
        nodes_of(tmp_path, files),
        LockedSource(
            url="https://user:secret@example.org/hwloc-2.9.0.tar.gz?token=secret",
            file="hwloc-2.9.0.tar.gz",
            sha256=sha,
            size=1,
        ),
        LockedSource(
            url="debian-source:openmpi/5.0.7",
            file="openmpi_5.0.7.orig.tar.xz",
            sha256=sha,
            size=1,
            path="pool/main",
        ),
        LockedSource(url="https://example.org/x/main", file="main", sha256=sha, size=1),
    )
    text = json.dumps(found, indent=1).replace(f'"{__version__}"', '"VERSION"')
    assert "secret" not in text
    compare_with_golden(f"{text}\n", "sbom.json")


def rpm_database(name: str) -> bytes:
    return gzip.decompress((DATA / "rpm" / f"{name}.gz").read_bytes())


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("var__lib__rpm__rpmdb.sqlite", "rpmdb.sqlite"),
        ("usr__lib__sysimage__rpm__rpmdb.sqlite", "rpmdb.sqlite"),
        ("var__lib__rpm__Packages", "Packages"),
    ],
)
def test_packages_of_rpm(tmp_path: Path, path: str, name: str) -> None:
    """Their checksums are those that `rpm -q` printed."""
    files: dict[str, str | bytes] = {path: rpm_database(name)}
    files |= {"etc__os-release": 'ID="rhel"\nVERSION_ID="9.4"\n'}
    found = bill_of(nodes_of(tmp_path, files))
    assert found["compositions"][0]["aggregate"] == "unknown"
    compare_with_golden(json.dumps(found["components"], indent=1) + "\n", "sbom-rpm.json")


def rpm_header(name: str) -> bytes:
    """A header with a name and nothing else: one entry, tag 1000, a string."""
    store = name.encode() + b"\0"
    return struct.pack(">II", 1, len(store)) + struct.pack(">IIII", 1000, 6, 0, 1) + store


def test_signing_keys_are_no_packages_and_what_is_only_in_the_log_is_one(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "rpmdb")) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE Packages (hnum INTEGER PRIMARY KEY, blob BLOB NOT NULL)")
        rows = [(rpm_header(name),) for name in ("gpg-pubkey", "bash")]
        database.executemany("INSERT INTO Packages (blob) VALUES (?)", rows)
        database.commit()
        files: dict[str, str | bytes] = {
            f"var__lib__rpm__rpmdb.sqlite{end}": (tmp_path / f"rpmdb{end}").read_bytes()
            for end in ("", "-wal")
        }
    found = bill_of(nodes_of(tmp_path, files))
    assert [one["name"] for one in found["components"]] == ["bash"]


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("var__lib__rpm__rpmdb.sqlite", b"rubbish"),
        ("var__lib__rpm__rpmdb.sqlite", rpm_database("rpmdb.sqlite")[:40_000]),
        ("var__lib__rpm__Packages", b"rubbish"),
        ("var__lib__rpm__Packages", b""),
        ("var__lib__rpm__Packages", rpm_database("Packages")[: 5 * 4096]),
        ("var__lib__rpm__Packages.db", b"of SUSE"),
    ],
)
def test_an_rpm_database_that_cannot_be_read_is_said(
    tmp_path: Path, path: str, content: bytes
) -> None:
    found = bill_of(nodes_of(tmp_path, {path: content, "var__lib__dpkg__status": STATUS}))
    assert found["compositions"][0]["aggregate"] == "incomplete"
    assert [one["name"] for one in found["components"]] == ["libc6"]


def test_changed_bytes_in_a_berkeley_database_end() -> None:
    """None of them in an endless loop, and none in another error than the one that is handled."""
    whole = rpm_database("Packages")
    for at in range(0, len(whole), 97):
        changed = whole[:at] + b"\xff" + whole[at + 1 :]
        try:
            assert len(berkeley_values(changed)) <= 4
        except ValueError:
            continue


def test_the_schema_is_not_content_with_anything(tmp_path: Path) -> None:
    found = bill(tmp_path, var__lib__dpkg__status=STATUS)
    found["components"][0]["licenses"] = [{"license": {"id": "no such licence"}}]
    with pytest.raises(jsonschema.ValidationError):
        validator().validate(json.loads(json.dumps(found)))


SPDX = {  # https://spdx.org/licenses, and the names of Debian's copyright format 1.0
    "Expat": "MIT",
    "Apache-2": "Apache-2.0",
    "Artistic": "Artistic-1.0",
    "Zlib/libpng": "zlib-acknowledgement",
    "PSF-2": "PSF-2.0",
    "Unicode": "Unicode-DFS-2016",
    "CC0": "CC0-1.0",
    "Boost-1.0": "BSL-1.0",
    "GPL-1": "GPL-1.0-only",
    "GPL-2+": "GPL-2.0-or-later",
    "gpl-3.0": "GPL-3.0-only",
    "LGPL-2": "LGPL-2.0-only",
    "LGPL-2.1+": "LGPL-2.1-or-later",
    "LGPL-3": "LGPL-3.0-only",
    "AGPL-1": "AGPL-1.0-only",
    "AGPL-3+": "AGPL-3.0-or-later",
    **{f"GFDL-1.{minor}": f"GFDL-1.{minor}-only" for minor in (1, 2, 3)},
}


NAMED = ["GPL-4", "LGPL-1", "AGPL-2", "GFDL-1.4", "public-domain", "GPL"]


@pytest.mark.parametrize("name", [*SPDX, *NAMED])
def test_a_licence_has_an_identifier_or_else_its_name(name: str) -> None:
    expected = {"name": name} if name in NAMED else {"id": SPDX[name]}
    assert licence(name) == {"license": expected}


def test_identifiers_are_those_of_spdx_whatever_their_case() -> None:
    known = json.loads((DATA / "cyclonedx" / "spdx.schema.json").read_text())["enum"]
    assert {*_BY_NAME.values()} <= {*known}
    for name in _BY_NAME:
        assert licence(name.upper()) == {"license": {"id": _BY_NAME[name]}}
    assert {"mit", "bsd-3-clause", "apache-2.0", "cc-by-sa-4.0", "0bsd", "vim"} <= _BY_NAME.keys()


def test_the_properties_that_the_documentation_names() -> None:
    assert CHECKSUM == "build-images:checksum"
    assert CHECKSUM_OF == "build-images:checksum-of"
