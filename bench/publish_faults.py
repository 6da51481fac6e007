"""Faults at random into `publish`: whatever happens, no tag is set before its proof.

    python bench/publish_faults.py [--number 200] [--seed 1]

Each time an empty docker-registry on loopback is filled through a proxy that spoils one request,
some, or all from one on. Then everything under a tag has to be there and proven, the command has to
have said what happened without a traceback, and the same command without a fault has to end well.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from faulty_proxy import Decide, Fault, proxy_before
from made_releases import make_images, make_project
from published import RECIPES, TAG, own_tags, repository, unproven
from real_registry import real_registry

from builder import cli
from builder.registry import patience

_STATUSES = (400, 401, 403, 404, 408, 413, 429, 500, 502, 503)


def main() -> int:
    """Inject faults, and count what came of it; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    rng, ends, wrong = random.Random(given.seed), collections.Counter[int](), list[str]()
    with _without_waiting(), tempfile.TemporaryDirectory(prefix="publish-faults-") as name:
        work = Path(name)
        os.environ["BUILD_IMAGES_HOME"] = str(work / "home")
        project = make_project(work / "project", recipes=RECIPES)
        make_images(project)
        number = _requests(project, work)
        for round_ in range(given.number):
            what, decide = _fault(rng, number)
            with real_registry(work / "registry") as registry:
                with proxy_before(registry.host, decide) as proxy:
                    status, said = _publish(project, proxy.host)
                ends[status] += 1
                found = unproven(registry.host)
                found += [said] if "Traceback" in said else []
                status, said = _publish(project, registry.host)
                found += [said] if status else unproven(registry.host)
                tags = [own_tags(repository(registry.host, one)) for one in RECIPES]
                found += [] if tags == [{TAG, "latest"}] * len(RECIPES) else [f"tags: {tags}"]
            shutil.rmtree(work / "registry")
            wrong += [f"{round_}: {what}: {one}" for one in found]
    print(f"{given.number} faults, seed {given.seed}: exit codes {dict(sorted(ends.items()))}")
    print(f"{len(wrong)} wrong results", *wrong, sep="\n")
    return 1 if wrong else 0


def _requests(project: Path, work: Path) -> int:
    """How many requests it takes to publish."""
    with real_registry(work / "counted") as registry, proxy_before(registry.host) as proxy:
        status, said = _publish(project, proxy.host)
        assert status == 0, said
        return len(proxy.requests)


def _fault(rng: random.Random, number: int) -> tuple[str, Decide]:
    """A fault, and when it comes: once, a few times, or from then on."""
    first = rng.randrange(number)
    times = rng.choice([1, 1, 3, number])
    fault = rng.choice(
        [
            Fault(status=rng.choice(_STATUSES), headers={"Retry-After": "0"}),
            Fault(lost=True),
            Fault(sent=rng.randrange(2000)),
            Fault(got=rng.randrange(500)),
            Fault(changed=True),
        ]
    )
    return f"{fault} at {first}, {times} times", (
        lambda _request, now: fault if first <= now < first + times else None
    )


def _publish(project: Path, host: str) -> tuple[int, str]:
    """Publish; the exit code, and what was said."""
    said = io.StringIO()
    words = ["publish", "-q", "--project", str(project), "--to", f"{host}/site"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            return cli.main(words), said.getvalue()
        except Exception as error:
            return 99, f"Traceback: {error!r}"


@contextlib.contextmanager
def _without_waiting() -> Iterator[None]:
    """The same attempts, without the seconds between them."""
    with patch.object(patience, "_FIRST_S", 0.0):
        yield


if __name__ == "__main__":
    sys.exit(main())
