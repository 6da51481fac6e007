"""Records of hosts and contracts of images: what is read, what is refused, and what no fault does.

Whatever a record or a contract holds, there is an answer or a typed error, and never a yes for
which a fact is missing.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from host_samples import (
    INTEL_MPI,
    MPICH,
    OPENMPI,
    RECORDS,
    contract,
    cuda,
    known,
    needed_cpu,
    recorded,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from samples import compare_with_golden

from builder.facts.cuda import MIG, capability_of
from builder.facts.software import RUNTIMES
from builder.host.contracts import contract_from_file, contract_from_labels
from builder.host.records import NONE, Host, HostCpu, HostGpus, as_record, read_record
from builder.host.rules import judge
from builder.host.verdict import BIND, HYBRID, LAUNCHERS, YES
from builder.model.contract import HostContract, as_document, as_labels, as_text
from builder.model.errors import BadInput

NAMES = sorted(file.stem for file in RECORDS.glob("*.json"))
CONTRACTS = (
    contract(),
    contract("ppc64le", cuda=cuda("10.1"), mpi=OPENMPI),
    contract(cuda=cuda("12.4"), mpi=OPENMPI),
    contract(cpu=needed_cpu("x86_64_v4"), mpi=INTEL_MPI),
    contract("aarch64", cuda=cuda("12.4"), mpi=MPICH),
)
FUZZ = settings(
    deadline=None,
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=True,
)


def document(name: str) -> dict[str, Any]:
    found = json.loads((RECORDS / f"{name}.json").read_text())
    assert isinstance(found, dict)
    return found


def read(content: object, root: Path) -> Host:
    file = root / "host.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_record(file)


def faults(content: object, root: Path) -> list[str]:
    with pytest.raises(BadInput) as caught:
        read(content, root)
    assert "nothing was checked" in str(caught.value)
    return [f"{one.key}: {one.problem} ({one.valid})" for one in caught.value.faults]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_recorded_is_read_again(name: str, tmp_path: Path) -> None:
    host = recorded(name)
    assert read(as_record(host), tmp_path) == host


def test_what_is_not_known_is_null_on_record(tmp_path: Path) -> None:
    text = as_record(Host(name="new"))
    values = json.loads(text)
    assert values["kernel"] is None
    assert values["gpu"]["driver"] is None
    assert values["mpi"] is None
    assert read(text, tmp_path) == Host(name="new")


def test_a_processor_is_told_by_features_by_target_or_by_name(tmp_path: Path) -> None:
    def features(**told: str) -> tuple[str, ...] | None:
        return read({"schema": "build-images/host/v1", "cpu": told}, tmp_path).cpu.features

    assert features(features="avx avx2") == ("avx", "avx2")
    assert features(target="power9le") == ("power8", "power9")
    assert features(model="POWER9, altivec supported") == ("power8", "power9")
    assert features(model="POWER7 (raw)") is None
    assert features(model="a POWER of some kind") is None


def test_all_faults_of_a_record_are_told_with_what_would_be_valid(tmp_path: Path) -> None:
    record = {
        "schema": "build-images/host/v1",
        "kernel": 5.4,
        "glibc": "new",
        "gpu": {
            "driver": "new",
            "devices": [{"capability": 7.0}, {"mig": "off"}, {"capability": "70"}],
            "on_bus": -1,
        },
        "mpi": [{"family": "openmpy"}, {}],
        "slurm": {"pmis": []},
        "runtimes": {"aptainer": {}},
        "user_namespaces": "open",
        "page_size": 4097,
        "cpu": {"target": "power7"},
    }
    none = {"schema": "build-images/host/v0", "gpu": {"on_bus": True}, "page_size": "4096"}
    most = {"schema": "build-images/host/v1", "gpu": {"on_bus": 100_000}, "kernel": "new"}
    found = [line for one in (record, none, most) for line in faults(one, tmp_path)]
    compare_with_golden("\n".join([*found, ""]), "host-record-faults.txt")
    counted = {"schema": "build-images/host/v1", "gpu": {"on_bus": 0}}
    assert read(counted, tmp_path).gpu.on_bus == 0


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{", '{"schema": 1}', "\x00", '{"a": 1, "a": 2}']
)
def test_what_is_no_record_is_refused(text: str, tmp_path: Path) -> None:
    assert faults(text, tmp_path)


# Contracts.


@pytest.mark.parametrize("one", CONTRACTS, ids=lambda one: one.image)
def test_a_contract_is_the_same_by_file_and_by_labels(one: HostContract) -> None:
    assert contract_from_file(as_text(one).encode(), "a file") == one
    assert contract_from_labels(as_labels(one), "an image") == one
    assert all(isinstance(value, str) and value for value in as_labels(one).values())


def test_other_labels_are_no_contract() -> None:
    assert contract_from_labels({"build-images.arch": "x86_64"}, "an image") is None


@pytest.mark.parametrize(("key", "value"), [("a." * 5000, "x"), ("kernel", "9" * 5000)])
def test_labels_that_no_contract_has(key: str, value: str) -> None:
    """Anybody who may write to a registry can write them."""
    with pytest.raises(BadInput, match="is too long or nested"):
        contract_from_labels({f"build-images.host.{key}": value}, "an image")


def test_faults_of_labels_name_the_label() -> None:
    labels = {**as_labels(CONTRACTS[1]), "build-images.host.cuda.driver": "newest"}
    del labels["build-images.host.schema"]
    with pytest.raises(BadInput) as caught:
        contract_from_labels(labels, "an image (labels)")
    text = str(caught.value)
    assert "an image (labels):1: build-images.host.schema: this key is missing" in text
    assert 'build-images.host.cuda.driver: "newest" is not a version' in text


def test_all_faults_of_a_contract_are_told_with_what_would_be_valid() -> None:
    values: dict[str, Any] = as_document(CONTRACTS[1])
    parts = ("cpu", "cuda", "mpi")
    for part in (values, *(values[name] for name in parts)):
        part.update({key: "?" for key in part if key not in parts})
    with pytest.raises(BadInput) as caught:
        contract_from_file(json.dumps(values).encode(), "a file")
    compare_with_golden(f"{caught.value}\n", "contract/faults.txt")


def test_a_need_that_this_version_does_not_know_is_refused() -> None:
    values = {**as_document(CONTRACTS[0]), "memory": "64 GB"}
    with pytest.raises(BadInput, match="memory: unknown key"):
        contract_from_file(json.dumps(values).encode(), "a file")


# No fault makes a traceback, or a yes for which a fact is missing.

SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**12),
    st.floats(allow_nan=False),
    st.sampled_from(
        ["", " ", "none", "0", "7.0", "418.87.00", "9" * 30, "-1", "a b", "é", "1.2.3", "x86_64"]
    ),
    st.text(max_size=5),
)
VALUES = st.recursive(
    SCALARS, lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(), some, max_size=3)
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    pairs = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else pairs
    return found + [one for key, inner in items for one in paths(inner, (*path, key))]


@st.composite
def broken(draw: st.DrawFn, whole: dict[str, Any]) -> Any:
    """A document of which some values are gone, null, or something else."""
    made = copy.deepcopy(whole)
    for _ in range(draw(st.integers(0, 4))):
        path = draw(st.sampled_from(paths(made) or [("schema",)]))
        at: Any = made
        for key in path[:-1]:
            at = at[key]
        how = draw(st.sampled_from(["remove", "null", "other"]))
        if how == "remove" and path[-1] in (at if isinstance(at, dict) else range(len(at))):
            del at[path[-1]]
        else:
            at[path[-1]] = None if how == "null" else draw(VALUES)
    return made


ANY_RECORD = st.sampled_from(NAMES).flatmap(lambda name: broken(document(name)))


@FUZZ
@given(
    record=st.one_of(ANY_RECORD, VALUES),
    image=st.sampled_from(CONTRACTS),
    launchers=st.lists(st.sampled_from(LAUNCHERS), max_size=1).map(tuple),
    runtimes=st.lists(st.sampled_from([*RUNTIMES]), max_size=1).map(tuple),
)
def test_no_record_makes_a_traceback_or_a_groundless_yes(
    record: Any,
    image: HostContract,
    launchers: tuple[str, ...],
    runtimes: tuple[str, ...],
    tmp_path: Path,
) -> None:
    try:
        host = read(record, tmp_path)
    except BadInput:
        return
    verdict = judge(image, host, known(), launchers=launchers, runtimes=runtimes)
    if verdict.answer == YES:
        assert missing(image, host, launchers) == []


@FUZZ
@given(data=st.binary(max_size=200))
def test_no_bytes_make_a_traceback(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "host.json").write_bytes(data)
    with pytest.raises(BadInput):
        read_record(tmp_path / "host.json")


@FUZZ
@given(
    values=st.sampled_from(CONTRACTS).flatmap(lambda one: broken(as_document(one))),
    name=st.sampled_from(NAMES),
)
def test_no_contract_makes_a_traceback(values: Any, name: str) -> None:
    try:
        image = contract_from_file(json.dumps(values).encode(), "a file")
    except BadInput:
        return
    verdict = judge(image, recorded(name), known())
    if verdict.answer == YES:
        assert missing(image, recorded(name), ()) == []


FACTS = (
    *("architecture", "kernel", "glibc", "cpu", "mpi", "runtimes", "user_namespaces", "emulators"),
    *("gpu", "gpu.driver", "gpu.devices", "gpu.toolkit", "gpu.cdi"),
)


def without(host: Host, fact: str) -> Host:
    part, _, rest = fact.partition(".")
    changes: dict[str, Any] = {part: {"cpu": HostCpu(), "gpu": HostGpus()}.get(part)}
    if rest:
        nothing: dict[str, Any] = {rest: None}
        changes = {part: dataclasses.replace(host.gpu, **nothing)}
    return dataclasses.replace(host, **changes)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fact", FACTS)
@pytest.mark.parametrize("image", CONTRACTS, ids=lambda one: one.image)
def test_a_fact_less_never_makes_a_yes(image: HostContract, fact: str, name: str) -> None:
    before, host = judge(image, recorded(name), known()), without(recorded(name), fact)
    after = judge(image, host, known())
    assert after.answer != YES or before.answer == YES
    if after.answer == YES:
        assert missing(image, host, ()) == []


def missing(image: HostContract, host: Host, launchers: tuple[str, ...]) -> list[str]:
    """The facts without which nobody can say yes: written down apart from the rules."""
    found = []
    if host.architecture != image.architecture:
        found.append("architecture")
    if not host.kernel or not image.kernel:
        found.append("kernel")
    if image.cpu.features and not host.cpu.features:
        found.append("processor")
    if not host.runtimes:
        found.append("runtimes")
    elif not host.user_namespaces and not any(
        name == "docker" or one.setuid for name, one in host.runtimes.items()
    ):
        found.append("user namespaces")
    if image.cuda:
        found += missing_of_gpus(host)
    if launchers == (HYBRID,) and not host.mpi and not host.slurm.pmi:
        found.append("launcher")
    if launchers == (BIND,) and not any(one.libraries for one in host.mpi or ()):
        found.append("libraries")
    return found


def missing_of_gpus(host: Host) -> list[str]:
    gpus = host.gpu.devices or ()
    found = [] if host.gpu.driver not in (None, NONE) and not host.gpu.fault else ["driver"]
    found += [] if gpus else ["GPUs"]
    capabilities = [gpu.capability or capability_of(gpu.model) for gpu in gpus]
    found += [] if all(capabilities) else ["capability"]
    seen = [
        bool(gpu.mig_instances) if gpu.mig else gpu.mig is False or one not in MIG
        for gpu, one in zip(gpus, capabilities, strict=True)
    ]
    found += [] if any(seen) else ["MIG"]
    return found
