"""What formats say of an image beside its files: compared, as far as each of them can hold it.

The configuration of the OCI layout is what the others are held against. A SIF has a copy of it, its
labels, and scripts that set variables, start programs and run tests; a tarball has the variables.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.artifacts import sif
from builder.artifacts.oci import Layout, labels_of, layout_faults, read_layout
from builder.build.engines import charliecloud, sif_environment
from builder.facts.runtimes import SIF_SCRIPTS, VERSIONS
from builder.model import FAILED, Outcome, contract, planned
from builder.model.architectures import ARCHITECTURES
from builder.model.exact_json import part
from builder.verify.container_output import LONGEST, one_line
from builder.verify.trees import FormatTree, equality

_CONTRACT = contract.IN_IMAGE.lstrip("/")
_SIF_ENVIRONMENT = ".singularity.d/env/"
_VARIABLES = f"{_SIF_ENVIRONMENT}10-docker2singularity.sh"
# What Apptainer writes for an image, which is compared line by line or does nothing.
_OF_THE_IMAGE = frozenset(
    [
        *(_VARIABLES, sif_environment.SCRIPT),
        *(
            f".singularity.d/{name}"
            for name in ("Singularity", "runscript", "runscript.help", "test", "labels.json")
        ),
    ]
)
_SET_BY_APPTAINER = "org.label-schema."
# No key of https://github.com/opencontainers/image-spec/blob/v1.1.0/config.md
_DOCKERS = ("Healthcheck", "OnBuild", "Shell")
# What of a configuration says how programs are started.
_STARTED = ("Entrypoint", "Cmd", "User", "WorkingDir", "Volumes", "ExposedPorts", "StopSignal")


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """What is known of an image's formats: their files, and the contents that describe it."""

    arch: str
    files: Mapping[str, Path]
    kept: Mapping[str, Mapping[str, bytes]]
    has_checks: bool = True


def metadata_faults(image: Described) -> list[str]:
    """Where the formats of an image say different things of it; one line each, format first."""
    layout = _layout(image)
    found = {
        name: [*_contract_faults(image, name, layout), *_FAULTS[name](image, layout)]
        for name in image.files
        if name in image.kept
    }
    return [f"{name}: {fault}" for name, faults in found.items() for fault in faults]


def compared(
    trees: Mapping[str, FormatTree],
    broken: Mapping[str, str],
    files: Mapping[str, Path],
    *,
    arch: str,
    has_checks: bool,
) -> Outcome:
    """Return whether all formats hold the same tree, and say the same of the image.

    `broken` are those that could not be read, and why.
    """
    equal = equality(trees, broken)
    kept = {name: tree.kept for name, tree in trees.items()}
    faults = metadata_faults(Described(arch=arch, files=files, kept=kept, has_checks=has_checks))
    if not faults:
        return equal
    before = [equal.reason] if equal.outcome == FAILED else []
    output = "\n".join(filter(None, [equal.output, *faults]))
    reason = one_line("; ".join([*before, *faults]))[:LONGEST]
    return dataclasses.replace(equal, outcome=FAILED, reason=reason, output=output)


def _layout(image: Described) -> Layout | None:
    return read_layout(image.files["oci"]) if "oci" in image.kept else None


def _oci_faults(image: Described, layout: Layout | None) -> Iterator[str]:
    arch = ARCHITECTURES.get(image.arch)
    yield from layout_faults(image.files["oci"], arch.oci if arch else image.arch)
    settings = part(layout.config, "config") if layout else None
    for key in _DOCKERS:
        if part(settings, key):
            yield f"its configuration has {key}, which is Docker's alone: other formats have none"


def _tarball_faults(image: Described, layout: Layout | None) -> Iterator[str]:
    text = image.kept["charliecloud"].get(charliecloud.ENVIRONMENT)
    expected = charliecloud.environment_text(layout.environment).encode() if layout else text
    if text is None or text != expected:
        yield f"/{charliecloud.ENVIRONMENT} does not have the variables of the image"


# ---- The host contract ----


def _contract_faults(image: Described, name: str, layout: Layout | None) -> Iterator[str]:
    """Whether the labels are those of the contract in the file system; both may be missing."""
    text = image.kept[name].get(_CONTRACT, b"{}")
    labels = _labels(image, name, layout)
    if labels is None:
        return
    told = {key: value for key, value in labels.items() if key.startswith(contract.LABEL)}
    try:
        expected = contract.labels_of_document(json.loads(text))
    except (ValueError, TypeError, AttributeError):
        yield f"{contract.IN_IMAGE} is no contract"
        return
    wrong = sorted(
        key for key in told.keys() | expected.keys() if told.get(key) != expected.get(key)
    )
    if wrong:
        yield f"labels are not those of {contract.IN_IMAGE}: {', '.join(wrong)}"


def _labels(image: Described, name: str, layout: Layout | None) -> Mapping[str, str] | None:
    if name == "oci" and layout:
        return labels_of(layout)
    if name != "sif":
        return None
    labels = _json(image.kept["sif"].get(".singularity.d/labels.json"))
    return {key: str(text) for key, text in labels.items()}


# ---- The SIF ----


def _sif_faults(image: Described, layout: Layout | None) -> Iterator[str]:
    kept, objects = image.kept["sif"], sif.json_objects(image.files["sif"])
    arch = sif.architecture_of(image.files["sif"])
    if arch != image.arch:
        yield f"its file system is for {arch}, expected {image.arch}"
    launch, said = sif.launch_and_architecture(image.files["sif"])
    if launch != sif.LAUNCH:
        yield f"its first line is {launch!r}, expected {sif.LAUNCH!r}"
    if said != arch:
        yield f"its header is for {said}, and its file system for {arch}"
    yield from _script_faults(kept, _runscripts(layout), has_checks=image.has_checks)
    if layout:
        yield from _label_faults(kept, layout)
        yield from _variable_faults(kept, layout)
        yield from _configuration_faults(objects, layout)
    yield from _inspected_faults(kept, objects)


def _runscripts(layout: Layout | None) -> list[str]:
    """The run scripts that a SIF of this image may have."""
    if layout is None:
        return [planned.RUNSCRIPT, planned.OWN_RUNSCRIPT]
    settings = part(layout.config, "config")
    runs_own = part(settings, "Entrypoint") or part(settings, "Cmd") not in (
        None,
        [],
        ["/bin/bash"],
    )
    return [planned.OWN_RUNSCRIPT if runs_own else planned.RUNSCRIPT]


def _script_faults(
    kept: Mapping[str, bytes], runscripts: Collection[str], *, has_checks: bool
) -> Iterator[str]:
    runscript, test = (_lines(kept.get(f".singularity.d/{name}")) for name in ("runscript", "test"))
    if runscript and runscript not in [[line] for line in runscripts]:
        yield f"its runscript is another: {runscript[0]}"
    if test and (test != [planned.TEST] or not has_checks):
        yield f"its test is another: {test[0]}"
    yield from _own_faults(kept)


def _own_faults(kept: Mapping[str, bytes]) -> Iterator[str]:
    """Files beside those of the image: Apptainer's own, which are the same in all SIFs."""
    for path in sorted(kept):
        if path in SIF_SCRIPTS and hashlib.sha256(kept[path]).hexdigest() not in SIF_SCRIPTS[path]:
            yield f"/{path} is not what Apptainer ({VERSIONS}) writes"
        if path.startswith(".singularity.d/") and path not in {*SIF_SCRIPTS, *_OF_THE_IMAGE}:
            yield f"/{path} is a file that Apptainer does not make"


def _variable_faults(kept: Mapping[str, bytes], layout: Layout) -> Iterator[str]:
    """Scripts run before every program, and may do as they like: so each line is compared."""
    own = sif_environment.spoiled(layout.environment)
    others = {name: text for name, text in layout.environment.items() if name not in own}
    expected = {
        _VARIABLES: sif_environment.script(others),
        sif_environment.SCRIPT: sif_environment.commands(own),
    }
    for path, lines in expected.items():
        more = [line for line in _lines(kept.get(path)) if line not in lines]
        if more or _lines(kept.get(path)) != lines:
            yield f"/{path} does something else than to set the image's variables: {more[:1]}"


def _label_faults(kept: Mapping[str, bytes], layout: Layout) -> Iterator[str]:
    labels = labels_of(layout)
    found = _json(kept.get(".singularity.d/labels.json"))
    own = {key: text for key, text in found.items() if not key.startswith(_SET_BY_APPTAINER)}
    expected = {key: text for key, text in labels.items() if not key.startswith(_SET_BY_APPTAINER)}
    if wrong := sorted(key for key in {*own, *expected} if own.get(key) != expected.get(key)):
        yield f"its labels are others: {', '.join(wrong)}"


def _configuration_faults(objects: Mapping[str, bytes], layout: Layout) -> Iterator[str]:
    """Apptainer keeps a copy of the configuration that it packed."""
    copy, settings = _json(objects.get("oci-config.json")), part(layout.config, "config") or {}
    for key in (*_STARTED, "Labels") if copy else ():
        if (copy.get(key) or None) != (settings.get(key) or None):
            yield f"its {key} is {copy.get(key)!r}, and the OCI layout's {settings.get(key)!r}"


def _inspected_faults(kept: Mapping[str, bytes], objects: Mapping[str, bytes]) -> Iterator[str]:
    """What `apptainer inspect` prints is beside the file system, and has to be what is in it."""
    attributes = part(_json(objects.get("inspect-metadata.json")), "data", "attributes") or {}
    inside = {name: kept.get(f".singularity.d/{name}") for name in ("runscript", "test")}
    inside |= {path: kept.get(path.lstrip("/")) for path in attributes.get("environment", {})}
    shown = {**attributes, **attributes.get("environment", {})}
    for name, text in inside.items():
        if name in shown and _lines(shown[name].encode()) != _lines(text):
            yield f"what inspect shows of {name} is not what is in it"
    labels = _json(kept.get(".singularity.d/labels.json"))
    if attributes.get("labels", labels) != labels:
        yield "what inspect shows of its labels is not what is in it"


def _lines(script: bytes | None) -> list[str]:
    """The lines of a script that do something."""
    lines = (script or b"").decode(errors="replace").split("\n")
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def _json(data: bytes | None) -> dict[str, object]:
    try:
        value = json.loads(data or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


_FAULTS = {"oci": _oci_faults, "sif": _sif_faults, "charliecloud": _tarball_faults}
