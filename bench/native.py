"""hwloc from source in a ppc64le image: with native tools, under plain QEMU, and on x86_64.

Each contender runs `./configure && make -j2` in a container of its own that has gcc and make, with
the source unpacked anew each time. Afterwards what native tools and plain QEMU made is compared:
configure's results and the library's symbols. The number of repeats can be given, and after it
that of plain QEMU, which takes long (default 1; 0 leaves it out).
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from timing import interleaved, print_ratio, report

from builder.build.base_store import Bootstrapping, ensure_base
from builder.build.engines import Buildah, Tools
from builder.build.mirror import find_mirror
from builder.build.native.tools import ensure_tools
from builder.load.project import load_project
from builder.sources.debian import DebianSources
from builder.sources.download import Downloader
from builder.sources.store import SourceStore
from builder.system.home import LENT_AT, Home
from builder.system.process import Processes

PROJECT = Path(__file__).resolve().parents[1]
BASE, SOURCE = "debian12", "debian-source:hwloc/2.9.0"
ARCHS = {"native tools": "ppc64le", "plain QEMU": "ppc64le", "x86_64": "x86_64"}
PREPARE = (
    "apt-get update -q && apt-get install -qy --no-install-recommends bzip2 gcc libc6-dev make"
)
BUILD = """\
set -e; rm -rf /tmp/hwloc; mkdir /tmp/hwloc; cd /tmp/hwloc
tar xf /tmp/source --strip-components=1
./configure --disable-doxygen --without-x --disable-libxml2 > configure.out 2>&1
make -j2 > make.out 2>&1
"""
# What a build leaves that another build of the same source can be held against; `.comment` has the
# revision of the compiler's package, which can be another one of the cross-compiler's.
EVIDENCE = r"""\
cd /tmp/hwloc
grep -h '^#' include/private/autogen/config.h include/hwloc/autogen/config.h
echo == ; for file in $(find . -name '*.so*' -type f | sort); do
    echo "$file"; nm -D --defined-only "$file" | cut -d ' ' -f 2-
    objdump -p "$file" | grep -E 'NEEDED|SONAME|RUNPATH' ; done
echo == ; for file in $(find . -name '*.o' | sort); do
    echo "$file $(objcopy -g -R .comment "$file" /tmp/o && sha256sum < /tmp/o)"; done
"""


class Bench:
    """A container for each contender, on the builder's own storage."""

    def __init__(self) -> None:
        self.tools = Tools(processes=Processes(), home=Home.of_environment())
        self.buildah = Buildah(self.tools)
        self.log = Path(tempfile.mkstemp(suffix=".log")[1])
        self.base = load_project(PROJECT).bases[BASE]
        self.source = self._source()
        self.lent = ensure_tools(
            self.base,
            "ppc64le",
            self._way(self.tools.home.native),
        ).root
        self.containers: dict[str, str] = {}

    def _way(self, store: Path) -> Bootstrapping:
        return Bootstrapping(
            store=store,
            mirror=find_mirror(),
            processes=self.tools.processes,
            log=self.log,
            say=print,
        )

    def _source(self) -> Path:
        store = SourceStore(path=self.tools.home.sources, debian=find_mirror().main)
        found = DebianSources(
            store=store,
            suites=["bookworm"],
            downloader=Downloader(),
            processes=self.tools.processes,
        ).resolve(SOURCE)
        return store.ensure(found, downloader=Downloader())

    def start(self, name: str) -> None:
        arch = ARCHS[name]
        stored = ensure_base(
            self.base,
            arch,
            f"localhost/build-images/bench:{arch}",
            self._way(self.tools.home.bases),
        )
        self.buildah.provide_base(stored, log=self.log)
        made = self._buildah("from", "--pull-never", f"--arch={arch}", stored.name)
        self.containers[name] = made.strip()
        self._buildah("copy", self.containers[name], str(self.source), "/tmp/source")
        self.run(name, PREPARE, lend=arch == "ppc64le")

    def run(self, name: str, script: str, *, lend: bool) -> str:
        volume = [f"--volume={self.lent}:{LENT_AT}:ro"] if lend else []
        return self._buildah(
            "run",
            "--isolation=chroot",
            *volume,
            self.containers[name],
            "--",
            "sh",
            "-c",
            script,
        )

    def build(self, name: str) -> Callable[[], object]:
        return lambda: self.run(name, BUILD, lend=name == "native tools")

    def end(self) -> None:
        for container in self.containers.values():
            self._buildah("rm", container)

    def _buildah(self, *arguments: str) -> str:
        done = subprocess.run(
            self.buildah.command(*arguments), capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"buildah {' '.join(arguments)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout


def compare(ours: str, theirs: str) -> dict[str, object]:
    """How many lines of configure's results, symbols and objects two builds share."""
    result: dict[str, object] = {}
    names = ("configure's results", "libraries' symbols", "object files")
    for title, one, other in zip(names, ours.split("==\n"), theirs.split("==\n"), strict=True):
        lines, others = one.splitlines(), other.splitlines()
        result[title] = {
            "alike": len(set(lines) & set(others)),
            "native alone": sorted(set(lines) - set(others)),
            "QEMU alone": sorted(set(others) - set(lines)),
        }
    return result


def main() -> None:
    if platform.machine() != "x86_64":
        sys.exit("native tools are for x86_64 machines")
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    plain = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    bench = Bench()
    names = ["native tools", "x86_64", *(["plain QEMU"] if plain else [])]
    for name in names:
        bench.start(name)
    try:
        times = interleaved({name: bench.build(name) for name in names[:2]}, repeats=repeats)
        if plain:
            times.update(interleaved({"plain QEMU": bench.build("plain QEMU")}, repeats=plain))
        report(times, ours="native tools", against="x86_64", reach="at most 1.5")
        print_ratio(times, "plain QEMU", "native tools", "at least 10")
        if plain:
            made = [
                bench.run(name, EVIDENCE, lend=False) for name in ("native tools", "plain QEMU")
            ]
            print(json.dumps(compare(*made), indent=1))
    finally:
        bench.end()


if __name__ == "__main__":
    main()
