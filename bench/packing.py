"""Packing a built image three ways, against `apptainer build` and `ch-convert` of the same image.

Ours starts from what the engine exports. The others start from what they read: `apptainer build`
from the OCI layout, `ch-convert` from a folder that the image was unpacked to; unpacking is not
counted. The image is `hpc-base` for this machine's own architecture; it is built if need be. The
number of repeats can be given. Then gzip's levels, on the image's largest layer.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from timing import interleaved, report, seconds

from builder.artifacts import flatten, oci, tars
from builder.artifacts.repack import PlainLayout, repack, unpack
from builder.build.engines import Tools, apptainer, charliecloud
from builder.model import EPOCH
from builder.system.home import Home
from builder.system.process import Processes

PROJECT = Path(__file__).resolve().parents[1]
IMAGE = f"hpc-base-1.0-debian13-openmpi5.0-{platform.machine()}"
SAMPLE = 96 << 20
QUIET = subprocess.DEVNULL


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """One built image, and a folder that the ordinary user can write to."""

    layout: oci.Layout
    folder: Path
    tools: Tools

    def exported(self) -> Path:
        """What an engine exports, made of the plain layers; it is used up by packing."""
        folder = self.folder / "exported"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        plain = unpack(self.layout, self.folder / "plain-of-all.oci").layout
        blobs = oci.blob_path(plain.path, "sha256:x").parent
        for blob in blobs.iterdir():
            os.link(blob, folder / blob.name)
        index = json.loads((plain.path / "index.json").read_text())
        manifest = index["manifests"][0]["digest"].partition(":")[2]
        shutil.copy(folder / manifest, folder / "manifest.json")
        return folder

    def repacked(self) -> PlainLayout:
        """The OCI layout, and the plain one."""
        target, plain = self.folder / "image.oci", self.folder / "plain.oci"
        return repack(self.exported(), target, plain=plain, epoch=EPOCH)

    def tarball(self, plain: PlainLayout) -> None:
        """Our Charliecloud tarball."""
        nodes = flatten.flattened(plain.layout)
        packed = oci.read_layout(self.folder / "image.oci")
        charliecloud.pack(plain, nodes, packed, self.folder / "image.tar.gz")

    def sif(self, plain: PlainLayout) -> None:
        """Our SIF."""
        apptainer.pack(
            plain.layout.path,
            self.folder / "image.sif",
            [],
            arch=platform.machine(),
            tools=self.tools,
            log=self.folder / "log",
        )

    def all_three(self) -> None:
        """What the main job does."""
        plain = self.repacked()
        with ThreadPoolExecutor(1) as beside:
            sif = beside.submit(self.sif, plain)
            self.tarball(plain)
            sif.result()

    def apptainer_build(self) -> None:
        """`apptainer build` with its own defaults."""
        places = {**apptainer.environment(self.folder), "APPTAINER_MKSQUASHFS_ARGS": ""}
        target, source = self.folder / "theirs.sif", f"oci:{self.layout.path}"
        self.tools.processes.logged(
            [self.tools.program("apptainer"), "build", "--force", target, source],
            log=self.folder / "log",
            env={**self.tools.environment, **places},
            user=self.tools.ordinary_user,
            cwd=self.folder,
        )

    def ch_convert(self) -> None:
        """`ch-convert` of an unpacked image to a tarball."""
        target = self.folder / "theirs.tar.gz"
        target.unlink(missing_ok=True)
        command = [self.tools.program("ch-convert"), "-i", "dir", "-o", "tar"]
        self.tools.processes.logged(
            [*command, self.folder / "unpacked", target],
            log=self.folder / "log",
            env={**self.tools.environment, "USER": os.environ.get("USER", "root")},
        )

    def both(self) -> None:
        """SIF and tarball by the others' programs."""
        self.apptainer_build()
        self.ch_convert()


def built() -> Path:
    """The image's OCI layout in the output folder, built now if it is not there."""
    layout = PROJECT / "out" / IMAGE / "image.oci"
    if not (layout / "index.json").exists():
        command = [sys.executable, "-m", "builder", "--image", IMAGE, "--format", "oci"]
        subprocess.run([*command, "--no-verify"], cwd=PROJECT, check=True, stdout=QUIET)
    return layout


def prepare(bench: Bench) -> PlainLayout:
    """What the contenders start from: ours from plain layers, ch-convert from a folder."""
    plain = bench.repacked()
    bench.tarball(plain)
    unpacked = bench.folder / "unpacked"
    unpacked.mkdir()
    tarball = bench.folder / "image.tar.gz"
    subprocess.run(["tar", "-xzf", tarball, "-C", unpacked], check=True)
    return plain


def levels(layer: Path, folder: Path) -> None:
    """Time and size of each level of gzip in use, or that might be."""
    sample = layer.read_bytes()[:SAMPLE]
    target = folder / "sample.gz"

    def packing(level: int) -> Callable[[], None]:
        def pack() -> None:
            tars.LEVEL = level
            with tars.threads() as pool, target.open("wb") as sink:
                gzip = tars.Gzip(sink, pool)
                gzip.write(sample)
                gzip.close()

        return pack

    chosen = tars.LEVEL
    sizes: dict[int, int] = {}
    for level in (1, 4, 5, 6):
        packing(level)()
        sizes[level] = target.stat().st_size
    contenders: Mapping[str, Callable[[], object]] = {str(level): packing(level) for level in sizes}
    times = interleaved(contenders, repeats=3, measure=seconds)
    tars.LEVEL = chosen
    print(f"  gzip of {len(sample) / 1e6:.0f} MB of layers, by level (ours is {chosen}):")
    for level, size in sizes.items():
        median = statistics.median(times[str(level)])
        print(f"    {level}: {median:6.2f} s, {size / sizes[chosen] * 100:6.1f} % of ours")


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    tools = Tools(processes=Processes(), home=Home.of_environment())
    layout = built()
    with tempfile.TemporaryDirectory(dir=tools.home.work, prefix="bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        if tools.ordinary_user:
            shutil.chown(folder, tools.ordinary_user)
        shutil.copytree(layout, folder / "given.oci")
        bench = Bench(layout=oci.read_layout(folder / "given.oci"), folder=folder, tools=tools)
        plain = prepare(bench)
        layers = sorted(plain.layout.layers, key=lambda one: one.stat().st_size)
        sample = folder / "sample.tar"
        os.link(layers[-1], sample)
        races: tuple[dict[str, Callable[[], object]], ...] = (
            {"SIF": lambda: bench.sif(plain), "apptainer build": bench.apptainer_build},
            {"tarball": lambda: bench.tarball(plain), "ch-convert": bench.ch_convert},
            {"all three": bench.all_three, "apptainer build, ch-convert": bench.both},
        )
        for race in races:
            ours, against = race
            times = interleaved(race, repeats=repeats)
            report(times, ours=ours, against=against, reach="at most 1")
        levels(sample, folder)


if __name__ == "__main__":
    main()
