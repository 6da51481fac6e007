"""A reference becomes an artifact on disk, or a refusal with its reasons.

Of several images of one command, some are judged and fetched while another one is packed.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from builder import __version__
from builder.distribute.pull.artifacts import (
    LISTED,
    Expected,
    FormatPacker,
    Packed,
    environment_of,
    existing_output,
)
from builder.distribute.pull.cache import PullCache, pull_cache
from builder.distribute.pull.folders import atomic_folder
from builder.distribute.pull.proof import proofs_of
from builder.distribute.pull.receipts import (
    NAME,
    ProgramSettings,
    PulledImage,
    PullReceipt,
    last_pulls,
    write_json,
)
from builder.distribute.pull.remote_image import (
    RemoteImage,
    contract_of,
    find,
    published,
    pulled_for,
)
from builder.host.records import Host
from builder.model.errors import Refused
from builder.model.records import write
from builder.registry import (
    Credentials,
    Descriptor,
    Reference,
    RegistryState,
    Source,
    connect,
)
from builder.registry.manifests import ARTIFACT_TYPES
from builder.system.home import Home
from builder.system.orphans import Daemons
from builder.system.process import Processes
from builder.trust.policy.cases import as_case
from builder.trust.policy.evidence import newest_proven
from builder.trust.policy.judgement import Judgement, judge
from builder.trust.policy.records import Gathered, Ruling, as_lines, not_asked
from builder.trust.policy.rules import tree
from builder.trust.policy.site_policy import Policy
from builder.trust.proof.verification import Trusted

_LOOKS_AT_ONCE, _MOST_AHEAD = 2, 16
_LOOK_S = 1800.0  # for all requests before an image is judged
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
    """An image in a source, with all statements about it, and the policy's judgement of it."""

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

    def packer(self, cache: PullCache) -> FormatPacker:
        """Return what makes a format of it."""
        return FormatPacker(
            registry=self.source,
            cache=cache,
            remote=self.remote,
            artifact=self.artifact,
            tag=self.request.reference.tag,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulled:
    """A pulled image on disk: `fresh` unless it was there already, and is complete.

    `rulings` are today's, `receipt` is that of the pull that fetched it.
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


def look(request: PullRequest, source: Source) -> Judged:
    """Find an image, gather the statements about it, and judge them; nothing is written."""
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


def pull(judged: Judged, *, cache: PullCache, output: Path, say: Callable[[str], object]) -> Pulled:
    """Fetch an image into a folder. Raises `NotProven` for one that the policy refuses."""
    judged.check()
    request, rulings = judged.request, judged.judgement.rulings
    with atomic_folder(output, say) as folder:
        if folder is not None:
            say(f"bringing {judged.remote.image.digest[:19]} as {request.format}")
            packed = judged.packer(cache).make(request.format, folder)
            ruling = not_asked("tree", _NO_TREE)
            if packed.unpacked:
                ruling = tree(judged.judgement.tree, packed.unpacked.tree)
            rulings = (*rulings, ruling)
            if ruling.result == "refused":
                raise NotProven(str(request.reference), rulings)
            receipt = _receipt(judged, packed, rulings)
            write_json(folder / NAME, write(receipt))
            (folder / NAME).chmod(0o644)  # whatever the umask: nobody else writes it
    if folder is None:
        done = _existing_output(judged, output)
    else:
        done = Pulled(path=output / packed.name, receipt=receipt, rulings=rulings, fresh=True)
    if request.remembered:  # also if it is there: whoever fetched it may have been killed before
        last_pulls().write(request.remembered, judged.gathered, request.policy)
    return done


def _receipt(judged: Judged, packed: Packed, rulings: tuple[Ruling, ...]) -> PullReceipt:
    unpacked, request, image = packed.unpacked, judged.request, judged.remote.image
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
            environment=judged.remote.environment, directory=judged.remote.directory
        ),
        evidence=judged.judgement.evidence,
        rules=rulings,
        changes=unpacked.changes if unpacked else {},
        case=as_case(judged.gathered, judged.judgement.rulings),
    )


def _existing_output(judged: Judged, output: Path) -> Pulled:
    remote = judged.remote
    path, receipt = existing_output(
        output,
        Expected(
            format=judged.request.format,
            image=remote.image.digest,
            digest=judged.artifact.digest if judged.artifact else remote.image.digest,
            tree=judged.judgement.tree,
            environment=environment_of(remote),
        ),
    )
    rulings = (*judged.judgement.rulings, not_asked("tree", _THERE))
    return Pulled(path=path, receipt=receipt, rulings=rulings, fresh=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Puller:
    """Settings and state that the images of one command share.

    With `dry_run`, images are judged and not fetched. Credential helpers are asked once, since they
    may ask a person.
    """

    plain_http: Collection[str]
    dry_run: bool
    say: Callable[[str], object]
    processes: Processes
    credentials: Credentials
    states: dict[str, RegistryState] = field(default_factory=dict)

    def cache(self, artifact_format: str) -> AbstractContextManager[PullCache]:
        """Open the cache of the images."""
        with_lists = artifact_format in LISTED and not self.dry_run
        return pull_cache(Home.of_environment().pulls, with_lists=with_lists, tell=self.say)

    def look_ahead(
        self, jobs: Sequence[tuple[PullRequest, Path]], cache: PullCache
    ) -> Generator[Future[Judged], None, None]:
        """Yield the images in order, each as soon as it is judged; a job has the output's path."""
        for first in range(0, len(jobs), _MOST_AHEAD):
            daemons = Daemons(_LOOKS_AT_ONCE)
            futures = [
                daemons.begin(functools.partial(self._look, request, output, cache))
                for request, output in jobs[first : first + _MOST_AHEAD]
            ]
            try:
                yield from futures
            except BaseException:
                for future in futures:
                    future.cancel()
                self.processes.stop()
                for future in futures:
                    if future.done() and not (future.cancelled() or future.exception()):
                        future.result().source.stop()
                raise

    def _look(self, request: PullRequest, output: Path, cache: PullCache) -> Judged:
        registry = connect(
            request.reference,
            self.credentials,
            plain_http=self.plain_http,
            tell=self.say,
            state=self.states.setdefault(request.reference.name, RegistryState()),
        )
        with registry.transport.time_limit(_LOOK_S):
            judged = look(request, registry)
        if not (self.dry_run or judged.judgement.refused or output.exists()):
            judged.packer(cache).begin(request.format)
        return judged
