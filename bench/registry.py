"""Publishing five images with shared layers: bytes and time, against `skopeo copy`.

    python bench/registry.py [--rounds 5] [--megabytes 10]

Both fill an empty docker-registry on loopback, in turns; the medians are told. What is published
has its evidence and bill of materials with it, signed, an index and two tags, and files are
compared with their digests; skopeo copies the images alone. Bytes are what arrives at the registry,
counted once.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from command import build_quietly
from faulty_proxy import proxy_before
from made_releases import make_images, make_project
from published import SIGNING, made_key
from real_registry import real_registry
from timing import environment, machine

RECIPES = ("base", "one", "two", "three", "four")


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=10, help="of a layer; images have 2 to 4")
    given = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="bench-registry-") as name:
        work = Path(name)
        project = make_project(work / "project", recipes=RECIPES, architectures=["x86_64"])
        make_images(project, size=given.megabytes * 1_000_000, formats=["oci"])
        key = made_key(work).private
        ways: dict[str, Callable[[str, Path], None]] = {
            "build-images publish": lambda host, home: publish(project, key, host, home),
            "skopeo copy": lambda host, _: copy(project, host),
        }
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        again: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(given.rounds):
            for way, run in ways.items():
                home = work / f"home-{number}"
                with real_registry(work / f"{way.split()[0]}-{number}") as registry:
                    for taken in (seconds[way], again[way]):
                        start = time.monotonic()
                        run(registry.host, home)
                        taken.append(time.monotonic() - start)
        for way, run in ways.items():
            sent = arrived(work, run)
            first, second = statistics.median(seconds[way]), statistics.median(again[way])
            print(f"{way:22} {first:6.2f} s, {sent / 1e6:7.1f} MB; once more {second:6.2f} s")
    ratio = statistics.median(seconds["build-images publish"]) / statistics.median(
        seconds["skopeo copy"]
    )
    print(f"publish takes {ratio:.2f} times as long, medians of {given.rounds} rounds")
    return 0


def arrived(work: Path, run: Callable[[str, Path], None]) -> int:
    """The bytes of bodies that arrive at an empty registry."""
    with real_registry(work / f"counted-{time.monotonic_ns()}") as registry:
        with proxy_before(registry.host) as proxy:
            run(proxy.host, work / "home-counted")
        return proxy.received


def publish(project: Path, key: Path, host: str, home: Path) -> None:
    """All of the project's images, as a user publishes them."""
    words = ("-q", "--project", project, "--to", f"{host}/site", "--key", key)
    build_quietly("publish", *words, env={**environment(home), **SIGNING})


def copy(project: Path, host: str) -> None:
    """The same images by skopeo, one after the other."""
    for recipe in RECIPES:
        [image] = (project / "out").glob(f"{recipe}-*")
        target = f"docker://{host}/copied/{recipe}:1.0"
        subprocess.run(
            ["skopeo", "copy", "-q", "--dest-tls-verify=false", f"oci:{image}/image.oci", target],
            check=True,
        )


if __name__ == "__main__":
    sys.exit(main())
