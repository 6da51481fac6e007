"""From a reference to one image: its tag is asked once, and everything after that is by digest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from builder.registry import INDEX, MANIFEST, Descriptor, NotThere, Source, WrongContent, is_digest
from builder.registry.manifests import ARTIFACT_TYPES
from builder.trust.policy.predicates import time_of
from builder.trust.policy.records import UNKNOWN, YES, Contract, Image, PulledFor

CREATED = "org.opencontainers.image.created"
_CONFIG_LIMIT = 4 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteImage:
    """An image of one architecture, as a registry has it; nothing of it is believed yet.

    `index` is what the tag names, where that is an index. `content` and `config` are the bytes of
    the manifest and of the configuration, `labels` those of the configuration, and `directory` is
    where it has programs work. `diff_ids` are what the configuration says that layers unpack to, by
    their digests.
    """

    manifest: Descriptor
    content: bytes
    config: bytes
    config_descriptor: Descriptor
    layers: tuple[Descriptor, ...]
    image: Image
    index: Descriptor | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    environment: tuple[str, ...] = ()
    diff_ids: Mapping[str, str] = field(default_factory=dict)
    directory: str = "/"


def find(registry: Source, target: str, arch: str) -> RemoteImage:
    """The image for an architecture under a tag or a digest.

    Raises `BadInput` if there is none for it, and `Refused` for what is no image.
    """
    top, document = registry.document(target)
    index = None
    if top.media_type == INDEX:
        index = top
        chosen = _of_architecture(document, arch, f"{registry.name}@{top.digest}")
        top, document = registry.document(chosen)
    if top.media_type != MANIFEST:
        raise Refused(f"{registry.name}@{top.digest}: {shown(top.media_type)} is no OCI image")
    where = f"{registry.name}@{top.digest}"
    config_at = Descriptor.read(document.get("config"), where)
    listed = document.get("layers")
    if not isinstance(listed, list) or len(listed) > LIMITS.layers:
        raise Refused(f"{where}: the manifest has no layers, or more than {LIMITS.layers}")
    config = registry.small_blob(config_at, _CONFIG_LIMIT)
    return _found(
        top,
        registry.manifest(top),
        config,
        config_at,
        tuple(Descriptor.read(layer, where) for layer in listed),
        index,
        arch,
        where,
    )


def _found(
    manifest: Descriptor,
    content: bytes,
    config: bytes,
    config_at: Descriptor,
    layers: tuple[Descriptor, ...],
    index: Descriptor | None,
    arch: str,
    where: str,
) -> RemoteImage:
    try:
        document = exact_json.parsed(config)
        inner = document.get("config") or {}
        labels = {str(key): str(text) for key, text in (inner.get("Labels") or {}).items()}
        environment = tuple(str(variable) for variable in inner.get("Env") or [])
        directory = str(inner.get("WorkingDir") or "/")
        diff_ids = _diff_ids(document.get("rootfs"), layers)
        known = architecture(str(document.get("architecture")))
        notes = exact_json.parsed(content).get("annotations") or {}
        created = notes.get(CREATED) or document.get("created")
        image = Image(
            digest=manifest.digest,
            architecture=known.name if known else str(document.get("architecture")),
            asked=arch,
            index=index.digest if index else "",
            created=time_of(created) if created else None,
        )
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise Refused(f"{where}: its configuration is no image's ({shown(str(error))})") from error
    return RemoteImage(
        manifest=manifest,
        content=content,
        config=config,
        config_descriptor=config_at,
        layers=layers,
        image=image,
        index=index,
        labels=labels,
        environment=environment,
        diff_ids=diff_ids,
        directory=directory,
    )


def _diff_ids(rootfs: Mapping[str, object], layers: Sequence[Descriptor]) -> dict[str, str]:
    """Return the diff_id of each layer in a configuration; raises `ValueError` without them."""
    named = rootfs["diff_ids"] if rootfs else []
    if not isinstance(named, list) or len(named) != len(layers) or not all(map(is_digest, named)):
        raise ValueError(f"it names other diff_ids than of {len(layers)} layers")
    diff_ids = {layer.digest: diff_id for layer, diff_id in zip(layers, named, strict=True)}
    if any(diff_ids[layer.digest] != diff_id for layer, diff_id in zip(layers, named, strict=True)):
        raise ValueError("it names two diff_ids of one layer")
    return diff_ids


def _of_architecture(index: Mapping[str, object], arch: str, where: str) -> Descriptor:
    """The one image for an architecture in an index."""
    listed = index.get("manifests")
    if not isinstance(listed, list) or len(listed) > LIMITS.layers:
        raise Refused(f"{where}: the index has no list of images, or more than {LIMITS.layers}")
    entries = [Descriptor.read(entry, where) for entry in listed]
    platform = ("linux", ARCHITECTURES[arch].oci)
    fitting = [
        entry
        for entry in entries
        if (entry.platform.get("os"), entry.platform.get("architecture")) == platform
    ]
    if not fitting:
        names = sorted({entry.platform.get("architecture", "") for entry in entries} - {""})
        known = [architecture(name) for name in names]
        available = ", ".join(
            item.name if item else shown(name) for item, name in zip(known, names, strict=True)
        )
        raise BadInput(
            f"{where}: there is no image for {arch}; there is {available or 'none'}",
            hint="name another architecture with --arch, or ask for the image to be built",
        )
    if len({entry.digest for entry in fitting}) > 1:
        raise Refused(f"{where}: {len(fitting)} images for {arch}, and nothing says which is meant")
    return fitting[0]


_MOST = 1000


def published(registry: Source, digest: str, artifact_format: str) -> tuple[Descriptor, ...]:
    """The files of a format that refer to an image; an image that was packed again has several.

    Whoever may write to the repository can make anything refer to an image: what is damaged, or has
    not just the one file, is left out and stops nothing.
    """
    kind = ARTIFACT_TYPES[artifact_format]
    refer = registry.referrers(digest, kind)
    if len(refer) > _MOST:
        raise Refused(
            f"{registry.name}@{digest}: {len(refer)} {artifact_format} files for it, at most "
            f"{_MOST} are looked at"
        )
    layers = {layer.digest: layer for layer in _files(registry, digest, refer)}
    return tuple(layer for layer in layers.values() if layer.media_type == kind)


def _files(registry: Source, digest: str, refer: tuple[Descriptor, ...]) -> Iterator[Descriptor]:
    for referrer in refer:
        try:
            _, document = registry.document(referrer)
            if (document.get("subject") or {}).get("digest") == digest:
                [layer] = document["layers"]
                yield Descriptor.read(layer, registry.name)
        except (WrongContent, NotThere, LookupError, TypeError, ValueError, AttributeError):
            continue


def contract_of(
    labels: Mapping[str, str], shown: str, host: Host, *, emulated: bool
) -> Contract | None:
    """Judge by its labels if an image runs on a host; None if they hold no contract.

    Runtimes and launchers are not asked for: what is pulled on one machine is started on others.
    Facts name what to take instead, which `check-host` tells; no answer depends on them.
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
    """A host as far as the choice of evidence needs it."""
    devices = host.gpu.devices
    numbers = [None] if devices is None else [device.capability for device in devices]
    known = tuple(number for number in numbers if number is not None)
    driver = host.gpu.driver
    return PulledFor(
        capabilities=None if None in numbers else known,
        driver=None if driver == NONE else driver,
    )
