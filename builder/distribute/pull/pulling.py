"""A reference becomes an artifact on disk, or a refusal that says why."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from builder import __version__
from builder.distribute.pull.finding import Found, find, published
from builder.distribute.pull.fitting import contract_of, pulled_for
from builder.distribute.pull.packing import Kept, Packed, Packer, environment_of
from builder.distribute.pull.placing import made_whole
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
from builder.distribute.pull.there import Expected, already_there
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
class Wanted:
    """What is to be pulled: in which format, for which architecture and host, by which policy."""

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
        """What the image is called here: `hpc-base-1.0-debian13-openmpi5.0-x86_64`."""
        version = self.reference.tag or self.reference.digest[7:19] or "latest"
        return f"{self.reference.repository.rpartition('/')[2]}-{version}-{self.arch}"

    @property
    def folder_name(self) -> str:
        """The folder it is pulled into: `hpc-base-1.0-debian13-openmpi5.0-x86_64-sif`."""
        return f"{self.identifier}-{self.format}"

    @property
    def remembered(self) -> str:
        """How the reference is remembered; empty for one by digest, which nobody can move."""
        tag, digest = self.reference.tag or "latest", self.reference.digest
        return "" if digest else f"{self.reference.name}:{tag}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """An image that was found, with all that is said of it, and what the policy says to that."""

    found: Found
    gathered: Gathered
    judgement: Judgement
    artifact: Descriptor | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulled:
    """What is on disk: `fresh` unless it was there already, and is whole.

    `rulings` are today's, `receipt` is that of the pull that brought it.
    """

    path: Path
    receipt: PullReceipt
    rulings: tuple[Ruling, ...]
    fresh: bool


class NotProven(Refused):
    """The policy refuses an image; `rulings` are all of them."""

    def __init__(self, reference: str, rulings: tuple[Ruling, ...]) -> None:
        lines = as_lines(one for one in rulings if one.result == "refused")
        super().__init__("\n".join([f"{reference}: refused", *lines]))
        self.rulings = rulings


def look(wanted: Wanted, registry: Source, last: Last) -> Judged:
    """Find an image, gather what is said of it, and judge that; nothing is written."""
    found = find(registry, wanted.reference.digest or wanted.reference.tag or "latest", wanted.arch)
    image = found.image
    digests = [image.digest, image.index] if image.index else [image.digest]
    proofs = proofs_of(registry, digests, wanted.trusted, wanted.now)
    files = dict[str, Descriptor]()
    if wanted.format in ARTIFACT_TYPES:
        some = published(registry, image.digest, wanted.format)
        files = {one.digest: one for one in some}
    remembered = wanted.remembered if wanted.policy.rollback else ""
    shown = f"{registry.name}@{image.digest}"
    gathered = Gathered(
        reference=str(wanted.reference),
        format=wanted.format,
        now=wanted.now,
        image=image,
        proofs=proofs,
        host=pulled_for(wanted.host),
        contract=contract_of(found.labels, shown, wanted.host, emulated=wanted.emulated),
        previous=last.read(remembered, wanted.arch) if remembered else None,
    )
    artifact = newest_proven(wanted.policy, gathered, list(files))
    gathered = replace(gathered, artifact=artifact)
    judgement = judge(wanted.policy, gathered)
    return Judged(found=found, gathered=gathered, judgement=judgement, artifact=files.get(artifact))


def prepare(wanted: Wanted, judged: Judged, registry: Source, *, kept: Kept, output: Path) -> None:
    """Have the layers come of an image that `pull` will be asked for, if it will take them."""
    if not (judged.judgement.refused or output.exists()):
        _packer(wanted, judged, registry, kept).begin(wanted.format)


def _packer(wanted: Wanted, judged: Judged, registry: Source, kept: Kept) -> Packer:
    return Packer(
        registry=registry,
        kept=kept,
        found=judged.found,
        artifact=judged.artifact,
        tag=wanted.reference.tag,
    )


def pull(
    wanted: Wanted,
    judged: Judged,
    registry: Source,
    *,
    kept: Kept,
    last: Last,
    output: Path,
    say: Callable[[str], object],
) -> Pulled:
    """Bring an image that was judged to a folder. Raises `NotProven` for one that is refused."""
    if judged.judgement.refused:
        raise NotProven(str(wanted.reference), judged.judgement.rulings)
    with made_whole(output, say) as folder:
        if folder is not None:
            say(f"bringing {judged.found.image.digest[:19]} as {wanted.format}")
            packed = _packer(wanted, judged, registry, kept).make(wanted.format, folder)
            ruling = _tree_ruling(judged, packed)
            rulings = (*judged.judgement.rulings, ruling)
            if ruling.result == "refused":
                raise NotProven(str(wanted.reference), rulings)
            receipt = _receipt(wanted, judged, packed, rulings)
            write_json(folder / NAME, write(receipt))
            (folder / NAME).chmod(0o644)  # whatever the umask: nobody else writes it
    if folder is None:
        done = _already_there(wanted, judged, output)
    else:
        done = Pulled(path=output / packed.name, receipt=receipt, rulings=rulings, fresh=True)
        if packed.given:
            kept.store.forget(packed.given)
    if wanted.remembered:  # also if it is there: whoever brought it may have been killed before
        last.write(wanted.remembered, judged.gathered, wanted.policy)
    return done


def _tree_ruling(judged: Judged, packed: Packed) -> Ruling:
    if packed.unpacked is None:
        return not_asked("tree", _NO_TREE)
    return tree(judged.judgement.tree, packed.unpacked.tree)


def _receipt(
    wanted: Wanted, judged: Judged, packed: Packed, rulings: tuple[Ruling, ...]
) -> PullReceipt:
    unpacked = packed.unpacked
    changes = (
        {
            what: Changes(count=unpacked.counts[what], paths=tuple(paths))
            for what, paths in unpacked.changes.items()
        }
        if unpacked
        else {}
    )
    image = judged.found.image
    return PullReceipt(
        version=__version__,
        reference=str(wanted.reference),
        name=wanted.identifier,
        pulled=wanted.now.isoformat(timespec="seconds"),
        format=wanted.format,
        path=packed.name,
        digest=packed.digest,
        image=PulledImage(digest=image.digest, index=image.index, architecture=wanted.arch),
        tree=unpacked.tree if unpacked else "",
        on_disk=unpacked.on_disk if unpacked else "",
        run=ProgramSettings(
            environment=tuple(judged.found.environment), directory=judged.found.directory
        ),
        evidence=tuple(judged.judgement.evidence),
        rules=rulings,
        changes=changes,
        case=as_case(judged.gathered, judged.judgement.rulings),
    )


def _already_there(wanted: Wanted, judged: Judged, output: Path) -> Pulled:
    found = judged.found
    of_file = judged.artifact.digest if judged.artifact else ""
    path, receipt = already_there(
        output,
        Expected(
            format=wanted.format,
            image=found.image.digest,
            digest=of_file or found.image.digest,
            tree=judged.judgement.tree,
            environment=environment_of(found),
        ),
    )
    rulings = (*judged.judgement.rulings, not_asked("tree", _THERE))
    return Pulled(path=path, receipt=receipt, rulings=rulings, fresh=False)
