"""SIGKILL at every step of `pull` and `publish`, and the same command again, to its end.

    python bench/kills.py [--every 1] [--only pull|publish]

A step is a request or a change of the file system (`killed_at.py`). After each kill, what is at the
output, or under a tag, is whole or not there; the same command again ends well, and what is there
then is what a command makes that nothing happened to. `--every 5` kills at every fifth step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from made_releases import make_images, make_project
from published import RECIPES, TAG, own_tags, repository, unproven
from pull_faults import is_whole
from real_registry import real_registry
from registry_site import Published, Site
from timing import machine

PROJECT = Path(__file__).resolve().parents[1]
FORMATS = ("oci", "sif", "charliecloud", "directory")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a command ended: `steps` is how many it took, if it was not killed."""

    status: int
    steps: int
    said: str


class Commands:
    """Runs `build-images`, and kills it at a step."""

    def __init__(self, server: subprocess.Popen[str], folder: Path) -> None:
        self._server, self._said = server, folder / "said"

    def run(self, *argv: str | Path, at: int = 0) -> Ended:
        """Run one to its end, or until SIGKILL comes before a step; 0 is none."""
        asked = {"argv": list(map(str, argv)), "at": at, "said": str(self._said)}
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps(asked), file=self._server.stdin, flush=True)
        found = json.loads(self._server.stdout.readline())
        return Ended(**found, said=self._said.read_text())


@contextlib.contextmanager
def commands(folder: Path) -> Iterator[Commands]:
    """Commands whose home is below a folder."""
    words = [sys.executable, str(PROJECT / "bench/killed_at.py")]
    env = {**os.environ, "BUILD_IMAGES_HOME": str(folder / "home"), "PYTHONPATH": str(PROJECT)}
    with subprocess.Popen(
        words, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        yield Commands(server, folder)
        assert server.stdin is not None
        server.stdin.close()


def kill_pulls(
    run: Commands, site: Site, published: Published, form: str, every: int = 1
) -> tuple[int, list[str]]:
    """Pull and kill, at each step or some of them: how many kills, and what was wrong after."""
    out = site.place / "out"
    argv = ["pull", f"{site.registry}/site/tool:1.0", "--format", form, "--output", str(out)]
    argv += ["--policy", str(site.policy()), "--host", str(site.record())]

    def fresh() -> None:
        for place in (out, site.place / "home"):
            shutil.rmtree(place, ignore_errors=True)

    fresh()
    whole = run.run(*argv)
    assert whole.status == 0, whole.said
    steps, kills, wrong = whole.steps, 0, []
    for at in range(1, steps + 1, every):
        fresh()
        killed = run.run(*argv, at=at)
        kills += killed.status == -signal.SIGKILL
        before = killed.status if not out.exists() or is_whole(out, published, form) else "half"
        again = run.run(*argv)
        left = sorted(one.name for one in site.place.iterdir() if "out" in one.name)
        partial = [one.name for one in (site.place / "home").rglob("*.partial")]
        after = is_whole(out, published, form)
        fine = before in {0, -signal.SIGKILL} and again.status == 0 and after
        if not fine or left != ["out"] or partial:
            wrong.append(f"{form}, step {at} of {steps}: {before}, {left}, {partial}, {again}")
    return kills, wrong


def kill_publishes(
    run: Commands, project: Path, host: str, every: int = 1
) -> tuple[int, list[str]]:
    """The same for `publish`, each time into an empty namespace."""

    def words(namespace: str) -> list[str]:
        return ["publish", "-q", "--project", str(project), "--to", f"{host}/{namespace}"]

    whole = run.run(*words("counted"))
    assert whole.status == 0, whole.said
    steps, kills, wrong = whole.steps, 0, []
    for at in range(1, steps + 1, every):
        name = f"at-{at}"
        killed = run.run(*words(name), at=at)
        kills += killed.status == -signal.SIGKILL
        found = unproven(host, name)
        again = run.run(*words(name))
        found += unproven(host, name)
        tags = [own_tags(repository(host, one, name)) for one in RECIPES]
        if again.status or tags != [{TAG, "latest"}] * len(RECIPES):
            found.append(f"{again}: {tags}")
        wrong += [f"step {at} of {steps}: {one}" for one in found]
    return kills, wrong


def main() -> int:
    """Kill, and count; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--only", choices=("pull", "publish"))
    given = parser.parse_args()
    print(machine())
    wrong = []
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        folder = Path(name)
        with real_registry(folder / "registry") as registry:
            site = Site(registry=registry.host, place=folder / "site", known={})
            site.place.mkdir()
            with commands(site.place) as run:
                for form in FORMATS if given.only != "publish" else ():
                    kills, found = kill_pulls(run, site, site.publish(), form, given.every)
                    print(f"pull --format {form}: {kills} kills, {len(found)} wrong", flush=True)
                    wrong += found
                if given.only != "pull":
                    project = make_project(folder / "project", recipes=RECIPES)
                    make_images(project)
                    kills, found = kill_publishes(run, project, registry.host, given.every)
                    print(f"publish: {kills} kills, {len(found)} wrong", flush=True)
                    wrong += found
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
