"""Comparison of an image's formats: the trees read from each artifact, and their metadata.

The configuration of the OCI layout is the reference. A SIF has a copy of it, its labels, and
scripts that set variables, start programs and run tests; a tarball has the variables.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import tarfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from builder.artifacts import flatten, oci, sif
from builder.artifacts.oci import Layout, labels_of, layout_faults, read_layout
from builder.artifacts.tree import (
    TreeEntry,
    comparable,
    differences,
    keeps_owners,
    owner_differences,
    tree_digest,
)
from builder.build.engines import Tools, apptainer, charliecloud
from builder.facts.software import SIF_SCRIPTS, VERSIONS
from builder.model import FAILED, PASSED, SKIPPED, Outcome, contract, planned
from builder.model.architectures import ARCHITECTURES
from builder.model.errors import StepFailed, first_of
from builder.model.exact_json import part
from builder.model.planned import environment_text
from builder.system.compression import DAMAGED
from builder.system.terminal import printable
from builder.verify.container_output import LONGEST

EQUALITY_CHECK = "formats-equal"
_SHOWN = 5
_AT_ONCE = 2  # each format needs one core to unpack and one to hash
# Errors of reading a layout in which a blob is missing or is of the wrong type.
_INCOMPLETE = (FileNotFoundError, KeyError, TypeError, ValueError)
_KEEP_OWNERS = frozenset(["oci", "charliecloud"])


@dataclass(frozen=True, kw_only=True)
class FormatTree:
    """The compared entries of one format.

    `artifact` is the digest (`sha256:…`) of the file that was read. Only a SIF has it here, since
    the other formats are hashed while they are written. `contents` are the contents of the files
    that describe the image, by path: variables, labels, scripts.
    """

    entries: Mapping[str, TreeEntry]
    artifact: str = ""
    contents: Mapping[str, bytes] = field(default_factory=dict)

    @functools.cached_property
    def digest(self) -> str:
        """The digest over the entries."""
        return tree_digest(self.entries)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadFormats:
    """The formats of an image after reading: files and trees by format.

    `broken` has the reasons why formats could not be read.
    """

    arch: str
    files: Mapping[str, Path]
    trees: Mapping[str, FormatTree]
    broken: Mapping[str, str] = field(default_factory=dict)

    def content(self, name: str, path: str) -> bytes | None:
        """Return the content of a file that describes the image, in one of the formats."""
        return self.trees[name].contents.get(path)


def read_formats(files: Mapping[str, Path], *, arch: str, work: Path, tools: Tools) -> ReadFormats:
    """Read the trees of an image's formats in parallel."""
    trees, broken = {}, {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        reading = {
            name: pool.submit(tree_of_artifact, name, path, work=work, tools=tools)
            for name, path in files.items()
        }
        try:
            for name, future in reading.items():
                try:
                    trees[name] = future.result()
                except StepFailed as error:
                    broken[name] = error.message
        except KeyboardInterrupt:  # which does not wait for the threads to end
            tools.processes.stop()
            raise
    return ReadFormats(arch=arch, files=files, trees=trees, broken=broken)


def tree_of_artifact(
    artifact_format: str, artifact: Path, *, work: Path, tools: Tools, below: str = ""
) -> FormatTree:
    """Read an OCI layout, a SIF or a tarball completely and return its tree.

    Of a SIF, only the folder `below` is read, if one is named.
    """
    contents: dict[str, bytes] = {}
    digest = hashlib.sha256()
    try:
        if artifact_format == "oci":
            entries = comparable(flatten.entries_of_layout(oci.read_layout(artifact), contents))
            return FormatTree(entries=entries, contents=contents)
        if artifact_format == "sif":
            opened = apptainer.tree_of(
                artifact, scratch=work, tools=tools, seen=digest.update, below=below
            )
        else:
            unpack = [tools.program("pigz"), "--decompress", "--stdout", str(artifact)]
            opened = tools.processes.reading_from(unpack)
        with opened as stream:
            entries = comparable(flatten.entries_of_tar(stream, contents))
    except (tarfile.TarError, *DAMAGED, EOFError, *_INCOMPLETE) as error:
        raise StepFailed(f"{artifact}: incomplete {artifact_format} artifact ({error})") from error
    sha256 = f"sha256:{digest.hexdigest()}" if artifact_format == "sif" else ""
    return FormatTree(entries=entries, artifact=sha256, contents=contents)


def equality(trees: Mapping[str, FormatTree], broken: Mapping[str, str] | None = None) -> Outcome:
    """Compare the trees of all formats; if they differ, the reason names the first such paths.

    `broken` has the reasons why formats could not be read. Owners are compared between the formats
    that store them.
    """
    if broken:
        reason = printable("; ".join(f"{name}: {why}" for name, why in broken.items()))
        return Outcome(check=EQUALITY_CHECK, outcome=FAILED, reason=reason)
    first, *others = trees
    if not others:
        reason = f"{first} is the only artifact: nothing to compare"
        return Outcome(check=EQUALITY_CHECK, outcome=SKIPPED, reason=reason)
    owners = [
        name for name, tree in trees.items() if name in _KEEP_OWNERS or keeps_owners(tree.entries)
    ]  # not a SIF, unless root packed it
    if lines := _unequal(trees, owners):
        return Outcome(
            check=EQUALITY_CHECK,
            outcome=FAILED,
            reason=first_of(lines, _SHOWN, "; "),
            output="\n".join(lines[:200]),
        )
    count, digest = len(trees[first].entries), trees[first].digest[:19]
    reason = f"{', '.join(trees)} hold the same {count} paths, {digest}"
    if len(owners) > 1:
        reason += f"; owners are the same in {' and '.join(owners)}"
    return Outcome(check=EQUALITY_CHECK, outcome=PASSED, reason=reason)


def _unequal(trees: Mapping[str, FormatTree], owners: Sequence[str]) -> list[str]:
    """Return the differences between the first format and each of the others, one per line.

    `owners` are the formats that store owners.
    """
    pairs = [(next(iter(trees)), name, differences) for name in [*trees][1:]]
    pairs = [pair for pair in pairs if trees[pair[0]].digest != trees[pair[1]].digest]
    pairs += [(owners[0], name, owner_differences) for name in owners[1:]]
    return [
        printable(f"{first} and {other}: {line}")
        for first, other, compare in pairs
        for line in compare(trees[first].entries, trees[other].entries)
    ]


# ---- Metadata ----

_CONTRACT = contract.IN_IMAGE.lstrip("/")
_SIF = ".singularity.d/"
_LABELS = f"{_SIF}labels.json"
_VARIABLES = f"{_SIF}env/10-docker2singularity.sh"
# Apptainer writes these for each image. They are compared line by line, or have no effect.
_OF_THE_IMAGE = frozenset(
    [
        *(_VARIABLES, apptainer.ENVIRONMENT_SCRIPT, _LABELS),
        *(f"{_SIF}{name}" for name in ("Singularity", "runscript", "runscript.help", "test")),
    ]
)
_SET_BY_APPTAINER = "org.label-schema."
# Not a key of https://github.com/opencontainers/image-spec/blob/v1.1.0/config.md
_DOCKERS = ("Healthcheck", "OnBuild", "Shell")
# These keys of a configuration say how programs are started.
_STARTED = ("Entrypoint", "Cmd", "User", "WorkingDir", "Volumes", "ExposedPorts", "StopSignal")


def compared(image: ReadFormats, *, has_checks: bool) -> Outcome:
    """Compare the trees and the metadata of all formats."""
    equal = equality(image.trees, image.broken)
    faults = metadata_faults(image, has_checks=has_checks)
    if not faults:
        return equal
    before = [equal.reason] if equal.outcome == FAILED else []
    output = "\n".join(filter(None, [equal.output, *faults]))
    reason = printable("; ".join([*before, *faults]))[:LONGEST]
    return dataclasses.replace(equal, outcome=FAILED, reason=reason, output=output)


def metadata_faults(image: ReadFormats, *, has_checks: bool = True) -> list[str]:
    """Return how the formats of an image contradict each other; one line each, format first."""
    layout = read_layout(image.files["oci"]) if "oci" in image.trees else None
    faults = []
    for name in image.trees:
        if name == "oci":
            own = _oci_faults(image, layout)
        elif name == "sif":
            own = _sif_faults(image, layout, has_checks=has_checks)
        else:
            own = _tarball_faults(image, layout)
        faults += [f"{name}: {fault}" for fault in _contract_faults(image, name, layout)]
        faults += [f"{name}: {fault}" for fault in own]
    return faults


def _oci_faults(image: ReadFormats, layout: Layout | None) -> Iterator[str]:
    arch = ARCHITECTURES.get(image.arch)
    yield from layout_faults(image.files["oci"], arch.oci if arch else image.arch)
    for key in _DOCKERS:
        if layout and part(layout.config, "config", key):
            yield f"its configuration has {key}, which only Docker supports"


def _tarball_faults(image: ReadFormats, layout: Layout | None) -> Iterator[str]:
    text = image.content("charliecloud", charliecloud.ENVIRONMENT)
    expected = environment_text(layout.environment).encode() if layout else text
    if text is None or text != expected:
        yield f"/{charliecloud.ENVIRONMENT} does not have the variables of the image"


def _contract_faults(image: ReadFormats, name: str, layout: Layout | None) -> Iterator[str]:
    """Compare labels with the host contract in the file system; either may be missing."""
    if name == "oci" and layout:
        labels: Mapping[str, object] = labels_of(layout)
    elif name == "sif":
        labels = _json(image.content("sif", _LABELS))
    else:
        return
    actual = {key: str(text) for key, text in labels.items() if key.startswith(contract.LABEL)}
    try:
        document = json.loads(image.content(name, _CONTRACT) or b"{}")
        expected = contract.labels_of_document(document)
    except (ValueError, TypeError, AttributeError):
        yield f"{contract.IN_IMAGE} is not a host contract"
        return
    if wrong := _unlike(actual, expected):
        yield f"labels differ from {contract.IN_IMAGE}: {', '.join(wrong)}"


def _unlike(first: Mapping[str, object], second: Mapping[str, object]) -> list[str]:
    return sorted(key for key in {*first, *second} if first.get(key) != second.get(key))


# ---- The SIF ----


def _sif_faults(image: ReadFormats, layout: Layout | None, *, has_checks: bool) -> Iterator[str]:
    contents, file = image.trees["sif"].contents, image.files["sif"]
    objects, arch = sif.json_objects(file), sif.architecture_of(file)
    if arch != image.arch:
        yield f"its file system is for {arch}, expected {image.arch}"
    launch, header_arch = sif.launch_and_architecture(file)
    if launch != sif.LAUNCH:
        yield f"its first line is {launch!r}, expected {sif.LAUNCH!r}"
    if header_arch != arch:
        yield f"its header is for {header_arch}, but its file system is for {arch}"
    yield from _script_faults(contents, _runscripts(layout), has_checks=has_checks)
    if layout:
        yield from _label_faults(contents, layout)
        yield from _variable_faults(contents, layout)
        yield from _configuration_faults(objects, layout)
    yield from _inspected_faults(contents, objects)


def _runscripts(layout: Layout | None) -> list[str]:
    if layout is None:
        return [planned.RUNSCRIPT, planned.OWN_RUNSCRIPT]
    settings = part(layout.config, "config")
    is_shell = part(settings, "Cmd") in (None, [], ["/bin/bash"])
    runs_own = part(settings, "Entrypoint") or not is_shell
    return [planned.OWN_RUNSCRIPT if runs_own else planned.RUNSCRIPT]


def _script_faults(
    contents: Mapping[str, bytes], runscripts: Collection[str], *, has_checks: bool
) -> Iterator[str]:
    runscript, test = (_lines(contents.get(f"{_SIF}{name}")) for name in ("runscript", "test"))
    if runscript and runscript not in [[line] for line in runscripts]:
        yield f"unexpected runscript: {runscript[0]}"
    if test and (test != [planned.TEST] or not has_checks):
        yield f"unexpected test script: {test[0]}"
    for name in ("runscript", "test"):
        script = contents.get(f"{_SIF}{name}")
        if script and script.split(b"\n", 1)[0] != b"#!/bin/sh":
            yield f"/{_SIF}{name} does not begin with #!/bin/sh"
    for path in sorted(contents):  # Apptainer's own scripts are the same in all SIFs
        digest = hashlib.sha256(contents[path]).hexdigest()
        if path in SIF_SCRIPTS and digest not in SIF_SCRIPTS[path]:
            yield f"/{path} differs from the one that Apptainer ({VERSIONS}) writes"
        if path.startswith(_SIF) and path not in {*SIF_SCRIPTS, *_OF_THE_IMAGE}:
            yield f"/{path} is a file that Apptainer does not write"


def _variable_faults(contents: Mapping[str, bytes], layout: Layout) -> Iterator[str]:
    """Compare each line of the scripts that run before every program, as they may do anything."""
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
            yield f"/{path} does not set exactly the image's variables: {more}"


def _label_faults(contents: Mapping[str, bytes], layout: Layout) -> Iterator[str]:
    labels = _json(contents.get(_LABELS))
    unlike = _unlike(labels, labels_of(layout))
    if wrong := [key for key in unlike if not key.startswith(_SET_BY_APPTAINER)]:
        yield f"its labels differ from those of the OCI layout: {', '.join(wrong)}"


def _configuration_faults(objects: Mapping[str, bytes], layout: Layout) -> Iterator[str]:
    """Compare Apptainer's copy of the configuration with that of the layout."""
    copy, settings = _json(objects.get("oci-config.json")), part(layout.config, "config") or {}
    for key in (*_STARTED, "Labels") if copy else ():
        if (copy.get(key) or None) != (settings.get(key) or None):
            yield f"its {key} is {copy.get(key)!r}, but {settings.get(key)!r} in the OCI layout"


def _inspected_faults(contents: Mapping[str, bytes], objects: Mapping[str, bytes]) -> Iterator[str]:
    """Compare the data of `apptainer inspect`, stored beside the file system, with the latter."""
    attributes = part(_json(objects.get("inspect-metadata.json")), "data", "attributes") or {}
    environment = attributes.get("environment", {})
    shown = {**attributes, **environment}
    paths = {name: f"{_SIF}{name}" for name in ("runscript", "test")}
    for name, path in (paths | {path: path.lstrip("/") for path in environment}).items():
        if name in shown and _lines(shown[name].encode()) != _lines(contents.get(path)):
            yield f"{name} in `apptainer inspect` differs from that in the image"
    labels = _json(contents.get(_LABELS))
    if attributes.get("labels", labels) != labels:
        yield "labels in `apptainer inspect` differ from those in the image"


def _lines(script: bytes | None) -> list[str]:
    lines = [line.strip() for line in (script or b"").decode(errors="replace").split("\n")]
    return [line for line in lines if line and not line.startswith("#")]


def _json(data: bytes | None) -> dict[str, object]:
    try:
        value = json.loads(data or b"")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
