"""Pulling five images with shared layers, against `skopeo copy`, `ch-image` and `apptainer pull`.

    python bench/pulls.py [--rounds 5] [--megabytes 40] [--only oci|directory|sif] [--link MBIT]

The images have 2 to 4 layers of files of this machine's own /usr; the lowest two are shared. Each
is signed and proven, and a pull applies the whole policy to it, reads every byte, and computes the
tree digest. Each contender starts with nothing of it on this machine, and they take turns; the
medians are told. Bytes are those of the registry's answers. `skopeo copy` writes the same five
OCI layouts, which checks the digests of blobs; with `--dest-shared-blob-dir` it fetches what they
share once. Layouts and folders come from a registry with TLS and a password, SIFs without either.
`busy` is the processor time of the programs themselves, which says more on a machine that others
use. Loopback has no end of megabytes a second; `--link 1000` makes it a line of 1 Gbit/s, in a
network of the bench's own (Linux, root).
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from command import build_quietly
from faulty_proxy import proxy_before
from real_registry import PASSWORD, USER, RealRegistry, real_registry
from registry_site import HERE, Content, Site, file, layer_of
from timing import environment, machine, processor_seconds

from builder.build.engines import Tools, apptainer
from builder.system.home import Home
from builder.system.process import Processes

LAYERS = ((0, 1), (0, 1, 2), (0, 1, 3, 4), (0, 1, 5), (0, 1, 6, 7))
ALONE = {len(LAYERS) - 1: (0, 1, 2, 3)}  # the last image, where no other one is pulled
NAME = "site/tool"
QUIET = subprocess.DEVNULL


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """Five published images, and a folder that the ordinary user can write to."""

    site: Site
    registry: RealRegistry
    secured: RealRegistry
    folder: Path
    tools: Tools

    def ours(self, host: str, form: str, *tags: str, env: Mapping[str, str] | None = None) -> None:
        """One command for all tags, into folders of their own."""
        words = ["pull", "-q", *(f"{host}/{NAME}:{tag}" for tag in tags), "--format", form]
        words += ["--policy", str(self.site.policy()), "--host", str(self.site.record())]
        home = {**environment(self.folder / "home"), **(env or {})}
        build_quietly(*words, "--output", self._out(len(tags)), env=home)

    def _out(self, number: int) -> Path:
        out = self.folder / "out"
        return out if number > 1 else out / f"one-{time.monotonic_ns()}"

    def secure(self, form: str, *tags: str) -> None:
        """The same from the registry with TLS and a password."""
        self.ours(self.secured.host, form, *tags, env=self.secured.environment)

    def one_by_one(self) -> None:
        """A command for each image."""
        for tag in tags():
            self.secure("oci", tag)

    def skopeo(self, *more: str) -> None:
        """The same layouts by skopeo."""
        login = ["--src-authfile", str(self.folder / "auth.json")]
        self._skopeo(
            self.secured.host, "--src-cert-dir", str(self.folder / "trusted"), *login, *more
        )

    def plain_skopeo(self, host: str, *more: str) -> None:
        """The same without TLS: a proxy counts what is answered."""
        self._skopeo(host, "--src-tls-verify=false", *more)

    def _skopeo(self, host: str, *more: str) -> None:
        for tag in tags():
            source = f"docker://{host}/{NAME}:{tag}"
            target = f"oci:{self.folder}/out/{tag}:{tag}"
            subprocess.run(["skopeo", "copy", "-q", *more, source, target], check=True)

    def charliecloud(self) -> None:
        """`ch-image pull`, and `ch-convert` of what it has to a folder."""
        env = {
            **os.environ,
            "PATH": "/usr/bin:/bin",  # it needs the system's own python3
            "USER": os.environ.get("USER", "root"),
            "CH_IMAGE_STORAGE": str(self.folder / "out/storage"),
            "CH_IMAGE_USERNAME": USER,
            "CH_IMAGE_PASSWORD": PASSWORD,
            "REQUESTS_CA_BUNDLE": str(self.secured.authority),
        }
        name = f"{self.secured.host}/{NAME}:{tags()[-1]}"
        pull = ["ch-image", "pull", "--auth", "--no-cache", name]
        convert = ["ch-convert", "-i", "ch-image", "-o", "dir", name, f"{self.folder}/out/dir"]
        for words in (pull, convert):
            done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{words[0]}: {done.stderr}")

    def trust(self) -> None:
        """What skopeo is shown of the secured registry: its authority, and the password."""
        assert self.secured.authority is not None
        (self.folder / "trusted").mkdir()
        shutil.copy(self.secured.authority, self.folder / "trusted/ca.crt")
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        auths = {"auths": {self.secured.host: {"auth": login}}}
        (self.folder / "auth.json").write_text(json.dumps(auths))

    def apptainer_pull(self, source: str) -> None:
        """`apptainer pull` as the ordinary user, its cache switched off."""
        out = self.folder / "out"
        self.tools.processes.logged(
            [
                *(self.tools.program("apptainer"), "pull", "--no-https", "--disable-cache"),
                *(out / "theirs.sif", source),
            ],
            log=self.folder / "log",
            env={**self.tools.environment, **apptainer.environment(out)},
            user=self.tools.ordinary_user,
            cwd=out,
        )

    def fresh(self, *, known: bool = False) -> None:
        """Nothing of it on this machine; `known` keeps what a pull keeps in its home."""
        for name in ["out", *([] if known else ["home"])]:
            shutil.rmtree(self.folder / name, ignore_errors=True)
        (self.folder / "out").mkdir(mode=0o777)
        (self.folder / "out").chmod(0o777)


def tags() -> list[str]:
    return [f"image-{number}" for number in range(len(LAYERS))]


def files_of_usr() -> Iterator[Path]:
    """What layers are filled with: programs, libraries and texts, none larger than 8 MB."""
    for top in ("lib", "share", "bin"):
        for folder, _, names in os.walk(f"/usr/{top}"):
            for name in sorted(names):
                one = Path(folder, name)
                if one.is_file() and not one.is_symlink() and one.stat().st_size < 8 << 20:
                    yield one


def layers(number: int, megabytes: int) -> list[bytes]:
    """Layers of so many plain megabytes each, gzipped as most tools do."""
    found: list[bytes] = []
    source = files_of_usr()
    for _ in range(number):
        members, size = [], 0
        while size < megabytes * 1_000_000 and (one := next(source, None)):
            data = one.read_bytes()
            members.append(file(f"srv/{len(found)}{one}", data, mode=one.stat().st_mode & 0o777))
            size += len(data)
        found.append(layer_of(members, level=6))
    return found


def made(
    site: Site, folder: Path, megabytes: int, tools: Tools, images: Mapping[int, Sequence[int]]
) -> None:
    """Publish images, each with its layers; the last one with a SIF that Apptainer made of it."""
    blobs = layers(1 + max(max(some) for some in images.values()), megabytes)
    for number, some in images.items():
        content = Content(layers=tuple(blobs[one] for one in some))
        if number == len(LAYERS) - 1 and tools.has("apptainer"):
            site.publish(content, name=NAME, tag="without", proof=False)
            content = Content(layers=content.layers, sif=sif_of(site, folder, tools))
        site.publish(content, name=NAME, tag=f"image-{number}")
    sizes = sum(map(len, blobs)) / 1e6
    print(f"{len(images)} images, {len(blobs)} layers, {sizes:.0f} MB packed, each one once")


def sif_of(site: Site, folder: Path, tools: Tools) -> bytes:
    """The SIF of what is under the tag `without`."""
    work = folder / "sif"
    work.mkdir(mode=0o777)
    work.chmod(0o777)
    layout, target = work / "layout", work / "made.sif"
    source = f"docker://{site.registry}/{NAME}:without"
    words = ["skopeo", "copy", "-q", "--src-tls-verify=false", source, f"oci:{layout}:latest"]
    subprocess.run(words, check=True)
    apptainer.pack(layout, target, [], arch=HERE, tools=tools, log=work / "log")
    return target.read_bytes()


Contender = tuple[str, Callable[[], None], bool]  # its name, what it does, what it has already


def measured(bench: Bench, contenders: list[Contender], rounds: int) -> dict[str, float]:
    """The median of each, in seconds; its processor time is told beside it."""
    taken: dict[str, list[float]] = {name: [] for name, _, _ in contenders}
    busy: dict[str, list[float]] = {name: [] for name, _, _ in contenders}
    for _ in range(rounds):
        for name, work, known in contenders:
            bench.fresh(known=known)
            os.sync()
            start = time.monotonic()
            busy[name].append(processor_seconds(work))
            taken[name].append(time.monotonic() - start)
    for name, some in taken.items():
        spread = f"{min(some):.2f} to {max(some):.2f}"
        processor = statistics.median(busy[name])
        print(f"  {name:52} {statistics.median(some):7.2f} s ({spread}), {processor:6.2f} s busy")
    sys.stdout.flush()
    return {name: statistics.median(some) for name, some in taken.items()}


def answered(bench: Bench, work: Callable[[str], None]) -> float:
    """The megabytes that a registry answers with, to somebody who has nothing."""
    bench.fresh()
    with proxy_before(bench.registry.host) as proxy:
        work(proxy.host)
    return proxy.answered / 1e6


def layouts(bench: Bench, rounds: int) -> None:
    """Five OCI layouts."""
    shared = f"--dest-shared-blob-dir={bench.folder}/out/blobs"
    ours, theirs = "build-images pull, five at once", "skopeo copy, five times"
    contenders: list[Contender] = [
        (ours, lambda: bench.secure("oci", *tags()), False),
        (f"{ours}, its layers known", lambda: bench.secure("oci", *tags()), True),
        (theirs, bench.skopeo, False),
        (f"{theirs}, sharing blobs", lambda: bench.skopeo(shared), False),
        ("build-images pull, five times", bench.one_by_one, False),
    ]
    found = measured(bench, contenders, rounds)
    print(f"  ratio: {found[ours] / found[theirs]:.2f}; sharing: ", end="")
    print(f"{found[ours] / found[f'{theirs}, sharing blobs']:.2f}; layers known: ", end="")
    print(f"{found[f'{ours}, its layers known'] / found[theirs]:.2f}   (reach: 1.3)")
    for name, work in {
        ours: lambda host: bench.ours(host, "oci", *tags()),
        theirs: bench.plain_skopeo,
        f"{theirs}, sharing blobs": lambda host: bench.plain_skopeo(host, shared),
    }.items():
        print(f"  {name:52} {answered(bench, work):7.1f} MB of answers")


def directories(bench: Bench, rounds: int) -> None:
    """The last image as a folder for Charliecloud."""
    ours, theirs = "build-images pull --format directory", "ch-image pull, ch-convert"
    contenders: list[Contender] = [
        (ours, lambda: bench.secure("directory", tags()[-1]), False),
        (theirs, bench.charliecloud, False),
    ]
    found = measured(bench, contenders, rounds)
    print(f"  ratio: {found[ours] / found[theirs]:.2f}   (reach: below 1)")


def sifs(bench: Bench, rounds: int) -> None:
    """The SIF of the last image: as it was published, and made anew by Apptainer."""
    host, tag = bench.registry.host, tags()[-1]
    registry = bench.site.repository(NAME)
    image = registry.document(tag)[1]["manifests"][0]["digest"]
    [sif] = [one for one in registry.referrers(image) if "sif" in one.artifact_type]
    ours, theirs = "build-images pull --format sif", "apptainer pull oras://"
    made_anew = "apptainer pull docker://"
    [layer] = registry.document(sif.digest)[1]["layers"]
    print(f"  a SIF of {layer['size'] / 1e6:.0f} MB")
    contenders: list[Contender] = [
        (ours, lambda: bench.ours(host, "sif", tag), False),
        (theirs, lambda: bench.apptainer_pull(f"oras://{host}/{NAME}@{sif.digest}"), False),
    ]
    found = measured(bench, contenders, rounds)
    making = (made_anew, lambda: bench.apptainer_pull(f"docker://{host}/{NAME}:{tag}"), False)
    found |= measured(bench, [making], 1)  # it takes minutes of what the others take seconds of
    print(f"  ratio: {found[ours] / found[theirs]:.2f}; {made_anew}: ", end="")
    print(f"{found[ours] / found[made_anew]:.2f}   (reach: 1)")


def on_a_link(megabits: int, given: argparse.Namespace) -> int:
    """The same bench in a network namespace of its own, whose loopback has that rate."""
    words = [f"--rounds={given.rounds}", f"--megabytes={given.megabytes}"]
    words += [f"--only={one}" for one in given.only or ()]
    shape = f"rate {megabits}mbit burst 256kb latency 100ms"
    script = f'ip link set lo up && tc qdisc add dev lo root tbf {shape} && exec "$@"'
    print(f"a link of {megabits} Mbit/s")
    sys.stdout.flush()
    there = ["unshare", "--net", "sh", "-ec", script, "sh", sys.executable, __file__, *words]
    return subprocess.run(there, check=False).returncode


def main() -> int:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=40, help="plain ones of a layer")
    measures = {"oci": layouts, "directory": directories, "sif": sifs}
    parser.add_argument("--only", choices=measures, action="append")
    parser.add_argument("--link", type=int, metavar="MBIT", help="megabits a second of loopback")
    given = parser.parse_args()
    if given.link:
        return on_a_link(given.link, given)
    print(machine())
    tools = Tools(processes=Processes(), home=Home.of_environment())
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="bench-pulling-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "secured").mkdir()
        (folder / "secured/store").symlink_to(folder / "plain/store")
        with (
            real_registry(folder / "plain") as plain,
            real_registry(folder / "secured", secured=True) as secured,
        ):
            site = Site(registry=plain.host, place=folder / "site", known={})
            site.place.mkdir()
            images = ALONE if given.only == ["sif"] else dict(enumerate(LAYERS))
            made(site, folder, given.megabytes, tools, images)
            bench = Bench(site=site, registry=plain, secured=secured, folder=folder, tools=tools)
            bench.trust()
            for form in given.only or measures:
                print(f"{form}, medians of {given.rounds}:", flush=True)
                measures[form](bench, given.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
