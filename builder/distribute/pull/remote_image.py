"""Find the image of a reference: the tag is resolved once, all other requests are by digest."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from builder.distribute.pull.members import shown
from builder.distribute.pull.streams import LIMITS
from builder.host.contracts import contract_from_labels
from builder.host.records import NONE, Host
from builder.host.rules import judge
from builder.host.verdict import all_of
from builder.model import exact_json
from builder.model.architectures import ARCHITECTURES, architecture
from builder.model.errors import BadInput, Refused
from builder.model.exact_json import part, time_of
from builder.registry import INDEX, MANIFEST, Descriptor, NotFound, Source, WrongContent, is_digest
from builder.registry.manifests import ARTIFACT_TYPES
from builder.registry.references import read_descriptor
from builder.trust.policy.records import UNKNOWN, YES, Contract, Image, PulledFor

CREATED = "org.opencontainers.image.created"
_CONFIG_LIMIT = 4 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteImage:
    """An image of one architecture, as a registry has it; none of it is trusted yet.

    `content` and `config` are the bytes of the manifest and of the configuration. `labels` and the
    working `directory` are from the configuration. So are `diff_ids`, the digests of the unpacked
    layers, by the digests of the layers.
    """

    manifest: Descriptor
    content: bytes
    config: bytes
    config_descriptor: Descriptor
    layers: tuple[Descriptor, ...]
    image: Image
    labels: Mapping[str, str] = field(default_factory=dict)
    environment: tuple[str, ...] = ()
    diff_ids: Mapping[str, str] = field(default_factory=dict)
    directory: str


def find(source: Source, target: str, arch: str) -> RemoteImage:
    """Return the image for an architecture under a tag or a digest.

    Raises `BadInput` if there is no such image, and `Refused` for anything but an image.
    """
    manifest, content = source.read(target)
    document = source.document_of(manifest, content)
    index = ""
    if manifest.media_type == INDEX:
        index = manifest.digest
        chosen = _of_architecture(document, arch, f"{source.name}@{index}")
        manifest, content = source.read(chosen)
        document = source.document_of(manifest, content)
    where = f"{source.name}@{manifest.digest}"
    if manifest.media_type != MANIFEST:
        raise Refused(f"{where}: not an OCI image, but {shown(manifest.media_type)}")
    config_descriptor = read_descriptor(document.get("config"), where)
    layers = tuple(_listed(document, "layers", where))
    config = source.small_blob(config_descriptor, _CONFIG_LIMIT)
    try:
        about = exact_json.parsed(config)
        settings = about.get("config") or {}
        known = architecture(str(about.get("architecture")))
        created = part(document, "annotations", CREATED) or about.get("created")
        return RemoteImage(
            manifest=manifest,
            content=content,
            config=config,
            config_descriptor=config_descriptor,
            layers=layers,
            image=Image(
                digest=manifest.digest,
                architecture=known.name if known else str(about.get("architecture")),
                asked=arch,
                index=index,
                created=time_of(created) if created else None,
            ),
            labels={str(key): str(text) for key, text in (settings.get("Labels") or {}).items()},
            environment=tuple(map(str, settings.get("Env") or [])),
            diff_ids=_diff_ids(about.get("rootfs"), layers),
            directory=str(settings.get("WorkingDir") or "/"),
        )
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise Refused(f"{where}: its configuration is invalid ({shown(str(error))})") from error


def _diff_ids(rootfs: Mapping[str, object], layers: Sequence[Descriptor]) -> dict[str, str]:
    """Return the diff_id of each layer; raises `ValueError` if the configuration lacks one."""
    named = rootfs["diff_ids"] if rootfs else []
    if not isinstance(named, list) or len(named) != len(layers) or not all(map(is_digest, named)):
        raise ValueError(f"its diff_ids do not match its {len(layers)} layers")
    pairs = [(layer.digest, diff_id) for layer, diff_id in zip(layers, named, strict=True)]
    if len({*pairs}) != len(diff_ids := dict(pairs)):
        raise ValueError("it has two diff_ids for one layer")
    return diff_ids


def _listed(document: Mapping[str, object], key: str, where: str) -> list[Descriptor]:
    entries = document.get(key)
    if not isinstance(entries, list) or len(entries) > LIMITS.layers:
        raise Refused(f"{where}: list of {key} missing, or longer than {LIMITS.layers}")
    return [read_descriptor(entry, where) for entry in entries]


def _of_architecture(index: Mapping[str, object], arch: str, where: str) -> Descriptor:
    entries = _listed(index, "manifests", where)
    platform = ("linux", ARCHITECTURES[arch].oci)
    fitting = [
        entry
        for entry in entries
        if (entry.platform.get("os"), entry.platform.get("architecture")) == platform
    ]
    if not fitting:
        names = sorted({entry.platform.get("architecture", "") for entry in entries} - {""})
        known = {name: architecture(name) for name in names}
        available = ", ".join(item.name if item else shown(name) for name, item in known.items())
        raise BadInput(
            f"{where}: no image for {arch}; available: {available or 'none'}",
            hint="name another architecture with --arch, or ask for the image to be built",
        )
    if len({entry.digest for entry in fitting}) > 1:
        raise Refused(f"{where}: {len(fitting)} images for {arch}, expected one")
    return fitting[0]


_MOST = 1000


def published(source: Source, digest: str, artifact_format: str) -> tuple[Descriptor, ...]:
    """Return the files of a format that refer to an image; several if it was packed again.

    Anybody with write access to the repository can attach anything to an image. So a referrer that
    is damaged, or does not have exactly one file, is ignored.
    """
    kind = ARTIFACT_TYPES[artifact_format]
    referrers = source.referrers(digest, kind)
    if len(referrers) > _MOST:
        problem = f"{len(referrers)} {artifact_format} files refer to it; the limit is {_MOST}"
        raise Refused(f"{source.name}@{digest}: {problem}")
    files: dict[str, Descriptor] = {}
    for referrer in referrers:
        with contextlib.suppress(
            *(WrongContent, NotFound, LookupError, TypeError, ValueError, AttributeError)
        ):
            _, document = source.document(referrer)
            if (document.get("subject") or {}).get("digest") == digest:
                [layer] = document["layers"]
                file = read_descriptor(layer, source.name)
                files.setdefault(file.digest, file)
    return tuple(file for file in files.values() if file.media_type == kind)


def contract_of(
    labels: Mapping[str, str], shown: str, host: Host, *, emulated: bool
) -> Contract | None:
    """Judge by its labels whether an image runs on a host; None if they contain no contract.

    Runtimes and launchers are not judged: an image that is pulled on one machine is run on others.
    No facts are passed: they only name alternatives, which `check-host` shows.
    """
    try:
        contract = contract_from_labels(labels, shown)
    except BadInput as error:
        return Contract(answer=UNKNOWN, reasons=(" ".join(str(error).split()),))
    if contract is None:
        return None
    rules = judge(contract, host, emulated=emulated).rules
    answer = all_of(rule.answer for rule in rules)
    reasons = [f"{rule.rule}: {rule.reason}" for rule in rules if rule.answer == answer]
    return Contract(answer=answer, reasons=() if answer == YES else tuple(reasons))


def pulled_for(host: Host) -> PulledFor:
    """Return the facts about a host that the choice of evidence needs."""
    devices = host.gpu.devices
    numbers = [None] if devices is None else [device.capability for device in devices]
    known = tuple(number for number in numbers if number is not None)
    driver = host.gpu.driver
    return PulledFor(
        capabilities=None if None in numbers else known, driver=None if driver == NONE else driver
    )
