"""Native tools lent to an emulated build: they do the work, and nothing of them stays."""

from __future__ import annotations

import platform
import shutil
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from harness import LONG, build_images, manifest_of, passed
from projects import copy_of_project

from builder.artifacts import oci
from builder.artifacts.flatten import flattened
from builder.artifacts.repack import unpack
from builder.build import native
from builder.build.engines import Tools

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(
        platform.machine() != "x86_64", reason="native tools are for x86_64 machines"
    ),
]
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
axes: {{arch: [ppc64le], base: [{base}], cuda: [none], mpi: [none]}}
inherit: false
default: {{recipe: [{recipe}]}}
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


# The image's own nvcc, without the 2 GB of what it depends on. A copy of a program at another path
# has no twin, and runs under QEMU. What they write is compared, but
# for x.cudafe1.gpu, which is for people to read and spells numbers otherwise.
NVCC = r"""
sed 's/ main$/ non-free/' /etc/apt/sources.list > /etc/apt/sources.list.d/nvcc.list
mkdir -p /opt/nvcc/own && cd /opt/nvcc
apt-get update -q && apt-get download nvidia-cuda-toolkit
dpkg-deb --extract ./*.deb cuda && cp cuda/usr/bin/fatbinary cuda/usr/bin/nvlink own
cp cuda/usr/bin/ptxas cuda/usr/lib/nvidia-cuda-toolkit/bin/cicc own
mkdir -p /usr/lib/nvidia-cuda-toolkit/bin && cp own/cicc /usr/lib/nvidia-cuda-toolkit/bin
cp own/fatbinary own/nvlink own/ptxas /usr/bin && rm -r cuda ./*.deb
libraries() { LD_TRACE_LOADED_OBJECTS=1 "$1"; }
lent() { libraries "$1" | grep -F /.native/usr/lib/; }
own() { libraries "$1" | grep -F /lib/powerpc64le-linux-gnu/; }
lent /usr/bin/fatbinary && lent /usr/bin/nvlink && lent /usr/bin/ptxas
lent /usr/lib/nvidia-cuda-toolkit/bin/cicc
own own/fatbinary && own own/nvlink && own own/ptxas && own own/cicc
echo '__attribute__((device)) float half(float x) { return x * 0.5f + 1e-3f; }' > x.ii
echo 'template <class T> __attribute__((device)) T twice(T x) { return x + x; }' >> x.ii
echo '__attribute__((global)) void f(int n, float a, const float *x, float *y, double *z) {' >> x.ii
echo '  for (int i = 0; i < n; i++) { y[i] = a * half(x[i]) + twice(y[i]);' >> x.ii
echo '    z[i] = 1.0 / (z[i] + 0.1); } }' >> x.ii
cicc() { "$1"/cicc --c++17 --orig_src_file_name x.cu -tused -arch compute_70 $OPTIONS; }
OPTIONS="--gnu_version=140200 -m64 --allow_managed --no-version-ident"
OPTIONS="$OPTIONS -ftz=0 -prec_div=1 -prec_sqrt=1 -fmad=1 x.ii -o x.ptx"
ptxas() { "$1"/ptxas -c -arch=sm_70 -m64 x.ptx -o x.cubin; }
nvlink() { "$1"/nvlink --arch=sm_70 -m64 x.cubin -o linked.cubin; }
bin() { "$1"/fatbinary --create=x.fatbin -64 --image3=kind=elf,sm=70,file=linked.cubin $PTX; }
PTX=--image3=kind=ptx,sm=70,file=x.ptx
code() { cicc "$2" && ptxas "$1" && nvlink "$1" && bin "$1"; }
all() { mkdir "$1" && cd "$1" && cp ../x.ii . && code "$2" "$3"; }
(all by-lent /usr/bin /usr/lib/nvidia-cuda-toolkit/bin)
(all by-own /opt/nvcc/own /opt/nvcc/own)
grep -F '.visible .entry _Z1fifPKfPfPd(' by-own/x.ptx
rm -f by-*/*.gpu && diff -r by-lent by-own && test -s by-own/x.fatbin
rm -r /opt/nvcc /var/lib/apt/lists/*
"""
NVCC_RECIPE = """\
recipe: nvcc
version: "1.0"
about: What nvcc's passes make, lent and the image's own
development:
  - shell:
      commands:
%s
"""


Building = dict[str, Future[Path]]


@pytest.fixture(scope="module", name="building")
def all_building(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Building]:
    """The images of this file by name, built at once: emulation takes one core for each.

    What is given is the folder of an image that was built well.
    """
    del tools
    assert native.is_open("ppc64le"), "make setup registers the interpreter"
    with ThreadPoolExecutor() as pool:
        yield {
            name: pool.submit(build, tmp_path_factory.mktemp(name))
            for name, build in BUILDS.items()
            if LONG or name == "debian13"
        }


def written(site: Path, text: str, base: str = "debian13") -> tuple[str | Path, ...]:
    """Make a folder a project of one recipe; the arguments that build it."""
    copy_of_project(site)
    for recipe in (site / "recipes").glob("*.yaml"):
        recipe.unlink()
    name = text.partition("\n")[0].removeprefix("recipe: ")
    (site / f"recipes/{name}.yaml").write_text(text)
    (site / "matrix.yaml").write_text(MATRIX.format(base=base, recipe=name))
    return ("--project", site, "--format", "oci", "--flavour", "development")


def commands(steps: str) -> str:
    """Lines of shell as a recipe lists them."""
    quoted = ("'" + line.replace("'", "''") + "'" for line in steps.strip().splitlines())
    return "\n".join(f"        - {line}" for line in quoted)


def built(site: Path, text: str, *options: str, base: str = "debian13") -> Path:
    """Build the one image of a recipe; its folder."""
    passed(build_images(*written(site, text, base), "--no-cache", *options))
    [folder] = (site / "out").glob("*-ppc64le")
    return folder


def nvcc(site: Path) -> Path:
    return built(site, NVCC_RECIPE % commands(NVCC), "--no-verify")


def lent(base: str, site: Path) -> Path:
    return built(site, RECIPE % commands(STEPS), base=base)


def same(site: Path) -> Path:
    folder = built(site, SAME, "--no-verify")
    passed(build_images("reproduce", folder, "--project", site, "--no-native-tools"))
    return folder


BUILDS: dict[str, Callable[[Path], Path]] = {
    "same": same,  # the longest comes first
    "debian12": partial(lent, "debian12"),
    "debian13": partial(lent, "debian13"),
    "nvcc": nvcc,
}


@pytest.mark.parametrize(
    "base",
    [
        "debian13",
        pytest.param("debian12", marks=pytest.mark.long(reason="makes another base and its tools")),
    ],
)
def test_steps_run_native_tools_and_nothing_of_them_stays(
    base: str, building: Building, tmp_path: Path
) -> None:
    folder = building[base].result()
    assert manifest_of(folder)["outcome"] == "verified"
    plain = unpack(oci.read_layout(folder / "image.oci"), tmp_path / "plain")
    nodes = flattened(plain.layout)
    assert "usr/bin/gcc" in nodes
    assert not [path for path in nodes if path.startswith(".native")]


@pytest.mark.long(reason="builds an image under plain QEMU, minutes")
def test_the_image_is_the_same_without_them(building: Building) -> None:
    """Byte for byte: `reproduce` says so of what was built again under plain QEMU."""
    assert manifest_of(building["same"].result())["inputs"]["native_tools"]


@pytest.mark.long(reason="downloads and unpacks NVIDIA's compiler for ppc64le, minutes")
def test_passes_of_nvcc_make_the_same_code(building: Building) -> None:
    """PTX, cubin, linked cubin and fatbin, of Debian 13's nvcc 12.4; the build compares them."""
    log = (building["nvcc"].result() / "build.log").read_text()
    for libraries in ("/.native/usr/lib/x86_64-linux-gnu", "/lib/powerpc64le-linux-gnu"):
        assert log.count(f"libpthread.so.0 => {libraries}/") == 4


LITTLE = """\
recipe: little
version: "1.0"
about: A step that takes no time
development:
  - shell: {commands: [echo %s > /opt/little]}
"""


def test_a_step_that_ran_with_native_tools_runs_again_without_them(
    tools: Tools, tmp_path: Path
) -> None:
    """Buildah finds kept steps by their words and what they stand on."""
    del tools
    arguments = written(tmp_path, LITTLE % uuid.uuid4())  # no earlier run has that step
    logs = []
    for options in ([], ["--no-native-tools"], []):
        passed(build_images(*arguments, "--no-verify", *options))
        [log] = (tmp_path / "out").glob("little-*/build.log")
        logs.append(log.read_text())
        shutil.rmtree(log.parent)
    lent, plain, again = logs
    assert "LABEL build-images.native=" in lent
    assert "LABEL build-images.native=" not in plain
    assert "Using cache" not in plain
    assert "Using cache" in again
