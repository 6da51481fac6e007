"""The command `verify`: verify a built or pulled image again, or measure it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from builder.build.at_work import at_work
from builder.build.run import Run
from builder.cli.options import Parser, ProgressOptions, a_path, distinct
from builder.distribute.pull.receipts import PullReceipt
from builder.distribute.pull.verification import receipt_in, verify_pulled
from builder.model import SKIPPED
from builder.model.errors import BadInput, MissingPrerequisite, counted
from builder.model.manifest import MANIFEST, Manifest, ProvenImage, manifest_text
from builder.model.records import write
from builder.reports.measured import as_text, exposition
from builder.reports.report import refreshed, report_files
from builder.system.files import write_atomically, write_texts
from builder.system.terminal import progress_for
from builder.verify.checks import lines_of_checks, text_of_checks
from builder.verify.finished_images import prove_again, read_finished
from builder.verify.kit_evidence import import_evidence
from builder.verify.launched import LAUNCHED, verify_launched
from builder.verify.measure.rounds import measure
from builder.verify.preparation import not_tried, run_on_finished
from builder.verify.proof import Verified
from builder.verify.ranks.launchers import LAUNCHERS, Start
from builder.verify.runners import RUNNERS
from builder.verify.targets import expected_target

REPEATS = 5
_RANKS = 4
_FOR_RANKS = ("ranks", "nodes", "bind_mpi", "launcher_option", "timeout")


class VerifyOptions(ProgressOptions):
    """The options of `verify`; those of ranks and of measuring are None or empty by default."""

    path: Path
    runner: Sequence[str]
    json: bool
    evidence: Path | None
    launcher: Sequence[str]
    ranks: int | None
    nodes: int | None
    bind_mpi: str | None
    launcher_option: Sequence[str]
    timeout: int | None
    bench: bool
    repeats: int | None
    prometheus: Path | None


def declare(parser: Parser) -> None:
    text = "an image's folder, such as out/IDENTIFIER, or the folder of a pulled image"
    parser.add_path("path", text, "PATH")
    text = "run the checks with this program only (may be repeated; default: one per format)"
    parser.add_list("--runner", text, choices=tuple(RUNNERS))
    text = "run no checks; judge and add what a kit recorded on another machine (see `kit`)"
    parser.add_argument("--import", dest="evidence", type=a_path, metavar="FILE", help=text)
    parser.add_json("print the manifest, or the measurement, as JSON")
    group = parser.add_argument_group(
        "only start ranks, each in a container of its own, by this host's launcher"
    )
    text = "mpirun of the image's MPI family, or srun --mpi=pmix (may be repeated)"
    parser.add_list("--launcher", text, choices=LAUNCHERS, to=group)
    parser.add_number("--ranks", f"number of ranks (default: {_RANKS})", to=group)
    text = "number of nodes, at most one per rank; the check fails on any other number"
    parser.add_number("--nodes", text, to=group)
    text = (
        "run again with the host's MPI library in place of the image's: the one below "
        "DIR, or the one found on the host (auto)"
    )
    parser.add_text("--bind-mpi", text, "DIR", to=group)
    text = "pass this option to the launcher: --launcher-option=--partition=test"
    parser.add_list("--launcher-option", text, "OPTION", to=group)
    text = "time limit for the ranks (default: that of the image's check mpi)"
    parser.add_number("--timeout", text, "SECONDS", to=group)
    bench = parser.add_argument_group("measuring")
    text = "run no checks; compare the speed of programs in each format with bare execution"
    parser.add_flag("--bench", text, to=bench)
    text = f"number of rounds, each with all formats in turn (default: {REPEATS})"
    parser.add_number("--repeats", text, to=bench)
    parser.add_path(
        "--prometheus", "also write the measurement in Prometheus' text format", to=bench
    )


def run(options: VerifyOptions) -> int:
    """Run the command; 1 if a check failed, 4 if one could not be tried."""
    ranks = _rank_options(options)
    folder, runners = options.path, distinct(options.runner)
    receipt = _receipt(folder, ranks, options)
    if receipt is None:
        read_finished(folder)  # before anything is started
    run = run_on_finished(options.project, folder.parent, progress_for(options.level))
    with at_work(run.tools, options.project, run.progress.say):
        if ranks:
            return _launched(run, folder, ranks, options)
        if options.bench:
            return _measure(run, folder, options)
        done: Verified[Manifest] | Verified[ProvenImage]
        if options.evidence:
            done = import_evidence(run, folder, options.evidence)
        elif receipt:
            done = verify_pulled(run, folder, receipt, runners)
        else:
            expected = expected_target(options.project, read_finished(folder))
            done = prove_again(run, folder, runners, expected=expected)
    if options.json:
        more = {"pulled": receipt.digest} if receipt else {}
        options.print_json(json.dumps(write(done.record) | more, indent=1, sort_keys=True))
    else:
        print(text_of_checks(done.record, folder, done.untried))
    if done.untried and not done.has_failed:
        raise not_tried(done.record.image, done.untried)
    return 1 if done.has_failed or done.record.outcome == "failed" else 0


def _receipt(folder: Path, ranks: Sequence[Start], options: VerifyOptions) -> PullReceipt | None:
    """Return the receipt of a pulled image; None for the folder that an image was built in."""
    if (folder / MANIFEST).exists() or (receipt := receipt_in(folder)) is None:
        return None
    named = {"--launcher": ranks, "--bench": options.bench, "--import": options.evidence}
    if option := next((name for name in named if named[name]), ""):
        raise BadInput(
            f"{option}: {folder} has one pulled format, but this option needs all formats",
            hint="name the folder in which it was built, or run the checks without this option",
        )
    return receipt


def _measure(run: Run, folder: Path, options: VerifyOptions) -> int:
    measured, manifest = measure(
        run, folder, runners=distinct(options.runner), repeats=options.repeats or REPEATS
    )
    if report := refreshed(folder.parent, manifest):
        write_texts(folder.parent, report_files(report, folder.parent.resolve().name))
    if options.prometheus:
        write_atomically(options.prometheus, exposition(measured))
    options.show(measured.as_json(), lambda: as_text(measured))
    if measured.has_collapsed:
        return 1
    is_undecided = any(check.outcome == SKIPPED for check in measured.outcomes.values())
    return MissingPrerequisite.exit_code if is_undecided else 0


def _launched(run: Run, folder: Path, ranks: Sequence[Start], options: VerifyOptions) -> int:
    done = verify_launched(run, options.project, folder, ranks, distinct(options.runner))
    title = f"{done.manifest.image}: {ranks[0].ranks} ranks{', emulated' if done.emulated else ''}"
    text = "\n".join([title, *lines_of_checks(done.outcomes)])
    options.show(manifest_text(done.manifest).rstrip("\n"), lambda: text)
    return done.exit_code


def _rank_options(options: VerifyOptions) -> tuple[Start, ...]:
    """Return the ways to start ranks, if any. Options without effect are errors."""
    for name in ("repeats", "prometheus"):
        if getattr(options, name) and not options.bench:
            options.parser.error(f"--{name} needs --bench")
    if options.evidence and (options.bench or options.launcher or options.runner):
        options.parser.error("--import excludes --runner, --launcher and --bench")
    if not options.launcher:
        named = [f"--{name.replace('_', '-')}" for name in _FOR_RANKS if getattr(options, name)]
        if named:
            options.parser.error(f"{', '.join(named)}: only with --launcher mpirun or srun")
        return ()
    if options.bench:
        options.parser.error("--bench and --launcher exclude each other")
    if others := [name for name in options.runner if name not in LAUNCHED]:
        runners = " and ".join(LAUNCHED)
        options.parser.error(f"--runner {others[0]}: launchers start containers of {runners}")
    ranks, nodes = options.ranks or _RANKS, options.nodes or 0
    if nodes > ranks:
        text = counted(ranks, "rank")
        options.parser.error(f"--nodes {nodes}: {text} cannot use all of them; --ranks {nodes} can")
    return tuple(
        Start(
            launcher=launcher,
            ranks=ranks,
            nodes=nodes,
            options=tuple(options.launcher_option),
            timeout_s=options.timeout or 0,
            bind=bind,
        )
        for launcher in distinct(options.launcher)
        for bind in dict.fromkeys(("", options.bind_mpi or ""))
    )
