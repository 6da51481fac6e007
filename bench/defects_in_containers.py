"""Defects that are seen when an image is verified in its containers, and sound images.

The images are small, in three formats, for x86_64 and ppc64le; the place of a defect is random,
from a seed. They are verified as `build-images verify` does it. A defect counts as caught only
when the verification fails and names it. Needs `hpc-base` of both architectures in out/.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import random
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from campaign import Case
from command import build_images
from made_formats import Node
from small_images import PROJECT, Base, Check, Maker, Small, artifact_of, maker_in
from small_images import sound as sound_image

from builder.build.engines import Tools
from builder.model import FORMATS
from builder.model.manifest import FILES, MANIFEST
from builder.system.home import Home
from builder.system.process import Processes

ARCHITECTURES = ("x86_64", "ppc64le")
OTHER = {"x86_64": "ppc64le", "ppc64le": "x86_64"}
SCRIPTS = PROJECT / "tests/images"
DRIVER = "525.60.13"
NVIDIA = {
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    "NVIDIA_REQUIRE_CUDA": f"driver>={DRIVER}",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Planted:
    """An image with a defect. `named` is a pattern of what the verification has to say of it.

    `after` spoils the folder of the finished image.
    """

    image: Small
    named: str
    after: Callable[[Path], None] | None = None


Plant = Callable[[Small, random.Random, dict[str, Base]], Planted]


def file_of(image: Small, rng: random.Random, *, kind: bytes = tarfile.REGTYPE) -> str:
    """A random path of one kind, with content if it is a file."""
    paths = [
        path
        for path, thing in image.trees["oci"].items()
        if thing and thing.kind == kind and (thing.data or kind != tarfile.REGTYPE)
    ]
    return rng.choice(sorted(paths))


def in_one(image: Small, rng: random.Random, path: str, **changes: object) -> Small:
    """The image with a path changed in one format, at random."""
    name = rng.choice(FORMATS)
    thing = image.trees[name][path]
    assert thing is not None
    return image.with_in(name, {path: dataclasses.replace(thing, **changes)})  # type: ignore[arg-type]


def changed(image: Small, rng: random.Random, _bases: dict[str, Base]) -> Planted:
    path = file_of(image, rng)
    thing = image.trees["oci"][path]
    assert thing is not None
    data = bytearray(thing.data)
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    spoiled = in_one(image, rng, path, data=bytes(data))
    return Planted(image=spoiled, named=rf"/{re.escape(path)}: different content")


def of_the_base(image: Small, rng: random.Random, bases: dict[str, Base]) -> Planted:
    path = rng.choice(["etc/passwd", "usr/bin/cut", "usr/bin/wc"])
    thing = bases[image.arch].things[path]
    other = dataclasses.replace(thing, data=thing.data + b"\n")
    spoiled = image.with_in(rng.choice(FORMATS), {path: other})
    return Planted(image=spoiled, named=rf"/{path}: different content")


def missing(image: Small, rng: random.Random, _bases: dict[str, Base]) -> Planted:
    path, name = file_of(image, rng), rng.choice(FORMATS)
    tree = {one: thing for one, thing in image.trees[name].items() if one != path}
    spoiled = dataclasses.replace(image, trees={**image.trees, name: tree})
    return Planted(image=spoiled, named=rf"/{re.escape(path)}: only in the (first|second)")


def more(image: Small, rng: random.Random, _bases: dict[str, Base]) -> Planted:
    path = f"srv/more {rng.randrange(1000)}"
    spoiled = image.with_in(rng.choice(FORMATS), {path: Node(data=rng.randbytes(3))})
    return Planted(image=spoiled, named=rf"/{path}: only in the (first|second)")


def mode(image: Small, rng: random.Random, _bases: dict[str, Base]) -> Planted:
    path = file_of(image, rng)
    thing = image.trees["oci"][path]
    assert thing is not None
    other = thing.mode ^ rng.choice([0o100, 0o020, 0o002, 0o001])
    spoiled = in_one(image, rng, path, mode=other)
    return Planted(image=spoiled, named=rf"/{re.escape(path)}: mode \d+, not \d+")


def setuid(image: Small, rng: random.Random, _bases: dict[str, Base]) -> Planted:
    spoiled = in_one(image, rng, "srv/certain", mode=0o755)
    return Planted(image=spoiled, named=r"/srv/certain: mode (4755|0755), not (0755|4755)")


def owner(image: Small, rng: random.Random, _bases: dict[str, Base]) -> Planted:
    """Lost in a format that keeps owners; a SIF that an ordinary user packs does not."""
    name = rng.choice(["oci", "charliecloud"])
    thing = image.trees[name]["srv/certain"]
    assert thing is not None
    spoiled = image.with_in(name, {"srv/certain": dataclasses.replace(thing, gid=0)})
    return Planted(image=spoiled, named=r"/srv/certain: owner 0:[08], not 0:[80]")


def target(image: Small, rng: random.Random, _bases: dict[str, Base]) -> Planted:
    path = file_of(image, rng, kind=tarfile.SYMTYPE)
    spoiled = in_one(image, rng, path, target="elsewhere")
    return Planted(image=spoiled, named=rf"/{re.escape(path)}: links to .*, not ")


def kind_of_file(image: Small, rng: random.Random, _bases: dict[str, Base]) -> Planted:
    path = file_of(image, rng)
    spoiled = in_one(image, rng, path, kind=tarfile.DIRTYPE, data=b"")
    return Planted(image=spoiled, named=rf"/{re.escape(path)}: (file|directory), not ")


def variable(image: Small, rng: random.Random, _bases: dict[str, Base]) -> Planted:
    """One that is missing, changed or added in one format."""
    name = rng.choice(FORMATS)
    there = image.environments[name]
    key = rng.choice(sorted(there.keys() - {"PATH"}))
    other, named = rng.choice(
        [
            ({one: text for one, text in there.items() if one != key}, f"{key} is "),
            ({**there, key: "another"}, f"{key} is '"),
            ({**there, "MORE": "1"}, "MORE is "),
        ]
    )
    return Planted(image=image.with_variables(other, only=name), named=named)


def foreign(image: Small, rng: random.Random, bases: dict[str, Base]) -> Planted:
    """A program of the other architecture, in all formats."""
    path = f"{rng.choice(['srv', 'usr/local/bin', 'usr/bin'])}/borrowed"
    program = bases[OTHER[image.arch]].things["usr/bin/true"]
    spoiled = image.with_everywhere({path: program})
    return Planted(image=spoiled, named=rf"architecture\s+failed.*/{path}")


def with_cuda(image: Small) -> Small:
    """The image with the check of CUDA images, and what that asks for."""
    script = (SCRIPTS / "cuda-clean.sh").read_bytes()
    return (
        image.with_everywhere({"opt/build-images/src/cuda-clean.sh": Node(data=script)})
        .with_variables({**image.environments["oci"], **NVIDIA})
        .with_checks(
            Check(
                name="cuda-clean",
                text=f"sh /opt/build-images/src/cuda-clean.sh 12.4 {DRIVER} runtime",
            )
        )
    )


def stub(image: Small, rng: random.Random, _bases: dict[str, Base]) -> Planted:
    """A stub of libcuda first on the library path."""
    folder = rng.choice(["usr/local/cuda/lib64/stubs", "opt/cuda/targets/stubs"])
    image = with_cuda(image).with_everywhere({f"{folder}/libcuda.so.1": Node(data=b"a stub")})
    spoiled = image.with_variables({**image.environments["oci"], "LD_LIBRARY_PATH": f"/{folder}"})
    return Planted(image=spoiled, named=rf"cuda-clean\s+failed.*has stubs: /{folder}")


def stub_by_another_name(image: Small, rng: random.Random, _bases: dict[str, Base]) -> Planted:
    folder = rng.choice(["usr/lib", "usr/local/lib", "opt/driver"])
    path = f"{folder}/{rng.choice(['libcuda.so.1', 'libcuda.so', 'libnvidia-ml.so.1'])}"
    image = with_cuda(image).with_everywhere({path: Node(data=b"of the driver")})
    spoiled = image.with_variables({**image.environments["oci"], "LD_LIBRARY_PATH": f"/{folder}"})
    return Planted(image=spoiled, named=rf"cuda-clean\s+failed.*of the driver.*/{path}")


def nvidias_variable(image: Small, rng: random.Random, _bases: dict[str, Base]) -> Planted:
    image, name = with_cuda(image), rng.choice(sorted(NVIDIA))
    left = {key: text for key, text in image.environments["oci"].items() if key != name}
    return Planted(image=image.with_variables(left), named=rf"cuda-clean\s+failed.*{name}")


def library(image: Small, _rng: random.Random, bases: dict[str, Base]) -> Planted:
    """A program whose library stayed behind."""
    things = bases[image.arch].things
    gone = [path for path in things if "/libsmartcols.so." in path]
    spoiled = image.with_everywhere(
        {"usr/local/bin/processors": things["usr/bin/lscpu"], **dict.fromkeys(gone)}
    ).with_checks(
        Check(name="libraries", text="/opt/build-images/bin/libraries none generic"),
    )
    return Planted(image=spoiled, named=r"libraries\s+failed.* needs libsmartcols")


# Checks that do not pass, by what they print and how they end: what is said of each.
BROKEN = {
    "rank 0 of 1, 4 times": ("for n in 1 2 3 4; do echo rank 0 of 1; done; exit 1", "rank 0 of 1"),
    "a wrong result": ("echo allreduce: 15 instead of 16; exit 1", "15 instead of 16"),
    "a hang": ("echo rank 3 sends; exec sleep 300", "no result after 6 s; .*rank 3 .*sleep 300"),
    "an orphan that hangs": (
        "(setsid sh -c 'trap \"\" TERM; sleep 301; echo never' &); sleep 300",
        "no result after 6 s; (?=.*sleep 300).*sleep 301",
    ),
    "silence": ("exit 0", "printed no finding"),
    "rubbish": ("head -c 5000 /usr/bin/true", "is not text"),
    "a crash": ("echo so far so good; kill -SEGV $$", "ended by SIGSEGV"),
    "a lot of output": (
        "head -c 100000000 /dev/zero; echo; echo a residual is too large; exit 1",
        "a residual is too large",
    ),
    "a lost GPU": (
        "echo 'cudaErrorDevicesUnavailable (46): GPU 2 is gone'; exit 1",
        r"cudaErrorDevicesUnavailable \(46\): GPU 2 is gone",
    ),
    "no such program": ("exec /usr/bin/no-such-program", "no-such-program"),
}


def with_broken(image: Small, names: Sequence[str]) -> Small:
    """An image with checks that do not pass."""
    checks = (
        Check(name=name.replace(" ", "-"), text=BROKEN[name][0], timeout_s=6) for name in names
    )
    return image.with_checks(*checks)


def said_of(name: str) -> str:
    """A pattern of what has to be said of a check that does not pass."""
    return rf"{name.replace(' ', '-')}\s+failed.*{BROKEN[name][1]}"


def broken(image: Small, rng: random.Random, _bases: dict[str, Base]) -> Planted:
    name = rng.choice(sorted(BROKEN))
    return Planted(image=with_broken(image, [name]), named=said_of(name))


def not_executable(image: Small, _rng: random.Random, _bases: dict[str, Base]) -> Planted:
    spoiled = image.with_checks(Check(name="broken", text="echo all is well", mode=0o644))
    return Planted(image=spoiled, named=r"broken\s+failed.*(?i:permission denied)")


def damaged(image: Small, rng: random.Random, _bases: dict[str, Base]) -> Planted:
    """An artifact that breaks off, or has other bytes; the manifest's digest is the forger's."""
    name = rng.choice(FORMATS)
    part = rng.uniform(0.3, 0.9)

    def spoil(folder: Path) -> None:
        path = folder / FILES[name]
        if name == "oci":
            path = max((path / "blobs/sha256").iterdir(), key=lambda one: one.stat().st_size)
        data = bytearray(path.read_bytes())
        path.unlink()
        path.write_bytes(data[: int(len(data) * part)])
        manifest = json.loads((folder / MANIFEST).read_text())
        manifest["artifacts"][name] = artifact_of(folder, name)
        (folder / MANIFEST).write_text(json.dumps(manifest))

    return Planted(image=image, named=rf"formats-equal\s+failed\s+{name}: ", after=spoil)


def another_file(image: Small, rng: random.Random, _bases: dict[str, Base]) -> Planted:
    """An artifact that is not the one that the manifest names."""
    name = rng.choice(["sif", "charliecloud"])

    def spoil(folder: Path) -> None:
        with (folder / FILES[name]).open("ab") as file:
            file.write(b"more")

    return Planted(image=image, named=f"{FILES[name]}: its digest is", after=spoil)


PLANTS: tuple[Plant, ...] = (
    *(changed, of_the_base, missing, more, mode, setuid, owner, target, kind_of_file, variable),
    *(foreign, stub, stub_by_another_name, nvidias_variable, library),
    *(broken, not_executable, damaged, another_file),
)


def verified(folder: Path) -> tuple[int, str]:
    """The exit code and the output of `build-images verify`."""
    return build_images("verify", "--quiet", folder)


def judged(planted: Planted | None, status: int, said: str) -> str:
    """What is wrong with a verdict; empty if it is right."""
    if planted is None:
        return "" if status == 0 else f"accused, exit code {status}"
    if status == 0:
        return "not caught"
    return "" if re.search(planted.named, said) else f"caught, but it did not say: {planted.named}"


def one(maker: Maker, number: int, seed: int, plant: Plant | None) -> tuple[str, str]:
    """Make and verify one image, sound without a `plant`.

    Returns the kind of its defect, and what is wrong with the verdict.
    """
    rng = random.Random(f"{seed} {number} {plant and plant.__name__}")
    image = sound_image(ARCHITECTURES[number % len(ARCHITECTURES)], number, rng)
    planted = plant(image, rng, maker.bases) if plant else None
    folder = maker.make(planted.image if planted else image)
    if planted and planted.after:
        planted.after(folder)
    status, said = verified(folder)
    wrong = judged(planted, status, said)
    if wrong:
        print(f"image {number}, {plant.__name__ if plant else 'sound'}: {wrong}\n{said}")
    shutil.rmtree(folder)
    return plant.__name__ if plant else "sound", wrong


def cases(maker: Maker, seed: int = 1) -> list[Case]:
    """Each kind of defect for x86_64, some for ppc64le, and each check that does not pass."""
    plants = [plant for plant in PLANTS if plant is not broken]
    numbered = [(2 * number, plant) for number, plant in enumerate(plants)]
    numbered += [(2 * number + 1, plant) for number, plant in enumerate(plants) if number % 3 == 0]
    planted = [
        Case(
            family="containers",
            name=f"{plant.__name__}: {ARCHITECTURES[number % 2]}",
            faults=lambda _, number=number, plant=plant: (  # type: ignore[misc]
                [wrong] if (wrong := one(maker, number, seed, plant)[1]) else ["caught and named"]
            ),
            named="^caught and named$",
        )
        for number, plant in numbered
    ]
    verdict = functools.cache(lambda: _of_all_broken(maker, seed))
    checks = [
        Case(
            family="checks",
            name=name,
            faults=lambda _: verdict(),
            named=said_of(name),
        )
        for name in sorted(BROKEN)
    ]
    return [*planted, *checks]


def _of_all_broken(maker: Maker, seed: int) -> list[str]:
    image = sound_image("x86_64", 0, random.Random(f"{seed} broken"))
    status, said = verified(maker.make(with_broken(image, sorted(BROKEN))))
    return [said] if status else []


def sound_cases(maker: Maker, seed: int = 1, count: int = 12) -> list[Case]:
    """Sound images, by turns for one architecture and the other."""
    return [
        Case(
            family="containers",
            name=f"image {number}",
            faults=lambda _, number=number: [  # type: ignore[misc]
                wrong for wrong in (one(maker, number, seed, None)[1],) if wrong
            ],
        )
        for number in range(count)
    ]


@contextlib.contextmanager
def maker_here() -> Iterator[Maker]:
    """A maker whose images are cut out of what is in out/."""
    tools = Tools(processes=Processes(), home=Home.of_environment())
    tools.home.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tools.home.work, prefix="defects-") as name:
        yield maker_in(Path(name), {arch: image_of(arch) for arch in ARCHITECTURES}, tools)


def image_of(arch: str) -> Path:
    """The folder of the image that small ones are cut out of."""
    found = sorted((PROJECT / "out").glob(f"**/hpc-base-*-{arch}/{MANIFEST}"))
    if not found:
        sys.exit(f"no hpc-base for {arch} in out/: run build-images first")
    return found[0].parent
