"""Native tools lent to an emulated build: they do the work, and nothing of them stays."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest
from harness import build_images, manifest_of

from builder import door
from builder.artifacts import oci
from builder.artifacts.flatten import flattened
from builder.artifacts.repack import unpack
from builder.engines import Tools

# Each line fails the build unless what it says is so.
STEPS = r"""
uname -m | grep -x ppc64le
head -n 1 /proc/self/maps | grep -F /.native/usr/bin/head
bash -c 'test "$HOSTTYPE" = powerpc64le && readlink /proc/$$/exe && :' | grep -F /.native/usr/bin
printf 'int main(void) { return 0; }' > /tmp/a.c
/usr/bin/gcc -O2 -g -o /tmp/a /tmp/a.c
env -i PATH=/usr/bin gcc -o /tmp/b /tmp/a.c
PATH=/usr/local/nowhere:/usr/bin:/bin cc -o /tmp/c /tmp/a.c
readelf -h /tmp/a | grep PowerPC64 && /tmp/a && /tmp/b && /tmp/c
! readelf --debug-dump /tmp/a | grep -F /.native
gcc -v 2>&1 | grep -F -- --host=x86_64-linux-gnu
mkdir /tmp/lib && echo 'int f(void) { return 0; }' > /tmp/lib/f.c
gcc -shared -fPIC -o /tmp/lib/libf.so /tmp/lib/f.c
echo 'int f(void); int main(void) { return f(); }' > /tmp/m.c
LIBRARY_PATH=/nowhere:/tmp/lib gcc -o /tmp/m /tmp/m.c -lf && LD_LIBRARY_PATH=/tmp/lib /tmp/m
gcc -flto -O2 -c -o /tmp/lib/f.o /tmp/lib/f.c && gcc-ar rc /tmp/lib/l.a /tmp/lib/f.o
gcc -flto -O2 -o /tmp/o /tmp/m.c /tmp/lib/l.a && /tmp/o
apt-get update -q && apt-get install -qy --reinstall dash bash coreutils base-files
/bin/sh -c 'echo the shell was upgraded under itself' && /bin/dash -c true
dpkg --print-architecture | grep -x ppc64el
rm -rf /tmp/* /var/lib/apt/lists/*
"""
RECIPE = """\
recipe: lent
version: "1.0"
about: What native tools are to stand
development:
  - packages: {apt: [gcc, libc6-dev]}
  - shell:
      commands:
%s
checks: [architecture]
"""
MATRIX = """\
axes: {arch: [ppc64le], base: [%s], cuda: [none], mpi: [none]}
default: {recipe: [lent]}
"""


SAME = """\
recipe: same
version: "1.0"
about: What comes out alike with and without native tools
development:
  - packages: {apt: [g++, gfortran, make, python3]}
  - shell:
      commands:
        - mkdir /opt/same && cd /opt/same && echo 'X = 1' > mod.py
        - printf '#include <omp.h>\\n#include <stdio.h>\\n' > c.c
        - echo 'int main(void) { return puts("") < 0 || omp_get_num_threads() - 1; }' >> c.c
        - gcc -O2 -g -fopenmp -o c c.c && ./c
        - printf '#include <omp.h>\\n#include <vector>\\n#include <stddef.h>\\n' > o.cc
        - echo 'int main() { return std::vector<int>(3).size() - 3; }' >> o.cc
        - g++ -O2 -fopenmp -o o o.cc && ./o
        - printf 'use omp_lib\\nprint *, omp_get_max_threads() > 0\\nend\\n' > o.f90
        - gfortran -O2 -fopenmp -o of o.f90 && ./of
        - printf '#include <vector>\\nint main() { return std::vector<int>(3).size() - 3; }' > p.cc
        - g++ -O2 -o p p.cc && ./p
        - printf 'print *, 1\\nend\\n' > f.f90 && gfortran -O2 -o f f.f90 && ./f && ar rc l.a c
        - make --version > /dev/null && python3 -m compileall -q . && strip c
checks: [architecture]
"""


@pytest.fixture
def project(site: Path) -> Path:
    shutil.rmtree(site / "recipes")
    (site / "recipes").mkdir()
    quoted = ("'" + line.replace("'", "''") + "'" for line in STEPS.strip().splitlines())
    commands = "\n".join(f"        - {line}" for line in quoted)
    (site / "recipes" / "lent.yaml").write_text(RECIPE % commands)
    return site


@pytest.mark.engines
@pytest.mark.skipif(platform.machine() != "x86_64", reason="native tools are for x86_64 machines")
@pytest.mark.parametrize("base", ["debian12", "debian13"])
def test_steps_run_native_tools_and_nothing_of_them_stays(
    base: str, project: Path, tools: Tools
) -> None:
    del tools
    assert door.is_open("ppc64le"), "make setup registers the interpreter"
    (project / "matrix.yaml").write_text(MATRIX % base)
    arguments = ("--project", project, "--format", "oci", "--flavour", "development")
    done = build_images(*arguments, "--output", project / "lent", "--no-cache")
    log = next((project / "lent").glob("*/build.log")).read_text()
    assert done.status == 0, log[-3000:]
    folder = next((project / "lent").glob("lent-*"))
    assert manifest_of(folder)["outcome"] == "verified"
    plain = unpack(oci.read_layout(folder / "image.oci"), project / "plain")
    nodes = flattened(plain.layout)
    assert "usr/bin/gcc" in nodes
    assert not [path for path in nodes if path.startswith(".native")]


@pytest.mark.engines
@pytest.mark.skipif(platform.machine() != "x86_64", reason="native tools are for x86_64 machines")
def test_the_image_is_the_same_without_them(project: Path, tools: Tools) -> None:
    del tools
    (project / "recipes" / "lent.yaml").unlink()
    (project / "recipes" / "same.yaml").write_text(SAME)
    (project / "matrix.yaml").write_text((MATRIX % "debian13").replace("[lent]", "[same]"))
    arguments = ("--project", project, "--format", "oci", "--flavour", "development")
    done = build_images(*arguments, "--no-cache", "--no-verify")
    assert done.status == 0, done.stderr
    [folder] = (project / "out").glob("same-*")
    again = build_images("reproduce", folder, "--project", project, "--no-native-tools")
    assert again.status == 0, again.stdout + again.stderr
