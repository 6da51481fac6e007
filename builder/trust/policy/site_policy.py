"""A site's policy as values: whom it trusts, and what must be proven before an image is taken."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from builder.load.document import Node, Probe, note, parse
from builder.load.faults import Faults, suggest
from builder.load.readers import Reader, Table, architecture, list_of, one_of, text
from builder.load.record_readers import capability, exactly
from builder.model.errors import BadInput
from builder.model.versions import is_specifier

ALWAYS_REQUIRED = ("formats-equal", "environment")  # what every verification finds
_OF_THE_HARNESS = ("harness", "gpu-withheld")
_SHIPPED = (
    *("architecture", "libraries", "python3", "verbs", "host-contract", "mpi", "mpi4py"),
    *("horovod", "chainermn", "osu", "mlperf", "mlperf-coco", "mlperf-gnmt", "mlperf-maskrcnn"),
    *("mlperf-ssd", "mlperf-transformer"),
    *("pytorch", "pytorch-gpu", "pytorch-parallel", "pytorch-parallel-gpu", "biggan"),
    *("tensorflow", "tensorflow-gpu", "hpcc", "fio", "memory-speed", "mpi-speed", "ucx"),
    *("cuda-clean", "cuda-runtime", "gpu-driver", "gpu-devices", "gpu-library", "gpu-found"),
    *("gpu-version", "gpu-code", "gpu-compute", "gpu-blas", "gpu-nccl", "gpu-mpi", "gpu-control"),
)
_LAUNCHED = ("mpi-hybrid-mpirun", "mpi-hybrid-srun", "mpi-bind-mpirun", "mpi-bind-srun")
CHECK_NAMES = (*ALWAYS_REQUIRED, *_SHIPPED, *_OF_THE_HARNESS, *_LAUNCHED)


SCHEMA = "build-images/policy/v1"
SAME = "same"  # as on the host that the image is pulled for
IGNORED, ACCEPTED, REFUSED, ENFORCED = "ignored", "accepted", "refused", "enforced"
MAX_AGE = dt.timedelta(days=90)


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """A trusted public key: its file, how the policy names it, and until when it is trusted."""

    name: str
    file: Path
    until: dt.datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Somebody who signs by certificates: a glob over their names, and who knows them by these.

    `roots` is a `trusted_root.json`: the authorities and logs that are believed.
    """

    name: str
    issuer: str
    roots: Path
    until: dt.datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WantedHosts:
    """The class of hosts whose evidence counts; what is empty is not asked.

    `capabilities` are compute capabilities (70 for 7.0) of which one GPU must have one, or None for
    those of the host. `driver` is a PEP 440 specifier, or `same`: of the host's driver branch.
    """

    architectures: tuple[str, ...] = ()
    capabilities: tuple[int, ...] | None = ()
    driver: str = ""
    runtimes: tuple[str, ...] = ()
    launchers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class WantedEvidence:
    """Which checks must have passed, how long ago at most, and on which hosts.

    `max_index_age` is how old the package indices may be that the image was made with; None is not
    asked.
    """

    required: tuple[str, ...] = ALWAYS_REQUIRED
    max_age: dt.timedelta = MAX_AGE
    max_index_age: dt.timedelta | None = None
    emulated: bool = False
    hosts: WantedHosts = field(default_factory=WantedHosts)


@dataclass(frozen=True, kw_only=True, slots=True)
class WantedProvenance:
    """Globs, of which one must match; any builder or source will do where there are none."""

    builders: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class WantedBill:
    """Globs over the names of packages (and `NAME@VERSION`), and over licences."""

    forbidden_packages: tuple[str, ...] = ()
    forbidden_licences: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What a site asks of an image. A part that is None is not asked for.

    `keys` are those who are trusted; `signatures` is how many of them must have signed the image.
    """

    keys: tuple[Key | Identity, ...]
    signatures: int = 1
    evidence: WantedEvidence = field(default_factory=WantedEvidence)
    provenance: WantedProvenance | None = field(default_factory=WantedProvenance)
    bill: WantedBill | None = field(default_factory=WantedBill)
    identity: bool = True
    host_contract: bool = True
    rollback: bool = True


T = TypeVar("T")
RUNNERS = ("buildah", "podman", "docker", "apptainer", "charliecloud")
_AGE = re.compile(r"([1-9][0-9]{0,4})([hdw])")
_UNITS = {"h": dt.timedelta(hours=1), "d": dt.timedelta(days=1), "w": dt.timedelta(weeks=1)}
_OF_IDENTITIES = ("identity", "issuer", "roots")
_texts = list_of(text, distinct=True)


def read_policy(path: Path) -> Policy:
    """The policy in a file; raises `BadInput` with all that is wrong in it.

    The files of keys are named from the policy's folder, and must be there.
    """
    faults = Faults()
    node = parse(path, str(path), faults)
    policy = None if node is None else policy_of(node, faults, folder=path.parent)
    if policy is None or faults.found:
        raise BadInput.of(faults.found, "nothing was done")
    return policy


def policy_of(node: Node, faults: Faults, *, folder: Path | None = None) -> Policy:
    """A policy; whatever is wrong is noted, and the result is then not to be used.

    Whether the files of keys are there is looked at if the `folder` is given.
    """
    optional = (
        *("signatures", "evidence", "provenance", "sbom"),
        *("identity", "host_contract", "rollback"),
    )
    provenance: WantedProvenance | None = WantedProvenance()
    bill: WantedBill | None = WantedBill()
    table = Table(node, faults, required=("schema", "keys"), optional=optional)
    table.read("schema", exactly(SCHEMA), "")
    policy = Policy(
        keys=table.read("keys", list_of(_key(folder), least=1, distinct=True), ()),
        signatures=table.read("signatures", _signatures, 1),
        evidence=table.read("evidence", _evidence, WantedEvidence()),
        provenance=table.read("provenance", _or_ignored(_provenance), provenance),
        bill=table.read("sbom", _or_ignored(_bill), bill),
        identity=table.read("identity", _choice(ENFORCED, IGNORED), True),
        host_contract=table.read("host_contract", _choice(ENFORCED, IGNORED), True),
        rollback=table.read("rollback", _choice(REFUSED, ACCEPTED), True),
    )
    entry = table.entry("signatures")
    if entry is not None and policy.keys and policy.signatures > len(policy.keys):
        problem = f"{policy.signatures} signatures are asked for, by {len(policy.keys)} keys"
        faults.add(entry.where, problem, f"valid: 1 to {len(policy.keys)}, or name more keys")
    return policy


def _key(folder: Path | None) -> Reader[Key | Identity]:
    """A reader of whom to trust: a key's file, alone or with a day, or an identity."""
    file = _key_file(folder)
    identity = _identity(folder)

    def dated(node: Node, faults: Faults) -> Key:
        table = Table(node, faults, required=("file",), optional=("until",))
        never: dt.datetime | None = None
        known = table.read("file", file, Key(name="", file=Path()))
        return replace(known, until=table.read("until", _day, never))

    def read(node: Node, faults: Faults) -> Key | Identity:
        if isinstance(node, Probe):
            file(alone := node.child(), faults)
            dated(with_day := node.child(), faults)
            identity(certified := node.child(), faults)
            note(node, anyOf=[alone.schema, with_day.schema, certified.schema])
            return Key(name="", file=Path())
        if not isinstance(node.value, Mapping):
            return file(node, faults)
        return (
            identity(node, faults)
            if node.value.keys() & set(_OF_IDENTITIES)
            else dated(node, faults)
        )

    return read


def _key_file(folder: Path | None) -> Reader[Key]:
    named = _file(folder, "a public key in PEM (cosign.pub)")

    def read(node: Node, faults: Faults) -> Key:
        return Key(name=text(node, Faults()), file=named(node, faults))

    return read


def _identity(folder: Path | None) -> Reader[Identity]:
    """A reader of somebody who signs by certificates."""
    roots = _file(folder, "roots of Sigstore (trusted_root.json)")

    def read(node: Node, faults: Faults) -> Identity:
        table = Table(node, faults, required=_OF_IDENTITIES, optional=("until",))
        never: dt.datetime | None = None
        return Identity(
            name=table.read("identity", text, ""),
            issuer=table.read("issuer", text, ""),
            roots=table.read("roots", roots, Path()),
            until=table.read("until", _day, never),
        )

    return read


def _file(folder: Path | None, what: str) -> Reader[Path]:
    def read(node: Node, faults: Faults) -> Path:
        name = text(node, faults)
        file = (folder or Path()) / name
        if name and folder is not None and not file.is_file():
            valid = f"valid: a file with {what}, named from {folder}"
            faults.add(node.where, f"there is no such file: {file}", valid)
        return file

    return read


def _day(node: Node, faults: Faults) -> dt.datetime | None:
    """The end of a day in UTC."""
    value = text(node, faults)
    note(node, pattern=r"^\d{4}-\d\d-\d\d$")
    try:
        day = dt.date.fromisoformat(value)
    except ValueError:
        if value:
            valid = 'valid: a day, in quotes: "2027-12-31"'
            faults.add(node.where, f'"{value}" is no day', valid)
        return None
    return dt.datetime.combine(day, dt.time.max, tzinfo=dt.timezone.utc)


def _signatures(node: Node, faults: Faults) -> int:
    note(node, type="integer", minimum=1)
    if isinstance(node.value, int) and not isinstance(node.value, bool) and node.value >= 1:
        return node.value
    problem = f"expected a number of signatures, found {node.describe()}"
    faults.add(node.where, problem, "valid: a whole number from 1 on")
    return 1


def _evidence(node: Node, faults: Faults) -> WantedEvidence:
    optional = ("required", "own_checks", "max_age", "max_index_age", "emulated", "hosts")
    any_age: dt.timedelta | None = None
    table = Table(node, faults, required=(), optional=optional)
    nothing: tuple[str, ...] = ()
    own = table.read("own_checks", _texts, nothing)
    return WantedEvidence(
        required=table.read("required", list_of(_check(own), distinct=True), ALWAYS_REQUIRED),
        max_age=table.read("max_age", _age, MAX_AGE),
        max_index_age=table.read("max_index_age", _age, any_age),
        emulated=table.read("emulated", _choice(ACCEPTED, REFUSED), False),
        hosts=table.read("hosts", _hosts, WantedHosts()),
    )


def _check(own: Sequence[str]) -> Reader[str]:
    """A reader of a check's name: one of this project's, or one that a site says is its own."""

    def read(node: Node, faults: Faults) -> str:
        name, known = text(node, faults), (*CHECK_NAMES, *own)
        if name and name not in known:
            valid = f"{suggest(name, known)}; a check of your own is named under own_checks, too"
            faults.add(node.where, f'"{name}" is no check', valid)
        return name

    return read


def _age(node: Node, faults: Faults) -> dt.timedelta:
    value = text(node, faults)
    note(node, pattern=f"^{_AGE.pattern}$")
    found = _AGE.fullmatch(value)
    if value and not found:
        valid = "valid: a number of hours, days or weeks: 12h, 90d, 26w"
        faults.add(node.where, f'"{value}" is no length of time', valid)
    return int(found[1]) * _UNITS[found[2]] if found else MAX_AGE


def _hosts(node: Node, faults: Faults) -> WantedHosts:
    optional = ("architectures", "capabilities", "driver", "runtimes", "launchers")
    table = Table(node, faults, required=(), optional=optional)
    runners = list_of(one_of(RUNNERS, "container runtime"), distinct=True)
    any_gpu: tuple[int, ...] | None = ()
    return WantedHosts(
        architectures=table.read("architectures", list_of(architecture, distinct=True), ()),
        capabilities=table.read("capabilities", _capabilities, any_gpu),
        driver=table.read("driver", _driver, ""),
        runtimes=table.read("runtimes", runners, ()),
        launchers=table.read("launchers", _texts, ()),
    )


def _capabilities(node: Node, faults: Faults) -> tuple[int, ...] | None:
    several = list_of(capability, distinct=True)
    if isinstance(node, Probe):
        several(child := node.child(), faults)
        note(node, anyOf=[{"const": SAME}, child.schema])
        return ()
    if node.value == SAME:
        return None
    return tuple(one for one in several(node, faults) if one is not None)


def _driver(node: Node, faults: Faults) -> str:
    value = text(node, faults)
    if value == SAME:
        return value
    if not is_specifier(value):
        valid = f'valid: "{SAME}" (the host\'s driver branch), or versions: ">=525.60.13,<590"'
        faults.add(node.where, f'"{value}" says nothing about a driver', valid)
        return ""
    return value


def _provenance(node: Node, faults: Faults) -> WantedProvenance:
    table = Table(node, faults, required=(), optional=("builders", "sources"))
    return WantedProvenance(
        builders=table.read("builders", _texts, ()), sources=table.read("sources", _texts, ())
    )


def _bill(node: Node, faults: Faults) -> WantedBill:
    optional = ("forbidden_packages", "forbidden_licences")
    table = Table(node, faults, required=(), optional=optional)
    return WantedBill(
        forbidden_packages=table.read("forbidden_packages", _texts, ()),
        forbidden_licences=table.read("forbidden_licences", _texts, ()),
    )


def _choice(true: str, false: str) -> Reader[bool]:
    """A reader of one of two words."""
    word = one_of((true, false), "choice here")

    def read(node: Node, faults: Faults) -> bool:
        return word(node, faults) == true

    return read


def _or_ignored(reader: Reader[T]) -> Reader[T | None]:
    """A reader of a mapping, or of the word `ignored`, which is None."""

    def read(node: Node, faults: Faults) -> T | None:
        if isinstance(node, Probe):
            reader(child := node.child(), faults)
            note(node, anyOf=[{"const": IGNORED}, child.schema])
            return None
        return None if node.value == IGNORED else reader(node, faults)

    return read
