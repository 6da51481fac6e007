"""The main job: every selected image made and proven, several at once, failures kept apart."""

from __future__ import annotations

import contextlib
import errno
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from builder import __version__
from builder.cli.again import prove_again
from builder.cli.cell import make_image
from builder.cli.manifests import State, Wanted, read_manifest, state_of
from builder.cli.run import Run
from builder.engines import Buildah
from builder.errors import BadInput, BuildImagesError, Interrupted, MissingPrerequisite, StepFailed
from builder.locks import locked
from builder.model import Plan, Spec
from builder.report import write_report

WAITING = "waiting for another build-images that works on the same store"
_POLL_S = 0.5  # how often the main thread looks up, so that Ctrl-C is seen at once


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """What a run came to: manifests and errors by image, in build order."""

    manifests: Mapping[str, Mapping[str, Any]]
    errors: Mapping[str, BuildImagesError]

    @property
    def exit_code(self) -> int:
        """0 when all is verified, 4 when the machine gave out, else 1."""
        if any(_lacks(error) for error in self.errors.values()):
            return MissingPrerequisite.exit_code
        bad = [one for one in self.manifests.values() if one["outcome"] == "failed"]
        return 1 if self.errors or bad else 0


def run_job(
    run: Run, plan: Plan, specs: Sequence[Spec], lacking: Mapping[str, str], *, jobs: int
) -> Results:
    """Make every image that is not done yet, and write the report over the output folder.

    `lacking` says of the plan's other images what this machine lacks to build them.
    """
    start = time.monotonic()
    names = [spec.image.identifier for spec in specs]
    home = run.tools.home.path
    with (
        locked(home, "builder", waiting=lambda: run.progress.say(WAITING)),
        run.progress.running(names),
    ):
        _clean(run)  # what a killed run left; nobody else is building on this store
        results = _all_images(run, specs, jobs)
    failures, compiled = (
        {name: str(error) for name, error in results.errors.items() if _lacks(error) is lacks}
        for lacks in (False, True)
    )
    took_s = round(time.monotonic() - start, 1)
    report(
        run.out,
        plan,
        failures,
        {**compiled, **lacking},
        {"started": run.started, "duration_s": took_s, "host": asdict(run.host)},
    )
    return results


def report(
    out: Path,
    plan: Plan,
    failures: Mapping[str, str],
    compiled: Mapping[str, str],
    run: Mapping[str, Any],
) -> None:
    """Write the report over an output folder: what is in it, and what is not, with the reasons."""
    command = shlex.join(["build-images", *sys.argv[1:]])
    build = {"tool_version": __version__, "command": command, **run}
    write_report(_manifests(out), plan.left_out, failures, out=out, build=build, compiled=compiled)


def _lacks(error: BuildImagesError) -> bool:
    """Whether it is the machine that lacks something, and nothing is wrong with the image."""
    return error.exit_code == MissingPrerequisite.exit_code


def _clean(run: Run) -> None:
    """Remove containers that are left over; whatever the engine, Buildah runs the OCI images."""
    run.engine.clean()
    Buildah(run.tools).clean()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """A time in which Ctrl-C and the like change nothing: the end is under way already."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _manifests(out: Path) -> list[dict[str, Any]]:
    """Every image in the output folder, of this run and of earlier ones."""
    folders = sorted(folder for folder in out.iterdir() if folder.is_dir())
    return [manifest for folder in folders if (manifest := read_manifest(folder)) is not None]


def _all_images(run: Run, specs: Sequence[Spec], jobs: int) -> Results:
    manifests: dict[str, Mapping[str, Any]] = {}
    errors: dict[str, BuildImagesError] = {}
    executor = ThreadPoolExecutor(max_workers=jobs)
    futures: dict[Future[dict[str, Any]], str] = {
        executor.submit(_one_image, run, spec): spec.image.identifier for spec in specs
    }
    try:
        waiting = set(futures)
        while waiting:
            done, waiting = wait(waiting, timeout=_POLL_S, return_when=FIRST_COMPLETED)
            for future in done:
                _settle(run, futures[future], future, manifests, errors)
    except BaseException:
        with uninterrupted():  # a second Ctrl-C must not keep the first from ending everything
            run.tools.processes.stop()
            executor.shutdown(wait=True, cancel_futures=True)
            _clean(run)
        raise
    executor.shutdown()
    order = [spec.image.identifier for spec in specs]
    return Results(
        manifests={name: manifests[name] for name in order if name in manifests},
        errors={name: errors[name] for name in order if name in errors},
    )


def _one_image(run: Run, spec: Spec) -> dict[str, Any]:
    name = spec.image.identifier
    wanted = Wanted(formats=run.formats, engine=run.engine.name, verify=run.verify)
    state = state_of(run.out, spec.image, wanted) if run.cache else State(work="build", text="")
    if state.manifest and state.work == "none":
        run.progress.finish(name, "unchanged", str(state.manifest["outcome"]))
        return dict(state.manifest)
    start = time.monotonic()
    try:
        manifest = _proven_again(run, state, name) or make_image(run, spec)
    except OSError as error:
        raise _system_error(run, name, error) from error
    run.progress.finish(name, manifest["outcome"], _closing(manifest, time.monotonic() - start))
    return manifest


def _proven_again(run: Run, state: State, name: str) -> dict[str, Any] | None:
    """The manifest of an image that was only to be verified; None if it has to be built."""
    if state.manifest is None or state.work != "verify":
        return None
    try:
        return prove_again(run, state.manifest, run.out / name)
    except BadInput as error:  # an artifact was altered
        run.progress.step(name, f"building anew: {error}")
        return None


def _system_error(run: Run, name: str, error: OSError) -> BuildImagesError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return MissingPrerequisite(
            f"{name}: the disk is full ({error.filename or run.tools.home.path})",
            hint="free some room and run the same command again: finished steps are kept",
        )
    return BuildImagesError(f"{name}: {error}")


def _closing(manifest: Mapping[str, Any], seconds: float) -> str:
    failed = [
        f"{name}/{one['check']}: {one['reason']}"
        for name, outcomes in manifest["checks"].items()
        for one in outcomes
        if one["outcome"] == "failed"
    ]
    formats = ", ".join(manifest["artifacts"])
    unproven = "; not proven on a GPU" if manifest["proven_on_gpu"] is False else ""
    return f"{formats} in {seconds:.0f} s{unproven}" + "".join(f"\n    {one}" for one in failed)


def _settle(
    run: Run,
    name: str,
    future: Future[dict[str, Any]],
    manifests: dict[str, Mapping[str, Any]],
    errors: dict[str, BuildImagesError],
) -> None:
    try:
        manifests[name] = future.result()
    except Interrupted:
        raise
    except BuildImagesError as error:
        errors[name] = error
    except Exception as error:  # a bug that one image meets must not end the others
        errors[name] = StepFailed(
            f"unexpected {type(error).__name__}: {error}",
            tail="".join(traceback.format_exception(error)).splitlines()[-10:],
            hint="this is a fault of build-images itself; please report it",
        )
    if name in errors:
        run.progress.finish(name, "failed", str(errors[name]))
