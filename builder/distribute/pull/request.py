"""A request for an image: the policy that decides, the host that it is for, who is trusted."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from pathlib import Path

from builder.distribute.pull.images import PullRequest
from builder.host import read_record, this_host
from builder.host.records import Host
from builder.model.architectures import ARCHITECTURES, architecture
from builder.model.errors import BadInput
from builder.registry import Reference
from builder.system.home import Home
from builder.system.process import Processes
from builder.trust.policy.site_policy import Identity, Policy, read_policy
from builder.trust.proof.keys import public_key
from builder.trust.proof.verification import Trusted, TrustedIdentity, TrustedKey, read_trusted_root

FORMATS = ("oci", "sif", "charliecloud", "directory")
POLICY = Path("/etc/build-images/policy.yaml")


def references_of(texts: Sequence[str]) -> list[Reference]:
    """Parse references, each once; raises one `BadInput` for all that are none."""
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
    emulated: bool = False,
) -> PullRequest:
    """Return what is asked for: by which policy, on which host, for which architecture.

    Without a `policy`, the site's decides; without the `record` of a host and an `arch`, this
    machine's. Raises `BadInput` for a policy or a record with faults.
    """
    file = policy or POLICY
    if policy is None and not file.exists():
        raise BadInput(
            f"no policy: {file} is missing",
            hint="name one with --policy FILE; docs/pulling.md has one of three lines",
        )
    read = read_policy(file)
    processes = Processes()
    search_path = Home.of_environment().search_path()
    host = read_record(record) if record else this_host(processes, search_path=search_path)
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
    """Return the trusted signers; a signer under two names would count as two signatures."""
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
            raise BadInput(f"{where}: the same key as {first.name}", hint="name it once")
        trusted[known] = signer
    return tuple(trusted.values())


def _architecture(named: str, host: Host) -> str:
    name = named or host.architecture or ""
    known = architecture(name)
    if known is None:
        names = ", ".join(ARCHITECTURES)
        raise BadInput(
            f"{name or 'nothing'} is not an architecture", hint=f"--arch, one of {names}"
        )
    return known.name
