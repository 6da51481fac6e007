"""The bill of materials, read from the files of an image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from samples import a_file, a_folder, a_link, blob, tar_bytes

from builder.artifacts.flatten import flattened
from builder.artifacts.oci import Layout
from builder.artifacts.sbom import bill_of_materials

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


def bill(tmp_path: Path, **files: str) -> dict[str, Any]:
    members = [a_folder("var")]
    for name, text in files.items():
        path = name.replace("__", "/")
        members.append(a_link(path, text[3:]) if text.startswith("-> ") else a_file(path, text))
    layer = blob(tmp_path, tar_bytes(*members))
    layout = Layout(path=tmp_path, digest="sha256:abc", config={}, layers=(layer,))
    return bill_of_materials(
        flattened(layout),
        identifier="core-1.0-x86_64",
        version="1.0",
        distribution="debian",
        digest=layout.digest,
    )


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


def test_packages_of_python(tmp_path: Path) -> None:
    path = "usr__lib__python3__site-packages__my_package-1.0.dist-info__METADATA"
    [one] = bill(tmp_path, **{path: METADATA})["components"]
    assert (one["name"], one["version"]) == ("My_Package", "1.0+local")
    assert one["purl"].endswith("/my-package@1.0%2Blocal")


def test_what_has_no_name_or_version_is_no_package(tmp_path: Path) -> None:
    files = {
        "a-1.dist-info__METADATA": "Name: a\n",
        "b-1.dist-info__METADATA": "-> /nowhere",
        "METADATA": METADATA,
        "c-1.dist-info__RECORD": METADATA,
    }
    assert bill(tmp_path, **files)["components"] == []


def test_the_document_names_the_image(tmp_path: Path) -> None:
    found = bill(tmp_path)
    assert (found["bomFormat"], found["specVersion"], found["version"]) == ("CycloneDX", "1.5", 1)
    component = found["metadata"]["component"]
    assert component["name"] == "core-1.0-x86_64"
    assert component["hashes"] == [{"alg": "SHA-256", "content": "abc"}]


def test_components_are_sorted_and_named_once(tmp_path: Path) -> None:
    one = "Package: {}\nArchitecture: all\nVersion: 1\n"
    status = "\n".join(one.format(name) for name in ("b", "a", "b"))
    extra = {"var__lib__dpkg__status.d__c": one.format("c")}
    found = bill(tmp_path, var__lib__dpkg__status=status, **extra)["components"]
    assert [component["name"] for component in found] == ["a", "b", "c"]


def test_binary_rubbish_is_no_package(tmp_path: Path) -> None:
    given = {"var__lib__dpkg__status": "\0\n\n\0:\nPackages", "x.egg-info": "\0\0"}
    assert bill(tmp_path, **given)["components"] == []


def test_a_package_without_architecture_does_not_stop_it(tmp_path: Path) -> None:
    found = bill(tmp_path, var__lib__dpkg__status="Package: odd\nVersion: 1\n")
    assert [component["name"] for component in found["components"]] == ["odd"]
