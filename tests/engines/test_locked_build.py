"""A real build from a locked source, with no way to fetch it: Debian's package of GNU hello."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from harness import build_images, manifest_of, passed

from builder.build.engines import Tools

RECIPE = """\
recipe: hello-src
version: "1.0"
about: GNU hello from Debian's source package
sources:
  hello: debian-source:hello/2.10
development:
  - generic_build:
      url: "{{ sources.hello.url }}"
      directory: hello-2.10
      prefix: /usr/local/hello
      install: [install -D -m 644 hello.1 /usr/local/hello/share/man/man1/hello.1]
checks: []
"""
MATRIX = """\
axes: {arch: [x86_64], base: [debian13], cuda: [none], mpi: [none]}
inherit: false
default: {recipe: [hello-src]}
"""


@pytest.mark.engines
def test_a_locked_source_is_built_offline(site: Path, tools: Tools) -> None:
    del tools
    shutil.rmtree(site / "recipes")
    (site / "recipes").mkdir()
    (site / "recipes" / "hello-src.yaml").write_text(RECIPE)
    (site / "matrix.yaml").write_text(MATRIX)
    passed(build_images("lock", "--project", site))
    passed(build_images("--offline", "--no-cache", "--format", "oci", "--project", site))
    folder = site / "out" / "hello-src-1.0-debian13-x86_64"
    log = (folder / "build.log").read_text()
    assert "/opt/build-images/sources/hello-src/hello_2.10.orig.tar.gz: OK" in log
    [(url, checksum)] = manifest_of(folder)["inputs"]["sources"].items()
    assert url == "debian-source:hello/2.10"
    assert checksum.removeprefix("sha256:") in log
    assert "Connecting to" not in log
