"""`build-images verify`: prove again what was built or pulled, or measure it."""

from __future__ import annotations

import json
from pathlib import Path

from builder.build.at_work import at_work
from builder.build.engines import ENGINES, Tools
from builder.build.run import Run
from builder.cli.building import notes_on, versions_of
from builder.cli.launching import verify_launched
from builder.cli.options import Options
from builder.distribute.pull.verifying import Receipt, receipt_in, verify_pulled
from builder.model import SKIPPED
from builder.model.errors import BadInput, MissingPrerequisite
from builder.model.manifest import MANIFEST, Manifest, ProvenImage
from builder.model.records import write
from builder.reports.report import refresh
from builder.system.atomic import write_atomically
from builder.system.home import Home
from builder.system.process import Processes
from builder.system.progress import progress_for
from builder.verify import host_facts
from builder.verify.again import Verified, finished, prove_again
from builder.verify.expected import expected_target
from builder.verify.measure import as_text, exposition
from builder.verify.measure.recording import measure
from builder.verify.untried import not_tried
from builder.verify.wording import one_line


def verify(options: Options) -> int:
    """Run the command; 1 if a check failed, of which a measurement has one; 4 if one could not be
    tried.
    """
    folder = options.path
    assert folder is not None
    receipt = _receipt(folder, options)
    if receipt is None:
        finished(folder)  # before anything is started
    progress = progress_for(options.level)
    processes = Processes(echo=progress.echo if options.level > 1 else None)
    tools = Tools(processes=processes, home=Home.of_environment())
    run = Run(
        tools=tools,
        engine=ENGINES["buildah"](tools),
        mirror=None,
        out=folder.parent,
        progress=progress,
        host=host_facts(),
        versions=versions_of(tools, "buildah"),
    )
    with at_work(tools, options.project, progress.say):
        if options.ranks:
            return verify_launched(run, options, options.ranks, folder)
        if options.bench:
            return _measure(run, folder, options)
        done = (
            verify_pulled(run, folder, receipt, options.runners)
            if receipt
            else prove_again(
                run,
                folder,
                options.runners,
                expected=expected_target(options.project, finished(folder)),
            )
        )
    if options.json:
        more = {"pulled": done.pulled} if done.pulled else {}
        print(json.dumps(write(done.found) | more, indent=1, sort_keys=True))
    else:
        print(_as_text(done))
    if done.untried and not done.has_failed:
        raise not_tried(done.found.image, done.untried)
    return 1 if done.has_failed or done.found.outcome == "failed" else 0


def _as_text(done: Verified[Manifest] | Verified[ProvenImage]) -> str:
    """What was found, a line a check; of further runs, too, which do not decide the outcome."""
    found = done.found
    lines = [f"{found.image}: {found.outcome}{notes_on(found)}"]
    lines += [
        f"  {name:12} {one.check:16} {one.outcome:8} {one_line(one.reason)}"
        for name, outcomes in found.checks.items()
        for one in outcomes
    ]
    lines += [f"  {name:12} not tried: {reason}" for name, reason in done.untried.items()]
    return "\n".join(lines)


def _receipt(folder: Path, options: Options) -> Receipt | None:
    """What says which image was pulled, if the folder is not one that an image was built in."""
    if (folder / MANIFEST).exists() or (receipt := receipt_in(folder)) is None:
        return None
    if options.ranks or options.bench:
        what = "--launcher" if options.ranks else "--bench"
        raise BadInput(
            f"{what}: {folder} holds one format that was pulled, and this wants all of an image",
            hint="name the folder in which it was built; without this option its checks are run",
        )
    return receipt


def _measure(run: Run, folder: Path, options: Options) -> int:
    measured, manifest = measure(run, folder, runners=options.runners, repeats=options.repeats)
    refresh(folder.parent, manifest)
    if options.prometheus:
        write_atomically(options.prometheus, exposition(measured))
    print(json.dumps(measured.as_json(), indent=1) if options.json else as_text(measured))
    if measured.has_collapsed:
        return 1
    untold = any(one.outcome == SKIPPED for one in measured.outcomes.values())
    return MissingPrerequisite.exit_code if untold else 0
