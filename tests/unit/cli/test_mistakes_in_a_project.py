"""Mistakes in a project of one's own: messages name line, right word and next step."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from builder.cli import main

pytestmark = pytest.mark.skipif(
    platform.machine() not in {"x86_64", "aarch64", "ppc64le"}, reason="no image is for it"
)
LIBRARIES = """\
recipe: climate-libs
version: "1.0"
about: hpc-base with netCDF
parent: hpc-base
sources:
  netcdf: local:netcdf.tar.gz
development:
  - packages: {apt: [libhdf5-openmpi-dev]}
    when: {mpi: openmpi}
  - generic_cmake: {url: "{{ sources.netcdf.url }}", prefix: /usr/local/netcdf, toolchain: mpi}
runtime:
  - copy: {from: development, src: /usr/local/netcdf, dest: /usr/local/netcdf}
checks: [hello]
"""
MODEL = """\
recipe: climate
version: "0.1"
about: A model
parent: hpc-base
development:
  - copy: {src: model/hello.c, dest: /usr/src/hello.c}
  - shell:
      commands:
        - mpicc -o /opt/climate/hello /usr/src/hello.c
runtime:
  - copy: {from: development, src: /opt/climate, dest: /opt/climate}
environment: {PATH: "/opt/climate:$PATH"}
checks: [hello]
"""
COPY = "  - copy: {from: development, src: /opt/climate, dest: /opt/climate}\n"


@pytest.fixture(name="project")
def own_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("BUILD_IMAGES_SITE", raising=False)
    folder = tmp_path / "climate"
    assert main(["init", str(folder)]) == 0
    (folder / "files/model").mkdir()
    (folder / "files/hello.c").rename(folder / "files/model/hello.c")
    (folder / "recipes/climate-libs.yaml").write_text(LIBRARIES)
    (folder / "recipes/climate.yaml").write_text(MODEL)
    return folder


@pytest.mark.parametrize(
    ("name", "right", "wrong", "line", "parts"),
    [
        ("climate", "  - shell:", " - shell:", 7, ["compare this line's indentation"]),
        ("climate", "runtime:", "runtime", 10, ["could not find expected ':'", "key: value"]),
        ("climate", "A model", "A model: mine", 3, ["quote a text with a colon"]),
        ("climate", "environment:", "env:", 12, ['unknown key\n    did you mean "environment"?']),
        ("climate", "model/hello.c", "hello.c", 6, ['did you mean "model/hello.c"?']),
        ("climate", "from: development, ", "", 11, ["`from: development` copies from"]),
        (
            *("climate", "shell:\n      commands:\n        - mpicc", "run: mpicc", 7),
            ["there is no block run; valid: shell: {commands: [make, make install]}"],
        ),
        ("climate-libs", "mpi: openmpi", "mpi: openmp", 9, ['did you mean "openmpi"?']),
        (
            *("climate-libs", "{apt: [libhdf5-openmpi-dev]}", "[libhdf5-openmpi-dev]", 8),
            ["valid: packages: {apt: ["],
        ),
        (
            *("climate-libs", "sources.netcdf.", "sources.netcdff.", 10),
            ["unknown source 'netcdff'; its recipe has netcdf"],
        ),
        (
            *("climate-libs", "toolchain: mpi", "toolchain: mpich", 10),
            ["no block mpich comes before", "valid: mpi, gnu, {CC: gcc"],
        ),
    ],
)
def test_the_message_says_where_and_what_is_valid(
    name: str,
    right: str,
    wrong: str,
    line: int,
    parts: list[str],
    project: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = project / f"recipes/{name}.yaml"
    assert right in path.read_text()
    path.write_text(path.read_text().replace(right, wrong, 1))
    capsys.readouterr()
    assert main(["lint", "--project", str(project), "--recipe", name]) == 2
    error = capsys.readouterr().err
    assert f"recipes/{name}.yaml:{line}: " in error
    assert [part for part in parts if part not in error] == []


def test_a_program_that_stays_in_the_development_stage_is_named(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = project / "recipes/climate.yaml"
    path.write_text(path.read_text().replace(f"runtime:\n{COPY}", ""))
    capsys.readouterr()
    assert main(["lint", "--project", str(project)]) == 0
    found = "lost-between-stages: not copied into the run-time stage: /opt/climate/hello: mpicc"
    [line, origin, *_] = capsys.readouterr().out.splitlines()
    assert found in line
    assert origin == "    from recipes/climate.yaml:7, development[1].shell"
