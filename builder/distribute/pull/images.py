"""Pull judged images to disk, or refuse them with the reasons."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from builder import __version__
from builder.artifacts.compare import ComparedImage, ImageChanges, changes_of
from builder.distribute.pull.artifacts import NAMES, FormatPacker, existing_output
from builder.distribute.pull.cache import BlobStore
from builder.distribute.pull.folders import atomic_folder
from builder.distribute.pull.layers import Unpacked
from builder.distribute.pull.receipts import (
    NAME,
    ProgramSettings,
    PulledImage,
    PullReceipt,
    last_pulls,
    write_json,
)
from builder.distribute.pull.remote_image import published
from builder.distribute.pull.request import Judged, NotProven, PullRequest, look
from builder.model.agreement import WORST_LAST
from builder.model.manifest import packages_of
from builder.model.records import write
from builder.registry import Credentials, Registry, connect
from builder.registry.manifests import ARTIFACT_TYPES
from builder.system.orphans import Daemons
from builder.system.process import Processes
from builder.trust.policy.cases import as_case
from builder.trust.policy.records import Bill, Evidence, Ruling, not_asked
from builder.trust.policy.rules import tree

_LOOK_S = 1800.0  # for all requests before an image is judged
_NO_TREE = "the evidence is for the SIF itself; its tree was compared when the evidence was made"
_THERE = "already pulled; it was read and checked again"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulled:
    """A pulled image on disk: `fresh` if this run fetched it, not if it existed and is complete.

    `rulings` are those of this run, `receipt` is that of the pull that fetched the image.
    """

    path: Path
    receipt: PullReceipt
    rulings: tuple[Ruling, ...]
    fresh: bool


def pull(judged: Judged, *, store: BlobStore, output: Path, say: Callable[[str], object]) -> Pulled:
    """Fetch an image into a folder; raises `NotProven` if the policy refuses the image."""
    judged.check()
    request, rulings = judged.request, judged.judgement.rulings
    with atomic_folder(output, say) as folder:
        if folder is not None:
            say(f"pulling {judged.remote.image.digest[:19]} as {request.format}")
            unpacked = FormatPacker(judged=judged, store=store).make(folder)
            ruling = not_asked("tree", _NO_TREE)
            if unpacked:
                ruling = tree(judged.judgement.tree, unpacked.tree)
            rulings = (*rulings, ruling)
            if ruling.result == "refused":
                raise NotProven(str(request.reference), rulings)
            receipt = _receipt(judged, unpacked, rulings)
            write_json(folder / NAME, write(receipt))
            (folder / NAME).chmod(0o644)  # independent of the umask
    if folder is None:
        receipt = existing_output(output, judged)
        rulings = (*rulings, not_asked("tree", _THERE))
    if request.remembered:  # also for an existing output: its pull may have been killed before this
        last_pulls().write(request.remembered, judged.gathered, request.policy)
    path = output / NAMES[request.format]
    return Pulled(path=path, receipt=receipt, rulings=rulings, fresh=folder is not None)


def _receipt(judged: Judged, unpacked: Unpacked | None, rulings: tuple[Ruling, ...]) -> PullReceipt:
    request, image = judged.request, judged.remote.image
    return PullReceipt(
        version=__version__,
        reference=str(request.reference),
        name=request.identifier,
        pulled=request.now.isoformat(timespec="seconds"),
        format=request.format,
        path=NAMES[request.format],
        digest=judged.digest,
        image=PulledImage(digest=image.digest, index=image.index, architecture=request.arch),
        tree=unpacked.tree if unpacked else "",
        on_disk=unpacked.on_disk if unpacked else "",
        run=ProgramSettings(
            environment=judged.remote.environment, directory=judged.remote.directory
        ),
        evidence=judged.judgement.evidence,
        rules=rulings,
        changes=unpacked.changes if unpacked else {},
        case=as_case(judged.gathered, judged.judgement.rulings),
    )


class Puller:
    """Settings and state that the images of one command share.

    Credential helpers are called only once, because they may prompt the user.
    """

    def __init__(self, *, plain_http: Collection[str], say: Callable[[str], object]) -> None:
        self._plain_http, self._say = plain_http, say
        self._processes = Processes()
        self._credentials = Credentials(processes=self._processes)
        self._registries: dict[str, Registry] = {}

    def judged(self, request: PullRequest) -> Judged:
        """Find an image, and judge it; nothing is fetched or written."""
        name = request.reference.name
        known = self._registries.get(name)
        if known is None or known.transport.sleep.is_ended:  # by an image that failed
            self._registries[name] = connect(
                request.reference, self._credentials, plain_http=self._plain_http, tell=self._say
            )
        registry = self._registries[name]
        with registry.transport.time_limit(_LOOK_S):
            # In a thread, as resolving a host's name delays Ctrl-C.
            future = Daemons(1).begin(partial(look, request, registry))
            try:
                return future.result()
            except KeyboardInterrupt:
                registry.stop()
                self._processes.stop()
                raise

    def changes(self, before: PullRequest, after: PullRequest) -> ImageChanges:
        """Compare two published images; raises `NotProven` if the policy refuses one.

        They neither run here nor follow a pull, so the policy's rules about that do not apply.
        """
        return changes_of(self._accepted(before), self._accepted(after), _NOT_PUBLISHED)

    def _accepted(self, request: PullRequest) -> ComparedImage:
        policy = replace(request.policy, host_contract=False, rollback=False)
        judged = self.judged(replace(request, policy=policy))
        judged.check()
        return _compared(judged)


_NOT_PUBLISHED = {
    "package": "no bill of materials that the policy trusts, or several",
    "file": "layers differ, and a registry has no list of files: pull both images",
    "check": "no evidence that the policy trusts",
}


def _compared(judged: Judged) -> ComparedImage:
    """Return what is compared of a published image: what its digest or a trusted signer fixes."""
    remote, digest = judged.remote, judged.remote.image.digest
    proofs = judged.gathered.proofs
    claims = [claim for claim in proofs if claim.is_trusted and digest in claim.subjects]
    signed = {subject for claim in claims for subject in claim.subjects}
    sizes = {"oci": sum(layer.size for layer in remote.layers)}
    for name in ARTIFACT_TYPES:
        files = published(judged.source, digest, name)
        files = tuple(file for file in files if file.digest in signed)
        sizes |= {name: files[0].size} if len(files) == 1 else {}
    contents = [claim.content for claim in claims]
    runs = [content for content in contents if isinstance(content, Evidence)]
    values: dict[str, Mapping[str, str]] = {
        "size": {name: str(size) for name, size in sizes.items()},
        "label": remote.labels,
    }
    if runs:
        values["check"] = {
            f"{run.format}/{check}": worse  # the worst, which comes last
            for worse in WORST_LAST
            for run in runs
            for check, outcome in run.outcomes.items()
            if outcome == worse
        }
    bills = {content for content in contents if isinstance(content, Bill)}
    if len(bills) == 1:
        [bill] = bills
        values["package"] = packages_of({"components": [asdict(each) for each in bill.packages]})
    layers = tuple(layer.digest for layer in remote.layers)
    return ComparedImage(image=str(judged.request.reference), values=values, layers=layers)
