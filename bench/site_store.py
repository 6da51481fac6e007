"""The default images on a machine with nothing in its home: built, and taken from a site's store.

    python bench/site_store.py [--rounds 2] [--arguments "--max-index-age 90"] [--folder]

Contenders take turns, each with an empty home that has this machine's tools only: a build without
a store; a build that fills an empty store in a registry on loopback; the same command on a second
machine, which takes the images; with `--folder` also a store in a folder.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from command import build_quietly
from real_registry import RealRegistry, real_registry
from timing import environment, interleaved, machine, print_medians, print_ratio

from builder.system.home import Home

IMAGES = [
    f"--image=hpc-base-1.0-debian13-openmpi5.0-{architecture}"
    for architecture in ("x86_64", "ppc64le")
]


class Site:
    """Machines that share a registry and a folder."""

    def __init__(self, folder: Path, registry: RealRegistry, arguments: list[str]) -> None:
        self._folder, self._arguments, self._number = folder, arguments, 0
        self._stores = {"registry": f"{registry.host}/site/cache-", "folder": f"{folder}/store-"}

    def run(self, store: str = "", *, number: int = 0) -> None:
        """Run the main job on a new machine; `number` counts the stores of a kind."""
        name = f"{self._stores[store]}{number}" if store else ""
        if store == "folder":
            Path(name).mkdir(exist_ok=True)
        self._number += 1
        home = self._folder / f"home-{self._number}"
        home.mkdir()
        (home / "tools").symlink_to(Home.of_environment().path / "tools")
        out = self._folder / f"out-{self._number}"
        words = [*IMAGES, f"--output={out}", "--no-lint", "--quiet", *self._arguments]
        build_quietly(*words, env={**environment(home), "BUILD_IMAGES_STORE": name})
        for path in (home, out):
            shutil.rmtree(path)


def contenders(site: Site, *, folder: bool) -> dict[str, Callable[[], object]]:
    rounds = {"registry": 0, "folder": 0}

    def fill(store: str) -> None:
        rounds[store] += 1
        site.run(store, number=rounds[store])

    def take(store: str) -> None:
        site.run(store, number=rounds[store])

    of_registry: dict[str, Callable[[], object]] = {
        "built, without a store": site.run,
        "built, filling a registry": partial(fill, "registry"),
        "taken from the registry": partial(take, "registry"),
    }
    if not folder:
        return of_registry
    return of_registry | {
        "built, filling a folder": partial(fill, "folder"),
        "taken from the folder": partial(take, "folder"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--arguments", default="", metavar="WORDS")
    parser.add_argument("--folder", action="store_true")
    options = parser.parse_args()
    print(machine())
    # The ordinary user works in a home.
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="build-images-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with real_registry(folder / "registry") as registry:
            site = Site(folder, registry, options.arguments.split())
            times = interleaved(contenders(site, folder=options.folder), repeats=options.rounds)
    print_medians(times)
    print_ratio(times, "taken from the registry", "built, without a store", "at most 0.1")
    print_ratio(times, "taken from the folder", "built, without a store", "at most 0.1")
    print_ratio(times, "built, filling a registry", "built, without a store", "no figure")


if __name__ == "__main__":
    main()
