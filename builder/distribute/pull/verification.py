"""Verify a pulled image in its one format, without the folder of its build.

The scripts in /opt/build-images/checks of the image are run. The receipt names the image, and has
the variables and the working directory of its programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from builder.build.run import Run
from builder.distribute.pull.receipts import NAME, PullReceipt, read_receipt
from builder.model import Artifact
from builder.model.errors import BadInput
from builder.model.manifest import FILES, InImageCheck, ProvenImage
from builder.verify.finished_images import check_runners, within_reach
from builder.verify.formats import FormatTree, tree_of_artifact
from builder.verify.proof import Verified, prove
from builder.verify.runners.protocol import readable_folder
from builder.verify.targets import SCRIPTS, ProofTarget, carried_checks


def receipt_in(folder: Path) -> PullReceipt | None:
    """Return the receipt of a pull; None if the folder has none.

    Raises `BadInput` for an incomplete receipt, and for a format that cannot be verified.
    """
    try:
        receipt = read_receipt(folder)
        if receipt is None:
            return None
        if receipt.format not in FILES:
            raise BadInput(
                f"{folder}: an image pulled as a {receipt.format} cannot be verified",
                hint=f"pull it as one of {', '.join(FILES)}; or ch-run --set-env "
                f"{folder}/rootfs -- /opt/build-images/run-checks",
            )
        variables_of(receipt)
    except ValueError as error:
        raise BadInput(
            f"{folder / NAME}: the receipt is incomplete ({error!r})",
            hint="move the folder away, and pull the image again with this version",
        ) from error
    return receipt


def variables_of(receipt: PullReceipt) -> dict[str, str]:
    """Return the variables of an image's programs.

    Raises `ValueError` for a receipt that lacks an entry that verification needs.
    """
    if receipt.run is None or not (receipt.name and receipt.digest and receipt.image.architecture):
        raise ValueError("name, digest, architecture or run is missing")
    return dict(variable.split("=", 1) for variable in receipt.run.environment)


def verify_pulled(
    run: Run, folder: Path, receipt: PullReceipt, runners: Sequence[str]
) -> Verified[ProvenImage]:
    """Run the checks that the image contains; evidence is written to `folder`/evidence.

    The result has the form of a manifest. Raises `BadInput` for an artifact that has changed since
    the pull, and for an image without checks; `MissingPrerequisite` if this machine can run none
    of them.
    """
    path, name = Path(FILES[receipt.format]), receipt.name
    size = (folder / path).stat().st_size if receipt.format != "oci" else 0
    pulled = Artifact(format=receipt.format, path=path, digest=receipt.digest, size=size)
    with readable_folder(run.tools.home.work, "verify-") as work:
        artifact = within_reach(receipt.format, pulled, folder, work, source=NAME)
        artifacts = {receipt.format: artifact}
        check_runners(artifacts, runners)
        run.progress.step(name, f"looking for the checks in {receipt.format}")
        tree = tree_of_artifact(receipt.format, artifact.path, work=work, tools=run.tools)
        assert receipt.run  # or it has no variables
        target = ProofTarget(
            identifier=name,
            arch=receipt.image.architecture,
            environment=variables_of(receipt),
            directory=receipt.run.directory,
            checks=checks_in(tree, name),
        )
        return prove(run, target, artifacts, work=work, folder=folder, runners=runners)


def checks_in(tree: FormatTree, identifier: str) -> tuple[InImageCheck, ...]:
    """Return the checks in an image, in their order; raises `BadInput` if it has none."""
    checks = tuple(carried_checks(tree).values())
    if not checks:
        raise BadInput(
            f"{identifier}: the image has no checks (/{SCRIPTS})",
            hint="only images of this project can be verified: they contain their checks",
        )
    return checks
