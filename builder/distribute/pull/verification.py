"""Verifying what `pull` left: one format of an image, without the folder it was built in.

What is run is in the image itself: the scripts below /opt/build-images/checks. The receipt says
which image it is, and which variables and working directory its programs have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.build.run import Run
from builder.build.workspace import FILES
from builder.distribute.pull.receipts import NAME, PullReceipt, read_receipt
from builder.model import Artifact
from builder.model.errors import BadInput
from builder.model.manifest import InImageCheck, ProvenImage
from builder.verify.finished_images import check_runners, within_reach, work_folder
from builder.verify.formats import FormatTree, tree_of_artifact
from builder.verify.proof import Verified, prove
from builder.verify.targets import SCRIPTS, ProofTarget, carried_checks


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """The part of a receipt that is needed to verify the image beside it."""

    identifier: str
    arch: str
    format: str
    digest: str
    environment: Mapping[str, str]
    directory: str


def receipt_in(folder: Path) -> Receipt | None:
    """That of a pull; None if the folder has none.

    Raises `BadInput` for one that does not say enough, and for a format whose tree is spread out.
    """
    try:
        receipt = read_receipt(folder)
        if receipt is None:
            return None
        if receipt.format not in FILES:
            raise BadInput(
                f"{folder}: an image that was pulled as a {receipt.format} is not verified as one",
                hint=f"pull it as one of {', '.join(FILES)}; or ch-run --set-env "
                f"{folder}/rootfs -- /opt/build-images/run-checks",
            )
        return _needed(receipt)
    except ValueError as error:
        raise BadInput(
            f"{folder / NAME}: it does not say what to verify ({error!r})",
            hint="move the folder away, and pull the image again with this version",
        ) from error


def _needed(found: PullReceipt) -> Receipt:
    """Raises `ValueError` for a receipt without what is needed."""
    if found.run is None or not (found.name and found.digest and found.image.architecture):
        raise ValueError("name, digest, architecture or run is missing")
    return Receipt(
        identifier=found.name,
        arch=found.image.architecture,
        format=found.format,
        digest=found.digest,
        environment=dict(one.split("=", 1) for one in found.run.environment),
        directory=found.run.directory,
    )


def verify_pulled(
    run: Run, folder: Path, receipt: Receipt, runners: Sequence[str]
) -> Verified[ProvenImage]:
    """Run the checks that are in the image; evidence goes to `folder`/evidence.

    What was found, in the words of a manifest. Raises `BadInput` for what was changed since it was
    pulled, and for an image without checks; `MissingPrerequisite` where this machine can run
    nothing of it.
    """
    path = Path(FILES[receipt.format])
    size = (folder / path).stat().st_size if receipt.format != "oci" else 0
    named = Artifact(format=receipt.format, path=path, digest=receipt.digest, size=size)
    with work_folder(run.tools) as work:
        artifact = within_reach(receipt.format, named, folder, work, source=NAME)
        check_runners({receipt.format: artifact}, runners)
        run.progress.step(receipt.identifier, f"looking for the checks in {receipt.format}")
        tree = tree_of_artifact(receipt.format, artifact.path, work=work, tools=run.tools)
        target = _target(receipt, tree)
        artifacts: dict[str, Artifact] = {receipt.format: artifact}
        return prove(run, target, artifacts, work=work, folder=folder, runners=runners)


def _target(receipt: Receipt, tree: FormatTree) -> ProofTarget:
    return ProofTarget(
        identifier=receipt.identifier,
        arch=receipt.arch,
        environment=receipt.environment,
        directory=receipt.directory,
        checks=checks_in(tree, receipt.identifier),
    )


def checks_in(tree: FormatTree, identifier: str) -> tuple[InImageCheck, ...]:
    """The checks that an image carries, in their order. Raises `BadInput` if there are none."""
    checks = tuple(carried_checks(tree).values())
    if not checks:
        raise BadInput(
            f"{identifier}: there are no checks in it (/{SCRIPTS})",
            hint="images of this project carry theirs; what others made can only be run",
        )
    return checks
