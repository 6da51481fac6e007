"""Metadata of an image in its formats, compared as far as each of them can hold it.

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
from builder.build.engines import apptainer, charliecloud
from builder.facts.runtimes import SIF_SCRIPTS, VERSIONS
from builder.model import FAILED, Outcome, contract, scripts
from builder.model.architectures import ARCHITECTURES
from builder.model.exact_json import part
from builder.verify.container_output import LONGEST, one_line
from builder.verify.trees import FormatTree, equality

_CONTRACT = contract.IN_IMAGE.lstrip("/")
_SIF = ".singularity.d/"
_LABELS = f"{_SIF}labels.json"
_VARIABLES = f"{_SIF}env/10-docker2singularity.sh"
# Apptainer writes these for an image; they are compared line by line, or do nothing.
_OF_THE_IMAGE = frozenset(
    [
        *(_VARIABLES, apptainer.ENVIRONMENT_SCRIPT, _LABELS),
        *(f"{_SIF}{name}" for name in ("Singularity", "runscript", "runscript.help", "test")),
    ]
)
_SET_BY_APPTAINER = "org.label-schema."
# No key of https://github.com/opencontainers/image-spec/blob/v1.1.0/config.md
_DOCKERS = ("Healthcheck", "OnBuild", "Shell")
# These keys of a configuration say how programs are started.
_STARTED = ("Entrypoint", "Cmd", "User", "WorkingDir", "Volumes", "ExposedPorts", "StopSignal")


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """An image's formats: their files, and the contents of those files in them that describe it."""

    arch: str
    files: Mapping[str, Path]
    contents: Mapping[str, Mapping[str, bytes]]
    has_checks: bool = True


def metadata_faults(image: Described) -> list[str]:
    """Return where the formats of an image contradict each other; one line each, format first."""
    layout = read_layout(image.files["oci"]) if "oci" in image.contents else None
    return [
        f"{name}: {fault}"
        for name in image.files
        if name in image.contents
        for faults in (_contract_faults(image, name, layout), _FAULTS[name](image, layout))
        for fault in faults
    ]


def compared(
    trees: Mapping[str, FormatTree],
    broken: Mapping[str, str],
    files: Mapping[str, Path],
    *,
    arch: str,
    has_checks: bool,
) -> Outcome:
    """Compare the trees of all formats, and what they say of the image.

    `broken` are those that could not be read, and why.
    """
    equal = equality(trees, broken)
    contents = {name: tree.contents for name, tree in trees.items()}
    image = Described(arch=arch, files=files, contents=contents, has_checks=has_checks)
    faults = metadata_faults(image)
    if not faults:
        return equal
    before = [equal.reason] if equal.outcome == FAILED else []
    output = "\n".join(filter(None, [equal.output, *faults]))
    reason = one_line("; ".join([*before, *faults]))[:LONGEST]
    return dataclasses.replace(equal, outcome=FAILED, reason=reason, output=output)


def _oci_faults(image: Described, layout: Layout | None) -> Iterator[str]:
    arch = ARCHITECTURES.get(image.arch)
    yield from layout_faults(image.files["oci"], arch.oci if arch else image.arch)
    for key in _DOCKERS:
        if layout and part(layout.config, "config", key):
            yield f"its configuration has {key}, which is Docker's alone: other formats have none"


def _tarball_faults(image: Described, layout: Layout | None) -> Iterator[str]:
    text = image.contents["charliecloud"].get(charliecloud.ENVIRONMENT)
    expected = charliecloud.environment_text(layout.environment).encode() if layout else text
    if text is None or text != expected:
        yield f"/{charliecloud.ENVIRONMENT} does not have the variables of the image"


def _contract_faults(image: Described, name: str, layout: Layout | None) -> Iterator[str]:
    """Compare labels with the host contract in the file system; both may be missing."""
    if name == "oci" and layout:
        labels: Mapping[str, object] = labels_of(layout)
    elif name == "sif":
        labels = _json(image.contents["sif"].get(_LABELS))
    else:
        return
    actual = {key: str(text) for key, text in labels.items() if key.startswith(contract.LABEL)}
    try:
        document = json.loads(image.contents[name].get(_CONTRACT, b"{}"))
        expected = contract.labels_of_document(document)
    except (ValueError, TypeError, AttributeError):
        yield f"{contract.IN_IMAGE} is no contract"
        return
    if wrong := _unlike(actual, expected):
        yield f"labels are not those of {contract.IN_IMAGE}: {', '.join(wrong)}"


def _unlike(first: Mapping[str, object], second: Mapping[str, object]) -> list[str]:
    """Return the keys whose values differ."""
    return sorted(key for key in {*first, *second} if first.get(key) != second.get(key))


# ---- The SIF ----


def _sif_faults(image: Described, layout: Layout | None) -> Iterator[str]:
    contents, file = image.contents["sif"], image.files["sif"]
    objects, arch = sif.json_objects(file), sif.architecture_of(file)
    if arch != image.arch:
        yield f"its file system is for {arch}, expected {image.arch}"
    launch, header_arch = sif.launch_and_architecture(file)
    if launch != sif.LAUNCH:
        yield f"its first line is {launch!r}, expected {sif.LAUNCH!r}"
    if header_arch != arch:
        yield f"its header is for {header_arch}, and its file system for {arch}"
    yield from _script_faults(contents, _runscripts(layout), has_checks=image.has_checks)
    if layout:
        yield from _label_faults(contents, layout)
        yield from _variable_faults(contents, layout)
        yield from _configuration_faults(objects, layout)
    yield from _inspected_faults(contents, objects)


def _runscripts(layout: Layout | None) -> list[str]:
    """Return the run scripts that a SIF of this image may have."""
    if layout is None:
        return [scripts.RUNSCRIPT, scripts.OWN_RUNSCRIPT]
    settings = part(layout.config, "config")
    is_shell = part(settings, "Cmd") in (None, [], ["/bin/bash"])
    runs_own = part(settings, "Entrypoint") or not is_shell
    return [scripts.OWN_RUNSCRIPT if runs_own else scripts.RUNSCRIPT]


def _script_faults(
    contents: Mapping[str, bytes], runscripts: Collection[str], *, has_checks: bool
) -> Iterator[str]:
    runscript, test = (_lines(contents.get(f"{_SIF}{name}")) for name in ("runscript", "test"))
    if runscript and runscript not in [[line] for line in runscripts]:
        yield f"its runscript is another: {runscript[0]}"
    if test and (test != [scripts.TEST] or not has_checks):
        yield f"its test is another: {test[0]}"
    for path in sorted(contents):  # Apptainer's own scripts are the same in all SIFs
        digest = hashlib.sha256(contents[path]).hexdigest()
        if path in SIF_SCRIPTS and digest not in SIF_SCRIPTS[path]:
            yield f"/{path} is not what Apptainer ({VERSIONS}) writes"
        if path.startswith(_SIF) and path not in {*SIF_SCRIPTS, *_OF_THE_IMAGE}:
            yield f"/{path} is a file that Apptainer does not make"


def _variable_faults(contents: Mapping[str, bytes], layout: Layout) -> Iterator[str]:
    """Scripts run before every program, and may do as they like: so each line is compared."""
    own = apptainer.spoiled(layout.environment)
    others = {name: text for name, text in layout.environment.items() if name not in own}
    expected = {
        _VARIABLES: apptainer.environment_script(others),
        apptainer.ENVIRONMENT_SCRIPT: apptainer.variable_commands(own),
    }
    for path, lines in expected.items():
        actual = _lines(contents.get(path))
        if actual != lines:
            more = [line for line in actual if line not in lines][:1]
            yield f"/{path} does something else than to set the image's variables: {more}"


def _label_faults(contents: Mapping[str, bytes], layout: Layout) -> Iterator[str]:
    labels = _json(contents.get(_LABELS))
    unlike = _unlike(labels, labels_of(layout))
    if wrong := [key for key in unlike if not key.startswith(_SET_BY_APPTAINER)]:
        yield f"its labels are others: {', '.join(wrong)}"


def _configuration_faults(objects: Mapping[str, bytes], layout: Layout) -> Iterator[str]:
    """Compare Apptainer's copy of the configuration that it packed."""
    copy, settings = _json(objects.get("oci-config.json")), part(layout.config, "config") or {}
    for key in (*_STARTED, "Labels") if copy else ():
        if (copy.get(key) or None) != (settings.get(key) or None):
            yield f"its {key} is {copy.get(key)!r}, and the OCI layout's {settings.get(key)!r}"


def _inspected_faults(contents: Mapping[str, bytes], objects: Mapping[str, bytes]) -> Iterator[str]:
    """Compare the output of `apptainer inspect`, which is beside the file system, with that."""
    attributes = part(_json(objects.get("inspect-metadata.json")), "data", "attributes") or {}
    environment = attributes.get("environment", {})
    shown = {**attributes, **environment}
    paths = {name: f"{_SIF}{name}" for name in ("runscript", "test")}
    for name, path in (paths | {path: path.lstrip("/") for path in environment}).items():
        if name in shown and _lines(shown[name].encode()) != _lines(contents.get(path)):
            yield f"what inspect shows of {name} is not what is in it"
    labels = _json(contents.get(_LABELS))
    if attributes.get("labels", labels) != labels:
        yield "what inspect shows of its labels is not what is in it"


def _lines(script: bytes | None) -> list[str]:
    """Return the lines of a script that do something."""
    lines = [line.strip() for line in (script or b"").decode(errors="replace").split("\n")]
    return [line for line in lines if line and not line.startswith("#")]


def _json(data: bytes | None) -> dict[str, object]:
    try:
        value = json.loads(data or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


_FAULTS = {"oci": _oci_faults, "sif": _sif_faults, "charliecloud": _tarball_faults}
