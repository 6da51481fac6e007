"""`mirrors` of site.yaml: where one base is fetched from; it changes no content key."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from samples import base

from builder.build.base_store import base_key, sources
from builder.build.mirror import SECURITY_VARIABLE, VARIABLE, DebianMirror, mirror_of
from builder.cli import main
from builder.model.errors import MissingPrerequisite

DEBIAN, ROCKY = "hpc-base-1.0-debian12-openmpi4.1", "hpc-base-1.0-rockylinux9-openmpi4.1"
MIRRORS = """\
mirrors:
  debian12: [https://debian.site.example/debian, https://debian.site.example/debian-security]
  rockylinux9: registry.site.example/rocky/rockylinux
registries: {docker.io: mirror.site.example/dockerhub}
"""
LOCK = """\
schema: build-images/lock/v1
sources: []
references:
  - {reference: "docker.io/rockylinux/rockylinux:9", arch: x86_64, digest: "sha256:%s"}
""" % ("0" * 64)
MACHINE = DebianMirror(main="http://mirror.example.org/debian", security="http://s.example.org/s")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, "http://mirror.example.org/debian")
    monkeypatch.setenv(SECURITY_VARIABLE, "none")
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    (tmp_path / "matrix.yaml").write_text("{}\n")
    (tmp_path / "site.yaml").write_text(MIRRORS)
    return tmp_path


def explained(project: Path, capsys: pytest.CaptureFixture[str], image: str) -> str:
    assert main(["explain", f"--project={project}", f"--image={image}-x86_64"]) == 0
    lines = map(str.strip, capsys.readouterr().out.splitlines())
    return "\n".join(line for line in lines if re.match("base: (fetched|.*security)", line))


def keys(project: Path, capsys: pytest.CaptureFixture[str]) -> list[Any]:
    argv = ["plan", "--json", f"--project={project}", f"--image={DEBIAN}-*", f"--image={ROCKY}-*"]
    assert main(argv) == 0
    images = json.loads(capsys.readouterr().out)["images"]
    assert images
    return [
        (image["content_key"], [row["key"] for row in image["stage_states"]]) for image in images
    ]


def test_explain_names_the_mirror(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert explained(project, capsys, ROCKY) == (
        "base: fetched from registry.site.example/rocky/rockylinux:9 (site.yaml)"
    )
    assert explained(project, capsys, DEBIAN) == (
        "base: fetched from https://debian.site.example/debian and "
        "https://debian.site.example/debian-security (site.yaml)"
    )
    assert explained(project, capsys, "hpc-base-1.0-debian13-openmpi5.0") == (
        "base: fetched from http://mirror.example.org/debian (BUILD_IMAGES_MIRROR)\n"
        "base: no security updates (BUILD_IMAGES_SECURITY_MIRROR)"
    )
    assert explained(project, capsys, ROCKY.replace("rockylinux9", "rockylinux8")) == (
        "base: fetched from mirror.site.example/dockerhub/rockylinux/rockylinux:8 (site.yaml)"
    )


@pytest.mark.parametrize("lock", ["", LOCK])
def test_specs_start_from_it(
    lock: str, project: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if lock:
        (project / "lock.yaml").write_text(lock)
    out = tmp_path / "specs"
    argv = ["spec", "--no-lint", f"--project={project}", f"--image={ROCKY}-x86_64", "-o", str(out)]
    assert main(argv) == 0, capsys.readouterr().err
    name = "@sha256:" + "0" * 64 if lock else ":9"
    text = (out / f"{ROCKY}-x86_64/Dockerfile").read_text()
    assert f"FROM registry.site.example/rocky/rockylinux{name} AS" in text


def test_no_content_key_changes(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mirrored = keys(project, capsys)
    (project / "site.yaml").unlink()
    assert keys(project, capsys) == mirrored


@pytest.mark.parametrize(
    ("mirrors", "problem"),
    [
        ("debain12: https://a.example/debian", 'unknown base image: "debain12"'),
        ("debian12: a.example/debian", "not a mirror for debian12, which comes from a Debian"),
        ("debian12: [https://a/a, https://a/b, https://a/c]", "not a mirror for debian12"),
        ("rockylinux9: https://a.example/rocky", "which comes from a registry"),
        ("rockylinux9: [a.example/rocky, b.example/rocky]", "which comes from a registry"),
        ("debian12: https://me:secret@a.example/debian", "it may hold a password"),
    ],
)
def test_wrong_mirrors(
    mirrors: str, problem: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "site.yaml").write_text(f"mirrors:\n  {mirrors}\n")
    assert main(["plan", f"--project={project}"]) == 2
    said = capsys.readouterr().err
    assert "site.yaml:2: mirrors." in said
    assert problem in said
    assert "secret" not in said


def test_explain_names_the_security_archive_beside_one_mirror(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECURITY_VARIABLE, "http://s.example.org/s")
    (project / "site.yaml").write_text("mirrors: {debian12: https://debian.site.example/debian}\n")
    assert explained(project, capsys, DEBIAN) == (
        "base: fetched from https://debian.site.example/debian (site.yaml)\n"
        "base: security updates from http://s.example.org/s (BUILD_IMAGES_SECURITY_MIRROR)"
    )


def lacking() -> DebianMirror:
    raise MissingPrerequisite("no mirror")


@pytest.mark.parametrize(
    ("named", "site", "security"),
    [
        ("", "", None),
        ("https://s.example/s/", "", "https://s.example/s"),
        ("none", "", ""),
        ("none", "https://site.example/s", "https://site.example/s"),
    ],
)
def test_a_base_with_a_mirror_needs_none_of_the_machine(
    named: str, site: str, security: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECURITY_VARIABLE, named)
    monkeypatch.setattr("builder.build.mirror._entries", lambda _: iter(()))  # no apt sources
    own = base(mirrors=("http://own.example/debian", *filter(None, [site])))
    assert mirror_of(own, lacking) == DebianMirror(
        main="http://own.example/debian", security=security
    )
    with pytest.raises(MissingPrerequisite):
        mirror_of(base(), lacking)


def test_its_archives_are_those_of_the_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECURITY_VARIABLE, MACHINE.security or "")
    own = base(mirrors=("http://own.example/debian",))
    mirror = mirror_of(own, lambda: MACHINE)
    assert mirror == DebianMirror(main="http://own.example/debian", security=MACHINE.security)
    assert sources(own, mirror)[0][0] == "http://own.example/debian"
    assert base_key(own, "x86_64", mirror) != base_key(own, "x86_64", MACHINE)
    assert base_key(base(), "x86_64", mirror_of(base(), lambda: MACHINE)) == base_key(
        own, "x86_64", MACHINE
    )
