"""A reference becomes an artifact on disk, or a refusal that says why."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from builder import __version__
from builder.distribute.pull.artifacts import (
    NOTED,
    Brought,
    Expected,
    Packed,
    Packer,
    PullCache,
    environment_of,
    existing_output,
    pull_cache,
)
from builder.distribute.pull.cache import reading
from builder.distribute.pull.folders import atomic_folder
from builder.distribute.pull.proof import proofs_of
from builder.distribute.pull.receipts import (
    NAME,
    Changes,
    Last,
    ProgramSettings,
    PulledImage,
    PullReceipt,
    write_json,
)
from builder.distribute.pull.remote_image import (
    RemoteImage,
    contract_of,
    find,
    published,
    pulled_for,
)
from builder.distribute.threads import AT_ONCE, Coming, ahead
from builder.host.records import Host
from builder.model.errors import Refused
from builder.model.records import write
from builder.registry import (
    Credentials,
    Descriptor,
    Reference,
    Registry,
    RegistryState,
    Source,
    connect,
)
from builder.registry.manifests import ARTIFACT_TYPES
from builder.system.home import Home
from builder.system.process import Processes
from builder.system.workers import Workers
from builder.trust.policy.cases import as_case
from builder.trust.policy.evidence import newest_proven
from builder.trust.policy.judgement import Judgement, judge
from builder.trust.policy.records import Gathered, Ruling, as_lines, not_asked
from builder.trust.policy.rules import tree
from builder.trust.policy.site_policy import Policy
from builder.trust.proof.verification import Trusted

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


_LOOKS_AT_ONCE, _MOST_AHEAD = 2, 16
_LOOK_S = 1800.0  # for all that is asked before an image is judged


@dataclass(frozen=True, kw_only=True, slots=True)
class PullJob:
    """An image, and the path where it is to be."""

    request: PullRequest
    output: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class LookedAt:
    """An image that was judged where it is."""

    job: PullJob
    judged: Judged
    registry: Registry
    last: Last
    cache: PullCache

    def check(self) -> None:
        """Raise `NotProven` if the policy refuses it."""
        if self.judged.judgement.refused:
            raise NotProven(str(self.job.request.reference), self.judged.judgement.rulings)

    def pull(self, say: Callable[[str], object]) -> Pulled:
        """Bring it; raises `NotProven` if the policy refuses it."""
        return pull(
            self.job.request,
            self.judged,
            self.registry,
            cache=self.cache,
            last=self.last,
            output=self.job.output,
            say=say,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Puller:
    """Settings and state that the images of one command share.

    With `dry_run`, images are judged and not brought. Credential helpers are asked once, since they
    may ask a person.
    """

    plain_http: Collection[str]
    dry_run: bool
    say: Callable[[str], object]
    processes: Processes
    credentials: Credentials
    coming: Coming[Brought] = field(default_factory=Coming)
    learned: dict[str, RegistryState] = field(default_factory=dict)

    def workers(self, artifact_format: str) -> AbstractContextManager[Workers | None]:
        """Start processes that take notes, one for each layer that comes at once."""
        if self.dry_run or artifact_format not in NOTED:
            return contextlib.nullcontext()
        return reading(AT_ONCE)

    def look_ahead(
        self, requests: Sequence[PullJob], workers: Workers | None
    ) -> Generator[Future[LookedAt], None, None]:
        """Yield the images in order, each as soon as it is judged."""
        for first in range(0, len(requests), _MOST_AHEAD):
            batch = requests[first : first + _MOST_AHEAD]
            futures, end = ahead(
                lambda request: self._look(request, workers), batch, threads=_LOOKS_AT_ONCE
            )
            try:
                yield from futures
            except BaseException:
                end()
                self.processes.stop()
                for future in futures:
                    if future.done() and not (future.cancelled() or future.exception()):
                        future.result().registry.stop()
                raise

    def _look(self, job: PullJob, workers: Workers | None) -> LookedAt:
        """Look at an image, and have its layers come if it is proven."""
        request, pulls = job.request, Home.of_environment().pulls
        registry = connect(
            request.reference,
            self.credentials,
            plain_http=self.plain_http,
            tell=self.say,
            state=self.learned.setdefault(request.reference.name, RegistryState()),
        )
        last = Last(folder=pulls / "last")
        with registry.transport.time_limit(_LOOK_S):
            judged = look(request, registry, last)
        cache = pull_cache(
            pulls,
            check=registry.transport.sleep.check,
            tell=self.say,
            coming=self.coming,
            workers=workers,
        )
        if not self.dry_run:
            prepare(request, judged, registry, cache=cache, output=job.output)
        return LookedAt(job=job, judged=judged, registry=registry, last=last, cache=cache)
