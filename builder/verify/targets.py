"""Images to verify, as described by their project, their manifest and their own files.

A check is only as good as its scripts: if `quiet.sh` ignored standard error, programs that print
errors would pass. Scripts and sources are compared byte for byte with those that the builder copied
in. Programs are compiled in the image, by its own compiler: they are compared with those that the
builder found in the packed layout.

A manifest lists the checks of an image, but anyone can edit it. If the project would build the very
same image, the project's list of checks is used.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from builder.artifacts.manifests import FOLDER
from builder.artifacts.tree import TreeEntry
from builder.build.planning import image_of
from builder.compile.spec.image_scripts import check_files, script_of
from builder.load.site import layers_of
from builder.model import FAILED, NONE, SKIPPED, Outcome, PlannedImage, agreement
from builder.model.contract import FILE, as_text, contract_of
from builder.model.digests import digest_of
from builder.model.errors import BuildImagesError
from builder.model.manifest import AskedRanks, InImageCheck, Manifest
from builder.model.package_indices import IndexState
from builder.system.terminal import printable
from builder.verify.container_output import LONGEST
from builder.verify.formats import FormatTree

HARNESS_CHECK = "harness"
SCRIPTS = "opt/build-images/checks"
_SCRIPT = re.compile(rf"{SCRIPTS}/[0-9]+-([a-z0-9][a-z0-9_-]*)")
_TIMEOUT_S = 900  # the longest limit of this project's checks; an image does not store its own
_COPIED = (
    *("files/run-checks", "files/checks/", "files/src/", "files/host-contract.json"),
    "files/bin/",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProofTarget:
    """An image to verify: its name, its environment and its checks.

    `directory` is the working directory of its programs, `mpi` the value of its cell. `harness` has
    the SHA-256 of the builder's scripts by their paths below /opt/build-images; it is empty if they
    are unknown. `indices` are the states of package indices that it was built with, if known.
    """

    identifier: str
    arch: str
    environment: Mapping[str, str]
    checks: tuple[InImageCheck, ...]
    directory: str = "/"
    mpi: str = NONE
    harness: Mapping[str, str] = field(default_factory=dict)
    indices: tuple[IndexState, ...] = ()

    @property
    def needs_gpu(self) -> bool:
        """True if one of its checks needs a GPU."""
        return any(check.needs_gpu for check in self.checks)


def harness_of(specs: Mapping[str, str]) -> dict[str, str]:
    """Return the SHA-256 of each file of the harness by its path below the harness's folder.

    `specs` are the digests of a spec's files (`sha256:…`) by their names in the spec's folder, and
    of compiled programs as `programs_in` returns them.
    """
    return {
        name.removeprefix("files/"): str(digest).removeprefix("sha256:")
        for name, digest in specs.items()
        if name.startswith(_COPIED)
    }


def carried_harness(tree: FormatTree) -> dict[str, str]:
    """Return the SHA-256 of each file of the harness in an artifact, by paths below its folder."""
    files = sorted(_harness_entries(tree).items())
    return {path: entry.content for path, entry in files if entry.kind == "file"}


def _harness_entries(tree: FormatTree) -> dict[str, TreeEntry]:
    return {
        path.removeprefix(FOLDER): entry
        for path, entry in tree.entries.items()
        if path.startswith(FOLDER)
    }


def altered_harness(target: ProofTarget, trees: Mapping[str, FormatTree]) -> tuple[Outcome, ...]:
    """Return a failure if a file of the harness differs from the builder's; none without checks.

    Skipped if the builder's files are unknown, as for a pulled image.
    """
    if not target.checks:
        return ()
    if not target.harness:
        reason = "not compared: no record of the scripts that the builder copied into the image"
        return (Outcome(check=HARNESS_CHECK, outcome=SKIPPED, reason=reason),)
    faults = [fault for name, tree in trees.items() for fault in _altered(target, name, tree)]
    reason = printable("; ".join(faults))[:LONGEST]
    return (Outcome(check=HARNESS_CHECK, outcome=FAILED, reason=reason),) if faults else ()


def _altered(target: ProofTarget, name: str, tree: FormatTree) -> Iterator[str]:
    entries, folders = _harness_entries(tree), ["checks/", "src/"]  # Python imports from src
    if any(path.startswith("bin/") for path in target.harness):  # earlier manifests have none
        folders.append("bin/")
    present = {
        path
        for path, entry in entries.items()
        if path.startswith(tuple(folders))
        and (entry.kind != "directory" or not path.startswith("src/"))
    }
    for path in sorted(present | target.harness.keys()):
        entry = entries.get(path)
        if entry is None:
            yield f"{name}: /{FOLDER}{path} is missing"
        elif entry.content != target.harness.get(path):
            yield f"{name}: /{FOLDER}{path} differs from the builder's"


def carried_checks(tree: FormatTree) -> dict[str, InImageCheck]:
    """Return the checks in an image by name, in their order.

    Checks with `gpu` in their name need a GPU: this project names them so.
    """
    scripts = {
        match[1]: f"/{path}"
        for path, entry in sorted(tree.entries.items())
        if entry.kind == "file" and (match := _SCRIPT.fullmatch(path))
    }
    return {
        name: InImageCheck(
            name=name,
            script=script,
            needs=("gpu",) if "gpu" in name.split("-") else (),
            timeout_s=_TIMEOUT_S,
        )
        for name, script in scripts.items()
    }


def with_carried(target: ProofTarget, trees: Collection[FormatTree]) -> ProofTarget:
    """Return a target with its image's scripts, and with checks that only the image has.

    A check without a script in the image keeps a path that does not exist there, and fails. Without
    any tree, nothing is known of the image, and the target stays as it is.
    """
    if not trees:
        return target
    carried = {name: check for tree in trees for name, check in carried_checks(tree).items()}
    scripts = {name: check.script for name, check in carried.items()}
    declared = {
        check.name: dataclasses.replace(
            check, script=scripts.get(check.name, f"/{SCRIPTS}/{check.name}")
        )
        for check in target.checks
    }
    more = [check for name, check in carried.items() if name not in declared]
    return dataclasses.replace(target, checks=(*declared.values(), *more))


def lacking_mpi(target: ProofTarget) -> tuple[Outcome, ...]:
    """Return a failure if an image's cell has an MPI, but the image has no check of it."""
    if target.mpi == NONE or agreement.MPI in {check.name for check in target.checks}:
        return ()
    reason = f"the image is for {target.mpi}, but has no check {agreement.MPI}"
    return (Outcome(check=agreement.MPI, outcome=FAILED, reason=reason),)


def expected_target(project: Path, manifest: Manifest) -> ProofTarget | None:
    """Return an image as its project describes it; None if the project would build another."""
    try:
        image = image_of(project, manifest)
    except (BuildImagesError, OSError, LookupError, TypeError):
        return None  # no project here
    if image is None or image.content_key != manifest.content_key:
        return None
    return target_of(image, harness_digests(image, project))


def harness_digests(image: PlannedImage, project: Path) -> dict[str, str]:
    """Return the digests of the files of an image's harness, by their names in its spec."""
    if not image.checks:
        return {}
    files = check_files(image, layers_of(project).run_checks.read_text())
    files[FILE] = as_text(contract_of(image))
    return digests_of(files)


def digests_of(files: Mapping[str, str]) -> dict[str, str]:
    """Return the digests of texts that a spec copies in, by their names."""
    return {name: digest_of(text.encode()) for name, text in files.items()}


def target_of(
    image: PlannedImage, specs: Mapping[str, str], *, indices: tuple[IndexState, ...] = ()
) -> ProofTarget:
    """Return what the verification needs to know of a planned image; `specs` as in `harness_of`.

    Variables and working directory come from its OCI layout, which is not known here.
    """
    return ProofTarget(
        identifier=image.identifier,
        arch=image.cell.arch,
        environment={},
        mpi=image.cell.mpi,
        harness=harness_of(specs),
        indices=indices,
        checks=tuple(
            InImageCheck(
                name=check.name,
                script=script_of(image, check),
                needs=check.needs,
                timeout_s=check.timeout_s,
                asked=(
                    AskedRanks.of_command(check.run, image.mpi.family, image.mpi.version)
                    if image.mpi
                    else AskedRanks()
                ),
            )
            for check in image.checks
        ),
    )
