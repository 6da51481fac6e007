"""Faults at random between a site and a registry: what is accepted in spite of them is whole.

Each pull meets one to three faults of random kind, at a random answer. It either ends well, and
then what is on disk is what was published, or it is refused in words, and then nothing is there.
Anything else is a wrong result. Only the requests of `pull` go through the proxy.

    python bench/pull_faults.py --number 200
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from faulty_proxy import Fault, proxy_before
from outside import outside_signals
from real_registry import real_registry
from registry_site import Content, Published, Site
from timing import machine

from builder.__main__ import main as build_images
from builder.artifacts.oci import read_layout
from builder.distribute.pull.artifacts import tree_on_disk
from builder.distribute.pull.layers import tree_of_layout
from builder.distribute.pull.receipts import read_receipt
from builder.model.digests import digest_of_file

FORMATS = ("oci", "sif", "charliecloud", "directory")
STATUSES = (401, 403, 404, 429, 500, 502, 503)
BODIES: tuple[dict[str, Any], ...] = ({"changed": True}, {"body": "cut"}, {"body": "reset"})
PLACES = ("/manifests/", "/blobs/", "/referrers/", r"\.sig$", r"\.att$", "/manifests/1.0$", "/v2/$")
RUBBISH = (b"", b"{}", b"[]", b"null", b"\xff" * 100, b"<html>no</html>")
_GOOD, _REFUSED = 0, (1, 4, 5)


def random_fault(rng: random.Random, published: Published) -> Fault:
    """One fault, at one of the answers that a pull needs."""
    digests = (published.image, published.config, *published.layers, *published.evidence)
    path = rng.choice((*PLACES, *(f"/{one}$" for one in (*digests, published.index))))
    times = rng.choice((1, 1, 2, 1_000_000))
    kind = rng.choice(("status", "body", "body", "rubbish"))
    if kind == "status":
        return Fault(path=path, status=rng.choice(STATUSES), times=times)
    if kind == "rubbish":
        return Fault(path=path, replace=rng.choice(RUBBISH), times=times)
    return Fault(path=path, times=times, **rng.choice(BODIES))


def outcome(site: Site, published: Published, form: str, status: int, said: str) -> str:
    """What came of a pull; it begins with `wrong` if that must not be."""
    out = site.place / "out"
    left = [one.name for one in site.place.iterdir() if "out" in one.name]
    if "Traceback" in said:
        return "wrong: a traceback"
    if status in _REFUSED:
        return f"wrong: refused, and left {left}" if left else "refused, and nothing is left"
    if status != _GOOD or left != ["out"]:
        return f"wrong: status {status}, left {left}"
    return "accepted, and whole" if is_whole(out, published, form) else "wrong: accepted"


def is_whole(out: Path, published: Published, form: str) -> bool:
    """Whether an output is what was published, in a format."""
    receipt = read_receipt(out)
    if receipt is None or receipt.image.digest != published.image:
        return False
    if form == "directory":
        same = tree_on_disk(out / "rootfs") == receipt.on_disk
        return same and receipt.tree == published.tree
    if form == "oci":
        layout = read_layout(out / "image.oci")
        return layout.digest == published.image and tree_of_layout(layout) == published.tree
    file = out / {"sif": "image.sif", "charliecloud": "image.tar.gz"}[form]
    return digest_of_file(file) == published.artifacts[form]


def run(number: int, seed: int) -> Counter[str]:
    """Pull so often, each time with other faults; how often what came of it."""
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="pull-faults-") as name, contextlib.ExitStack() as ends:
        place = Path(name)
        registry = ends.enter_context(real_registry(place / "registry")).host
        site = Site(registry=registry, place=place / "site", known={})
        site.place.mkdir()
        published = site.publish(Content())
        proxy = ends.enter_context(proxy_before(registry))
        signals = ends.enter_context(outside_signals())
        os.environ["BUILD_IMAGES_HOME"] = str(site.place / "home")
        for one in range(number):
            rng = random.Random(f"{seed}-{one}")
            form = rng.choice(FORMATS)
            proxy.faults[:] = [random_fault(rng, published) for _ in range(rng.randint(1, 3))]
            status, said = _pull(site, proxy.host, form)
            signals.check()
            came = outcome(site, published, form, status, said)
            found[came] += 1
            if came.startswith("wrong"):
                print(f"{seed}-{one}: {form}: {came}: {proxy.faults}\n{said}")
            shutil.rmtree(site.place / "out", ignore_errors=True)
            if rng.random() < 1 / 2:
                shutil.rmtree(site.place / "home", ignore_errors=True)
    return found


def _pull(site: Site, host: str, form: str) -> tuple[int, str]:
    out = io.StringIO()
    argv = ["pull", f"{host}/site/tool:1.0", "--format", form, "--policy", str(site.policy())]
    argv += ["--host", str(site.record()), "--output", str(site.place / "out")]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        status = build_images(argv)
    return status, out.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(machine())
    found = run(given.number, given.seed)
    for came, times in sorted(found.items()):
        print(f"{times:5}  {came}")
    raise SystemExit(any(came.startswith("wrong") for came in found))


if __name__ == "__main__":
    main()
