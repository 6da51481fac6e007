"""Faults at random into `publish`: whatever happens, no tag is set before its proof.

    python bench/publish_faults.py [--number 200] [--seed 1]

Each time an empty namespace of a docker-registry on loopback is filled, signed, through a proxy
that spoils one request, some, or all from one on. Then everything under a tag has to be there and
proven by the key, in both formats, the command has to have said what happened without a traceback,
and the same command without a fault has to end well.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from faulty_proxy import Decide, Fault, proxy_before
from made_releases import make_images, make_project
from outside import outside_signals
from published import RECIPES, SIGNING, TAG, Pair, made_key, own_tags, repository, unproven
from real_registry import real_registry
from timing import machine

from builder import cli
from builder.registry import failures

_GOOD = (0, 1, 4, 5)  # done, or refused in words
_STATUSES = (400, 401, 403, 404, 408, 413, 429, 500, 502, 503)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Publishing:
    """What is published, to which registry, with which keys."""

    project: Path
    host: str
    pair: Pair


def main() -> int:
    """Inject faults, and count what came of it; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(machine())
    ends, wrong = collections.Counter[int](), list[str]()
    with _without_waiting(), tempfile.TemporaryDirectory(prefix="publish-faults-") as name:
        work = Path(name)
        os.environ["BUILD_IMAGES_HOME"] = str(work / "home")
        project = make_project(work / "project", recipes=RECIPES)
        make_images(project)
        os.environ |= SIGNING
        with real_registry(work / "registry") as registry, outside_signals() as signals:
            it = _Publishing(project=project, host=registry.host, pair=made_key(work))
            number = _requests(it)
            for round_ in range(given.number):
                what, decide = _fault(random.Random(f"{given.seed}-{round_}"), number)
                status, found = _tried(it, f"round-{round_}", decide)
                ends[status] += 1
                wrong += [f"{given.seed}-{round_}: {what}: {one}" for one in found]
                if registry.process.poll() is not None:
                    raise RuntimeError((work / "registry/registry.log").read_text()[-4000:])
                signals.check()
    print(f"{given.number} faults, seed {given.seed}: exit codes {dict(sorted(ends.items()))}")
    print(f"{len(wrong)} wrong results", *wrong, sep="\n")
    return 1 if wrong else 0


def _tried(it: _Publishing, namespace: str, decide: Decide) -> tuple[int, list[str]]:
    """Publish through a fault, and once more without: the first exit code, and what is wrong."""
    with proxy_before(it.host, decide) as proxy:
        first, said = _publish(it, proxy.host, namespace)
    found = unproven(it.host, namespace, it.pair.key)
    found += [said] if "Traceback" in said or first not in _GOOD else []
    again, said = _publish(it, it.host, namespace)
    found += [said] if again else unproven(it.host, namespace, it.pair.key)
    tags = [own_tags(repository(it.host, one, namespace)) for one in RECIPES]
    found += [] if tags == [{TAG, "latest"}] * len(RECIPES) else [f"tags: {tags}"]
    return first, found


def _requests(it: _Publishing) -> int:
    """How many requests it takes to publish."""
    with proxy_before(it.host) as proxy:
        status, said = _publish(it, proxy.host, "counted")
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


def _publish(it: _Publishing, host: str, namespace: str) -> tuple[int, str]:
    """Publish; the exit code, and what was said."""
    said = io.StringIO()
    words = ["publish", "-q", "--project", str(it.project), "--to", f"{host}/{namespace}"]
    words += ["--key", str(it.pair.private)]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            return cli.main(words), said.getvalue()
        except Exception as error:
            return 99, f"Traceback: {error!r}"


@contextlib.contextmanager
def _without_waiting() -> Iterator[None]:
    """The same attempts, without the seconds between them."""
    with patch.object(failures, "_FIRST_S", 0.0):
        yield


if __name__ == "__main__":
    sys.exit(main())
