"""A request for an image, and the policy's judgement of the image for a host."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from builder.distribute.pull.proof import proofs_of
from builder.distribute.pull.receipts import last_pulls
from builder.distribute.pull.remote_image import (
    RemoteImage,
    contract_of,
    find,
    published,
    pulled_for,
)
from builder.host.local_host import this_machine
from builder.host.records import Host, read_record
from builder.model.architectures import ARCHITECTURES, architecture
from builder.model.errors import BadInput, ErrorDocument, Refused
from builder.registry import Descriptor, Reference, Source
from builder.registry.manifests import ARTIFACT_TYPES
from builder.system.home import Home
from builder.system.process import Processes
from builder.trust.policy.evidence import newest_proven
from builder.trust.policy.judgement import Judgement, judge
from builder.trust.policy.records import Gathered, Ruling, as_lines
from builder.trust.policy.site_policy import Identity, Policy, read_policy
from builder.trust.proof.keys import public_key
from builder.trust.proof.verification import Trusted, TrustedIdentity, TrustedKey, read_trusted_root

POLICY = Path("/etc/build-images/policy.yaml")


@dataclass(frozen=True, kw_only=True, slots=True)
class PullRequest:
    """An image to pull: its reference and format, the target architecture and host, the policy."""

    reference: Reference
    format: str
    arch: str
    host: Host
    policy: Policy
    trusted: tuple[Trusted, ...]
    now: dt.datetime
    emulated: bool

    @property
    def identifier(self) -> str:
        """The image's identifier: `hpc-base-1.0-debian13-openmpi5.0-x86_64`."""
        version = self.reference.tag or self.reference.digest[7:19] or "latest"
        return f"{self.reference.repository.rpartition('/')[2]}-{version}-{self.arch}"

    @property
    def folder_name(self) -> str:
        """The folder to pull it into: `hpc-base-1.0-debian13-openmpi5.0-x86_64-sif`."""
        return f"{self.identifier}-{self.format}"

    @property
    def remembered(self) -> str:
        """Name for the record of the last pull; empty for a digest, which cannot be moved."""
        tag, digest = self.reference.tag or "latest", self.reference.digest
        return "" if digest else f"{self.reference.name}:{tag}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """An image in a source, with all statements about it, and the policy's judgement."""

    request: PullRequest
    source: Source
    remote: RemoteImage
    gathered: Gathered
    judgement: Judgement
    artifact: Descriptor | None

    def check(self) -> None:
        """Raise `NotProven` if the policy refuses it."""
        if self.judgement.refused:
            raise NotProven(str(self.request.reference), self.judgement.rulings)

    @property
    def digest(self) -> str:
        """The digest of the published file; if the format has none, that of the image."""
        return self.artifact.digest if self.artifact else self.remote.image.digest


class NotProven(Refused):
    """The policy refuses an image; `rulings` has the rulings of all rules."""

    def __init__(self, reference: str, rulings: tuple[Ruling, ...]) -> None:
        lines = as_lines(ruling for ruling in rulings if ruling.result == "refused")
        super().__init__("\n".join([f"{reference}: refused", *lines]))
        self.reference = reference
        self.rulings = rulings

    def document(self) -> ErrorDocument:
        rules = tuple(asdict(ruling) for ruling in self.rulings)
        return replace(super().document(), reference=self.reference, rules=rules)


def look(request: PullRequest, source: Source) -> Judged:
    """Find an image, gather the statements about it, and judge it; nothing is written."""
    reference = request.reference
    remote = find(source, reference.digest or reference.tag or "latest", request.arch)
    image = remote.image
    digests = [image.digest, image.index] if image.index else [image.digest]
    proofs = proofs_of(source, digests, request.trusted, request.now)
    files = dict[str, Descriptor]()
    if request.format in ARTIFACT_TYPES:
        files = {file.digest: file for file in published(source, image.digest, request.format)}
    remembered = request.remembered if request.policy.rollback else ""
    shown = f"{source.name}@{image.digest}"
    gathered = Gathered(
        reference=str(reference),
        format=request.format,
        now=request.now,
        image=image,
        proofs=proofs,
        host=pulled_for(request.host),
        contract=contract_of(remote.labels, shown, request.host, emulated=request.emulated),
        previous=last_pulls().read(remembered, request.arch) if remembered else None,
    )
    artifact = newest_proven(request.policy, gathered, list(files))
    gathered = replace(gathered, artifact=artifact)
    return Judged(
        request=request,
        source=source,
        remote=remote,
        gathered=gathered,
        judgement=judge(request.policy, gathered),
        artifact=files.get(artifact),
    )


def references_of(texts: Sequence[str]) -> list[Reference]:
    """Parse references and drop duplicates; raises one `BadInput` for all invalid ones."""
    references: dict[str, Reference] = {}
    faults = []
    for text in texts:
        try:
            reference = Reference.parse(text)
        except BadInput as fault:
            if len(texts) == 1:
                raise
            faults.append(str(fault))
            continue
        named = reference.tag or reference.digest
        references.setdefault(str(reference if named else reference.at("latest")), reference)
    if faults:
        raise BadInput("\n".join(faults))
    return list(references.values())


def request_of(
    reference: Reference,
    artifact_format: str,
    *,
    policy: Path | None = None,
    arch: str = "",
    record: Path | None = None,
    emulated: bool,
) -> PullRequest:
    """Return the request for an image: with its policy, its host, its architecture.

    The default of `policy` is the site's. The host is that of `record`, else this machine; the
    default of `arch` is the host's. Raises `BadInput` for an invalid policy or record.
    """
    file = policy or POLICY
    if policy is None and not file.exists():
        raise BadInput(
            f"no policy: {file} is missing",
            hint="name one with --policy FILE; docs/pulling.md has an example",
        )
    read = read_policy(file)
    processes = Processes()
    search_path = Home.of_environment().search_path()
    host = read_record(record) if record else this_machine(processes, search_path=search_path)
    return PullRequest(
        reference=reference,
        format=artifact_format,
        arch=_architecture(arch, host),
        host=host,
        policy=read,
        trusted=_trusted(read),
        now=dt.datetime.now(tz=dt.timezone.utc),
        emulated=emulated,
    )


def _trusted(policy: Policy) -> tuple[Trusted, ...]:
    """Return the trusted signers; refuse one with two names: it would count as two signatures."""
    trusted: dict[str, Trusted] = {}
    for entry in policy.keys:
        signer: Trusted
        if isinstance(entry, Identity):
            where, known = f"identity {entry.name}", f"{entry.issuer} {entry.name}"
            signer = TrustedIdentity(
                glob=entry.name,
                issuer=entry.issuer,
                trusted_root=read_trusted_root(entry.roots),
                until=entry.until,
            )
        else:
            key = public_key(str(entry.file), os.environ)
            where, known = str(entry.file), key.fingerprint
            signer = TrustedKey(key=key, name=entry.name, until=entry.until)
        if first := trusted.get(known):
            raise BadInput(f"{where}: the same key as {first.name}", hint="remove one of them")
        trusted[known] = signer
    return tuple(trusted.values())


def _architecture(named: str, host: Host) -> str:
    name = named or host.architecture or ""
    known = architecture(name)
    if known is None:
        names = ", ".join(ARCHITECTURES)
        raise BadInput(
            f"unknown architecture: {name or 'none'}", hint=f"use --arch with one of {names}"
        )
    return known.name
