"""A reference becomes an artifact on disk, or a refusal that says why."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from builder import __version__
from builder.distribute.pull.existing import Expected, existing_output
from builder.distribute.pull.finding import RemoteImage, find, published
from builder.distribute.pull.fitting import contract_of, pulled_for
from builder.distribute.pull.packing import Packed, Packer, PullCache, environment_of
from builder.distribute.pull.placing import atomic_folder
from builder.distribute.pull.proving import proofs_of
from builder.distribute.pull.receipts import (
    NAME,
    Changes,
    Last,
    ProgramSettings,
    PulledImage,
    PullReceipt,
    write_json,
)
from builder.host.record import Host
from builder.model.errors import Refused
from builder.model.records import write
from builder.registry import Descriptor, Reference, Source
from builder.registry.kinds import ARTIFACT_TYPES
from builder.trust.policy.cases import as_case
from builder.trust.policy.choosing import newest_proven
from builder.trust.policy.gathered import Gathered
from builder.trust.policy.judging import Judgement, judge
from builder.trust.policy.outcomes import Ruling, as_lines, not_asked
from builder.trust.policy.rules import tree
from builder.trust.policy.values import Policy
from builder.trust.proof import Trusted

_NO_TREE = "a SIF is the file that the evidence is about; its tree was compared when that was made"
_THERE = "it is there already, and was read again"


@dataclass(frozen=True, kw_only=True, slots=True)
class PullRequest:
    """An image to pull: its format, the architecture and host that it is for, the policy."""

    reference: Reference
    format: str
    arch: str
    host: Host
    policy: Policy
    trusted: tuple[Trusted, ...]
    now: dt.datetime
    emulated: bool = False

    @property
    def identifier(self) -> str:
        """The image's identifier: `hpc-base-1.0-debian13-openmpi5.0-x86_64`."""
        version = self.reference.tag or self.reference.digest[7:19] or "latest"
        return f"{self.reference.repository.rpartition('/')[2]}-{version}-{self.arch}"

    @property
    def folder_name(self) -> str:
        """The folder it is pulled into: `hpc-base-1.0-debian13-openmpi5.0-x86_64-sif`."""
        return f"{self.identifier}-{self.format}"

    @property
    def remembered(self) -> str:
        """Name that the reference is recorded by; empty by digest, which nobody can move."""
        tag, digest = self.reference.tag or "latest", self.reference.digest
        return "" if digest else f"{self.reference.name}:{tag}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """An image that was found, with all that is said of it, and what the policy says to that."""

    remote: RemoteImage
    gathered: Gathered
    judgement: Judgement
    artifact: Descriptor | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulled:
    """A pulled image on disk: `fresh` unless it was there already, and is complete.

    `rulings` are today's, `receipt` is that of the pull that brought it.
    """

    path: Path
    receipt: PullReceipt
    rulings: tuple[Ruling, ...]
    fresh: bool


class NotProven(Refused):
    """The policy refuses an image; `rulings` are all of them."""

    def __init__(self, reference: str, rulings: tuple[Ruling, ...]) -> None:
        lines = as_lines(ruling for ruling in rulings if ruling.result == "refused")
        super().__init__("\n".join([f"{reference}: refused", *lines]))
        self.rulings = rulings


def look(request: PullRequest, registry: Source, last: Last) -> Judged:
    """Find an image, gather what is said of it, and judge that; nothing is written."""
    reference = request.reference
    remote = find(registry, reference.digest or reference.tag or "latest", request.arch)
    image = remote.image
    digests = [image.digest, image.index] if image.index else [image.digest]
    proofs = proofs_of(registry, digests, request.trusted, request.now)
    files = dict[str, Descriptor]()
    if request.format in ARTIFACT_TYPES:
        files = {d.digest: d for d in published(registry, image.digest, request.format)}
    remembered = request.remembered if request.policy.rollback else ""
    shown = f"{registry.name}@{image.digest}"
    gathered = Gathered(
        reference=str(reference),
        format=request.format,
        now=request.now,
        image=image,
        proofs=proofs,
        host=pulled_for(request.host),
        contract=contract_of(remote.labels, shown, request.host, emulated=request.emulated),
        previous=last.read(remembered, request.arch) if remembered else None,
    )
    artifact = newest_proven(request.policy, gathered, list(files))
    gathered = replace(gathered, artifact=artifact)
    judgement = judge(request.policy, gathered)
    return Judged(
        remote=remote, gathered=gathered, judgement=judgement, artifact=files.get(artifact)
    )


def prepare(
    request: PullRequest, judged: Judged, registry: Source, *, cache: PullCache, output: Path
) -> None:
    """Have the layers come of an image that `pull` will be asked for, if it will take them."""
    if not (judged.judgement.refused or output.exists()):
        _packer(request, judged, registry, cache).begin(request.format)


def _packer(request: PullRequest, judged: Judged, registry: Source, cache: PullCache) -> Packer:
    return Packer(
        registry=registry,
        cache=cache,
        remote=judged.remote,
        artifact=judged.artifact,
        tag=request.reference.tag,
    )


def pull(
    request: PullRequest,
    judged: Judged,
    registry: Source,
    *,
    cache: PullCache,
    last: Last,
    output: Path,
    say: Callable[[str], object],
) -> Pulled:
    """Bring an image that was judged to a folder. Raises `NotProven` for one that is refused."""
    if judged.judgement.refused:
        raise NotProven(str(request.reference), judged.judgement.rulings)
    with atomic_folder(output, say) as folder:
        if folder is not None:
            say(f"bringing {judged.remote.image.digest[:19]} as {request.format}")
            packed = _packer(request, judged, registry, cache).make(request.format, folder)
            ruling = _tree_ruling(judged, packed)
            rulings = (*judged.judgement.rulings, ruling)
            if ruling.result == "refused":
                raise NotProven(str(request.reference), rulings)
            receipt = _receipt(request, judged, packed, rulings)
            write_json(folder / NAME, write(receipt))
            (folder / NAME).chmod(0o644)  # whatever the umask: nobody else writes it
    if folder is None:
        done = _existing_output(request, judged, output)
    else:
        done = Pulled(path=output / packed.name, receipt=receipt, rulings=rulings, fresh=True)
        if packed.source:
            cache.store.forget(packed.source)
    if request.remembered:  # also if it is there: whoever brought it may have been killed before
        last.write(request.remembered, judged.gathered, request.policy)
    return done


def _tree_ruling(judged: Judged, packed: Packed) -> Ruling:
    if packed.unpacked is None:
        return not_asked("tree", _NO_TREE)
    return tree(judged.judgement.tree, packed.unpacked.tree)


def _receipt(
    request: PullRequest, judged: Judged, packed: Packed, rulings: tuple[Ruling, ...]
) -> PullReceipt:
    unpacked = packed.unpacked
    changes = (
        {
            kind: Changes(count=unpacked.counts[kind], paths=tuple(paths))
            for kind, paths in unpacked.changes.items()
        }
        if unpacked
        else {}
    )
    image = judged.remote.image
    return PullReceipt(
        version=__version__,
        reference=str(request.reference),
        name=request.identifier,
        pulled=request.now.isoformat(timespec="seconds"),
        format=request.format,
        path=packed.name,
        digest=packed.digest,
        image=PulledImage(digest=image.digest, index=image.index, architecture=request.arch),
        tree=unpacked.tree if unpacked else "",
        on_disk=unpacked.on_disk if unpacked else "",
        run=ProgramSettings(
            environment=tuple(judged.remote.environment), directory=judged.remote.directory
        ),
        evidence=tuple(judged.judgement.evidence),
        rules=rulings,
        changes=changes,
        case=as_case(judged.gathered, judged.judgement.rulings),
    )


def _existing_output(request: PullRequest, judged: Judged, output: Path) -> Pulled:
    remote = judged.remote
    of_file = judged.artifact.digest if judged.artifact else ""
    path, receipt = existing_output(
        output,
        Expected(
            format=request.format,
            image=remote.image.digest,
            digest=of_file or remote.image.digest,
            tree=judged.judgement.tree,
            environment=environment_of(remote),
        ),
    )
    rulings = (*judged.judgement.rulings, not_asked("tree", _THERE))
    return Pulled(path=path, receipt=receipt, rulings=rulings, fresh=False)
