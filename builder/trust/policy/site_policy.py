"""A site's policy: the trusted signers, and the proof that is required before a pull."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from builder.load.document import Faults, Node, Probe, note, parse, suggest
from builder.load.readers import (
    Reader,
    Table,
    architecture,
    described,
    list_of,
    matching,
    one_of,
    positive,
    record,
    text,
)
from builder.load.record_readers import capability, exactly
from builder.model.agreement import ALWAYS
from builder.model.errors import BadInput
from builder.model.versions import is_specifier
from builder.trust.proof.keys import is_key_text

_OF_THE_HARNESS = ("harness", "gpu-withheld")
_SHIPPED = (
    *("architecture", "libraries", "python3", "verbs", "host-contract", "mpi", "mpi4py"),
    *("horovod", "horovod-pytorch", "chainermn", "osu", "mlperf", "mlperf-coco", "mlperf-gnmt"),
    *("mlperf-maskrcnn", "mlperf-ssd", "mlperf-transformer", "lammps", "ml-stack", "ml-stack-gpu"),
    *("pytorch", "pytorch-gpu", "pytorch-parallel", "pytorch-parallel-gpu", "biggan"),
    *("tensorflow", "tensorflow-gpu", "tensorflow-training", "tensorflow-workers", "cuda-program"),
    *("jax", "jax-gpu", "jax-parallel", "hpcc", "fio", "memory-speed", "mpi-speed", "ucx"),
    *("cuda-clean", "cuda-runtime", "gpu-driver", "gpu-devices", "gpu-library", "gpu-found"),
    *("gpu-version", "gpu-code", "gpu-compute", "gpu-blas", "gpu-nccl", "gpu-mpi", "gpu-control"),
    *("gpu-sass", "gpu-ptx", "gpu-memory", "gpu-nccl-speed", "gpu-mpi-speed", "gpu-mpi-support"),
    *("gpu-gemm-double", "gpu-gemm-single", "gpu-gemm-tensor"),
)
_LAUNCHED = ("mpi-hybrid-mpirun", "mpi-hybrid-srun", "mpi-bind-mpirun", "mpi-bind-srun")
CHECK_NAMES = (*ALWAYS, *_SHIPPED, *_OF_THE_HARNESS, *_LAUNCHED)


SCHEMA = "build-images/policy/v1"
SAME = "same"  # as on the host that the image is pulled for
IGNORED, ACCEPTED, REFUSED, ENFORCED = "ignored", "accepted", "refused", "enforced"
MAX_AGE = dt.timedelta(days=90)


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """A trusted public key: its name in the policy, its file and the end of its trust."""

    name: str
    file: Path
    until: dt.datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """A trusted signer with certificates: a glob for the name, and the issuer of the identity.

    `roots` is a `trusted_root.json`: the trusted authorities and logs.
    """

    name: str
    issuer: str
    roots: Path
    until: dt.datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RequiredHosts:
    """The class of hosts whose evidence counts; an empty field is not compared.

    `capabilities` are compute capabilities (70 for 7.0): at least one GPU must have one of them;
    None means those of the host. `driver` is a PEP 440 specifier, or `same` (as the host's branch).
    """

    architectures: tuple[str, ...] = ()
    capabilities: tuple[int, ...] | None = ()
    driver: str = ""
    runtimes: tuple[str, ...] = ()
    launchers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RequiredEvidence:
    """The checks that must have passed, their maximum age, and the class of hosts.

    `max_index_age` is the maximum age of the package indices that the image was built with; None is
    no limit.
    """

    required: tuple[str, ...] = ALWAYS
    max_age: dt.timedelta = MAX_AGE
    max_index_age: dt.timedelta | None = None
    emulated: bool = False
    hosts: RequiredHosts = field(default_factory=RequiredHosts)


@dataclass(frozen=True, kw_only=True, slots=True)
class RequiredProvenance:
    """Globs for builder and source; one must match. Without globs, every value is accepted."""

    builders: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class RequiredBill:
    """Globs for forbidden packages (`NAME` and `NAME@VERSION`) and forbidden licences."""

    forbidden_packages: tuple[str, ...] = ()
    forbidden_licences: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """Requirements of a site for an image. A part that is None is not required.

    `keys` are the trusted signers; at least `signatures` of them must have signed the image.
    """

    keys: tuple[Key | Identity, ...]
    signatures: int = 1
    evidence: RequiredEvidence = field(default_factory=RequiredEvidence)
    provenance: RequiredProvenance | None = field(default_factory=RequiredProvenance)
    bill: RequiredBill | None = field(default_factory=RequiredBill)
    identity: bool = True
    host_contract: bool = True
    rollback: bool = True


T = TypeVar("T")
RUNNERS = (
    *("buildah", "podman", "docker", "apptainer", "charliecloud"),
    "user namespaces",  # of a kit
)
_AGE = re.compile(r"([1-9][0-9]{0,4})([hdw])")
_UNITS = {"h": dt.timedelta(hours=1), "d": dt.timedelta(days=1), "w": dt.timedelta(weeks=1)}
_texts = list_of(text, distinct=True)
_accepted = list_of(text, least=1, distinct=True)  # an empty one would accept everything


def read_policy(path: Path) -> Policy:
    """Read a policy file; raises `BadInput` with all its faults.

    Paths of key files start at the policy's folder, and the files must exist.
    """
    faults = Faults()
    node = parse(path, str(path), faults)
    policy = None if node is None else policy_of(node, faults, folder=path.parent)
    if policy is None or faults.found:
        raise BadInput.of(faults.found, "nothing was done")
    return policy


def policy_of(node: Node, faults: Faults, *, folder: Path | None = None) -> Policy:
    """Read a policy; faults are added to `faults`, and the result is not valid after a fault.

    With a `folder`, missing key files are faults, too.
    """
    required = {
        "schema": exactly(SCHEMA),
        "keys": described(
            "the signers that are trusted: keys, or identities",
            list_of(_signer(folder), least=1, distinct=True),
        ),
    }
    read = record(Policy, required, _OPTIONAL, fields={"schema": "", "sbom": "bill"})
    policy = read(node, faults)
    most = len(policy.keys)
    if isinstance(node.value, Mapping) and 0 < most < policy.signatures:
        problem = f"{policy.signatures} signatures are required, but there are {most} keys"
        where = node.value["signatures"].where
        faults.add(where, problem, f"valid: 1 to {most}, or name more keys")
    return policy


def _signer(folder: Path | None) -> Reader[Key | Identity]:
    """Return a reader of trusted signers: a key file, alone or with a day, or an identity."""
    read_file = _file(folder, "a public key in PEM (cosign.pub)")
    roots = _file(folder, "roots of Sigstore (trusted_root.json)")

    until = described("the last day on which it is trusted, in quotes", _day)

    def key(node: Node, faults: Faults) -> Key:
        return Key(name=text(node, Faults()), file=read_file(node, faults))

    def dated_key(file: Key, until: dt.datetime | None = None) -> Key:
        return replace(file, until=until)

    dated = record(dated_key, {"file": described("a public key in PEM", key)}, {"until": until})
    identity = record(
        Identity,
        {
            "identity": described("the signer: a URI or an address", text),
            "issuer": described("the URL of who vouches for the identity", text),
            "roots": described("a file with Sigstore's roots", roots),
        },
        {"until": until},
        fields={"identity": "name"},
    )

    def read(node: Node, faults: Faults) -> Key | Identity:
        if isinstance(node, Probe):
            empty = key(alone := node.child(), faults)
            dated(with_day := node.child(), faults)
            identity(certified := node.child(), faults)
            note(node, anyOf=[alone.schema, with_day.schema, certified.schema])
            return empty
        if not isinstance(node.value, Mapping):
            return key(node, faults)
        is_identity = node.value.keys() & {"identity", "issuer", "roots"}
        return identity(node, faults) if is_identity else dated(node, faults)

    return read


def _file(folder: Path | None, content: str) -> Reader[Path]:
    def read(node: Node, faults: Faults) -> Path:
        name = text(node, faults)
        file = (folder or Path()) / name
        if name and folder is not None and not file.is_file():
            valid = f"valid: a file with {content}; paths start at {folder}"
            shown = "(the text of a key)" if is_key_text(name) else file
            faults.add(node.where, f"no such file: {shown}", valid)
        return file

    return read


def _day(node: Node, faults: Faults) -> dt.datetime | None:
    """Read a day; return its end in UTC."""
    value = text(node, faults)
    note(node, pattern=r"^\d{4}-\d\d-\d\d$")
    try:
        day = dt.date.fromisoformat(value)
    except ValueError:
        if value:
            valid = 'valid: a day, in quotes: "2027-12-31"'
            faults.add(node.where, f'not a day: "{value}"', valid)
        return None
    return dt.datetime.combine(day, dt.time.max, tzinfo=dt.timezone.utc)


def _evidence(node: Node, faults: Faults) -> RequiredEvidence:
    optional = ("required", "own_checks", "max_age", "max_index_age", "emulated", "hosts")
    table = Table(node, faults, required=(), optional=optional)
    own = (
        table.read("own_checks", described("the names of the site's own checks", _texts), None)
        or ()
    )
    return RequiredEvidence(
        required=table.read(
            "required",
            described("the checks that must have passed", list_of(_check(own), distinct=True)),
            ALWAYS,
        ),
        max_age=table.read("max_age", described("the oldest evidence, such as 90d", _age), MAX_AGE),
        max_index_age=table.read(
            "max_index_age", described("the oldest package index, such as 30d", _age), None
        ),
        emulated=table.read(
            "emulated", described("evidence of an emulated run", _choice(ACCEPTED, REFUSED)), False
        ),
        hosts=table.read(
            "hosts", described("the hosts whose evidence counts", _hosts), RequiredHosts()
        ),
    )


def _check(own: Sequence[str]) -> Reader[str]:
    """Return a reader of check names: those of this project and the site's own."""

    def read(node: Node, faults: Faults) -> str:
        name, known = text(node, faults), (*CHECK_NAMES, *own)
        if name and name not in known:
            valid = f"{suggest(name, known)}; list your own checks under own_checks, too"
            faults.add(node.where, f'unknown check: "{name}"', valid)
        return name

    return read


def _age(node: Node, faults: Faults) -> dt.timedelta:
    value = text(node, faults)
    note(node, pattern=f"^{_AGE.pattern}$")
    match = _AGE.fullmatch(value)
    if value and not match:
        valid = "valid: a number of hours, days or weeks: 12h, 90d, 26w"
        faults.add(node.where, f'not a duration: "{value}"', valid)
    return int(match[1]) * _UNITS[match[2]] if match else MAX_AGE


def _driver(node: Node, faults: Faults) -> str:
    value = text(node, faults)
    if value == SAME:
        return value
    if not is_specifier(value):
        valid = f'valid: "{SAME}" (the host\'s driver branch), or versions: ">=525.60.13,<590"'
        faults.add(node.where, f'not a driver requirement: "{value}"', valid)
        return ""
    return value


def _choice(true: str, false: str) -> Reader[bool]:
    """Return a reader of one of two words."""
    word = one_of((true, false), "choice")

    def read(node: Node, faults: Faults) -> bool:
        return word(node, faults) == true

    return read


def _or_word(word: str, reader: Reader[T]) -> Reader[T | None]:
    """Return a reader that gives None for a word, and reads other values with `reader`."""

    def read(node: Node, faults: Faults) -> T | None:
        if isinstance(node, Probe):
            reader(child := node.child(), faults)
            note(node, anyOf=[{"const": word}, child.schema])
            return None
        return None if node.value == word else reader(node, faults)

    return read


_hosts = record(
    RequiredHosts,
    {},
    {
        "architectures": described(
            "their architectures", list_of(architecture, least=1, distinct=True)
        ),
        "capabilities": described(
            "their GPUs' compute capabilities, or same: those of this host",
            _or_word(SAME, list_of(capability, least=1, distinct=True)),
        ),
        "driver": described(
            "versions of NVIDIA's driver, or same: the branch of this host's", _driver
        ),
        "runtimes": described(
            "the container runtimes of the checks",
            list_of(one_of(RUNNERS, "container runtime"), least=1, distinct=True),
        ),
        "launchers": described("the launchers of the ranks", _accepted),
    },
)
_provenance = record(
    RequiredProvenance,
    {},
    {
        "builders": described("patterns of builders, of which one must match", _accepted),
        "sources": described("patterns of inputs of the build, of which one must match", _accepted),
    },
)
_package = matching(
    re.compile(r"[^\s=<>]+"),
    "is not a pattern of packages",
    "valid: NAME or NAME@VERSION, such as liblzma5@5.6.[01]*",
)
_packages = list_of(_package, distinct=True)
_bill = record(
    RequiredBill,
    {},
    {
        "forbidden_packages": described("patterns of NAME, or of NAME@VERSION", _packages),
        "forbidden_licences": described("patterns of licences", _texts),
    },
)
_OPTIONAL = {
    "signatures": described(
        "the number of signers that must have signed",
        positive("a number of signatures", "valid: a whole number, 1 or more"),
    ),
    "evidence": described("what the results of the checks must show", _evidence),
    "provenance": described(
        "what the provenance must say; ignored: it may be missing", _or_word(IGNORED, _provenance)
    ),
    "sbom": described(
        "what the bill of materials must not list; ignored: it may be missing",
        _or_word(IGNORED, _bill),
    ),
    "identity": described(
        "the image is of the recipe and cell of its name", _choice(ENFORCED, IGNORED)
    ),
    "host_contract": described("the image fits this host", _choice(ENFORCED, IGNORED)),
    "rollback": described(
        "an older image than the last one that was pulled", _choice(REFUSED, ACCEPTED)
    ),
}
