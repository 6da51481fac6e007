"""Six small cells on one worker of a Dask scheduler, against the same in threads of one machine.

    python bench/on_workers.py [--rounds 3] [--cells 6] [--sleep 0]

Contenders take turns: `--jobs 1` without a store, and `--on` with one worker and a store in a
folder. Each run has empty homes, which have this machine's tools and a small base, and an empty
store. Images are built, packed in three formats and verified. `--sleep` makes each cell's build so
many seconds longer. An order costs the same for every cell, so the last line says how long a cell
has to take for a ratio of 1.05.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from command import build_quietly
from projects import copy_of_project
from small_base import add_small_base, store_small_base, write_tiny
from timing import environment, interleaved, machine, print_medians, print_ratio
from worker_machines import Machines, machines_at_work

from builder.system.files import remove_tree
from builder.system.home import Home

REACH = 1.05
THREADS, WORKER = "in threads, --jobs 1", "on one worker"


def new_home(project: Path, home: Path) -> None:
    """Make a home that has the tools and the base alone."""
    remove_tree(home)
    home.mkdir()
    (home / "tools").symlink_to(Home.of_environment().path / "tools")
    store_small_base(project, home)


def contenders(folder: Path, project: Path, machines: Machines) -> dict[str, Callable[[], object]]:
    """Both ways to make all images of a project."""
    [worker_home], own, store = machines.homes, folder / "home", folder / "store"

    def build(*words: str, store: str = "") -> None:
        out = folder / "out"
        remove_tree(out)
        arguments = [f"--project={project}", "--all", f"--output={out}", "--no-lint", "--quiet"]
        env = {**environment(own), "BUILD_IMAGES_STORE": store}
        build_quietly(*arguments, *words, env=env)

    def in_threads() -> None:
        build("--jobs=1")

    def on_worker() -> None:
        build(f"--on={machines.address}", store=str(store))

    def prepared(work: Callable[[], None]) -> Callable[[], object]:
        def run() -> object:
            work()
            for home in (own, worker_home):  # for the next run
                new_home(project, home)
            remove_tree(store)
            store.mkdir()
            return None

        return run

    return {THREADS: prepared(in_threads), WORKER: prepared(on_worker)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cells", type=int, default=6)
    parser.add_argument("--sleep", type=int, default=0, metavar="SECONDS")
    options = parser.parse_args()
    print(machine())
    # The ordinary user works in a home.
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="build-images-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        project = copy_of_project(folder / "project")
        add_small_base(project)
        for number in range(options.cells):
            step = f'"sleep {options.sleep}; echo {number} > /opt/number"'
            write_tiny(project, step, name=f"cell{number}")
        for home in (folder / "home", folder / "worker"):
            home.mkdir()
            new_home(project, home)
        (folder / "store").mkdir()
        place = folder / "cluster"
        with machines_at_work(place, [folder / "worker"], workers=1, ttl_s=60) as machines:
            times = interleaved(contenders(folder, project, machines), repeats=options.rounds)
    print_medians(times)
    print_ratio(times, WORKER, THREADS, f"at most {REACH}")
    threads, worker = (statistics.median(times[name]) for name in (THREADS, WORKER))
    more = (worker - threads) / options.cells
    print(f"  a cell costs {more:.1f} s more; one of {more / (REACH - 1):.0f} s has {REACH}")


if __name__ == "__main__":
    main()
