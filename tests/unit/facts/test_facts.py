"""The shipped tables of facts say what is known, and a project's rows replace theirs.

What they refuse is in tests/data/bad-facts-*.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import archspec.cpu
import pytest
from samples import shipped_project

from builder import facts
from builder.facts import Facts
from builder.facts.cuda import capability_of, is_desktop, last_branch
from builder.load.document import Faults
from builder.load.facts import read_facts
from builder.load.site import layers_of
from builder.model.architectures import (
    ARCHITECTURES,
    CPU_TARGETS,
    NOT_INSTRUCTIONS,
    cpu_features,
    level_of,
    power_levels,
)

NOWHERE = Path("/nonexistent")
PPC64LE = "ppc64le"
RELEASES = [
    *("9.2", "10.0", "10.1", "10.2"),
    *(f"11.{minor}" for minor in range(9)),
    *(f"12.{minor}" for minor in (0, 1, 2, 3, 4, 5, 6, 8, 9)),  # there was no 12.7
    *(f"13.{minor}" for minor in range(6)),
]


@pytest.fixture(name="known", scope="module")
def shipped_facts() -> Facts:
    return read(NOWHERE)


def read(root: Path) -> Facts:
    faults = Faults()
    found = read_facts(layers_of(root), faults)
    assert faults.found == []
    return found


def written(root: Path, file: str, text: str) -> Path:
    folder = root / "facts"
    folder.mkdir(exist_ok=True)
    (folder / file).write_text(text)
    return root


def test_every_release_is_there_and_the_oldest_is_first(known: Facts) -> None:
    assert list(known.cuda) == RELEASES


def test_every_row_names_its_sources(known: Facts) -> None:
    cited = [
        *((one.where, one.sources) for one in known.cuda.values()),
        *((one.where, one.sources) for one in (*known.cudnn, *known.nccl)),
        *((one.where, one.sources) for one in known.mpi),
        *((one.where, one.sources) for one in known.systems),
    ]
    for place, sources in cited:
        assert sources, place
        assert all(source.startswith("https://") for source in sources), place


@pytest.mark.parametrize(
    ("version", "least"),
    [
        ("10.1", "418.39"),
        ("10.2", "440.33"),
        ("11.0", "450.36.06"),
        ("11.1", "450.80.02"),
        ("11.8", "450.80.02"),
        ("12.0", "525.60.13"),
        ("12.9", "525.60.13"),
        ("13.0", "580.65.06"),
    ],
)
def test_least_driver(known: Facts, version: str, least: str) -> None:
    assert known.cuda[version].driver == least


def test_the_first_and_last_toolkits_of_architectures_and_capabilities(known: Facts) -> None:
    assert known.cuda_for(PPC64LE)[-1] == "12.4"
    assert known.cuda["12.4"].update == "12.4.1"
    assert known.cuda["12.4"].shipped_driver == "550.54.15"
    assert known.cuda_for("aarch64")[0] == "11.0"
    assert known.cuda_for(capability="70")[-1] == "12.9"
    assert known.cuda["13.0"].capabilities[0] == "75"
    assert known.cuda_for(capability="80")[0] == "11.0"
    assert known.cuda_for(capability="90")[0] == "11.8"
    assert known.cuda_for(capability="35")[-1] == "11.8"


@pytest.mark.parametrize(
    ("gcc", "versions"),
    [
        ("7", ["9.2", "10.0"]),
        ("8", ["10.1", "10.2"]),
        ("9", ["11.0"]),
        ("10", ["11.1", "11.2", "11.3"]),
        ("11", ["11.4", "11.5", "11.6", "11.7", "11.8"]),
        ("12", ["12.0", "12.1", "12.2", "12.3"]),
        ("13", ["12.4", "12.5", "12.6"]),
        ("14", ["12.8", "12.9"]),
        ("15", ["13.0", "13.1", "13.2", "13.3"]),
        ("16", ["13.4", "13.5"]),
    ],
)
def test_newest_host_compiler(known: Facts, gcc: str, versions: list[str]) -> None:
    assert [version for version, one in known.cuda.items() if one.gcc == gcc] == versions


def test_images_of_10_1_for_ppc64le(known: Facts) -> None:
    release = known.cuda["10.1"]
    assert release.images[PPC64LE] == ("centos7", "ubi7", "ubuntu18.04")
    assert "ubi8" in release.images["x86_64"]
    assert release.image_tag == "10.1"


def test_repositories_for_ppc64le(known: Facts) -> None:
    def having(name: str) -> list[str]:
        return [v for v, one in known.cuda.items() if name in one.repositories.get(PPC64LE, ())]

    assert having("rhel7") == ["9.2", "10.0", "10.1", "10.2"]
    assert having("rhel8")[0] == "11.0"
    assert having("rhel8")[-1] == "12.4"
    assert having("ubuntu1604") == ["9.2"]
    assert having("ubuntu1804") == ["10.0", "10.1", "10.2", "11.0", "11.1"]


PACKAGES = """\
cudnn 10.1 rpm ppc64le libcudnn8-8.0.5.39-1.cuda10.1 libcudnn8-devel-8.0.5.39-1.cuda10.1
cudnn 10.1 deb ppc64le libcudnn8=8.0.4.30-1+cuda10.1 libcudnn8-dev=8.0.4.30-1+cuda10.1
cudnn 12.4 deb x86_64 libcudnn9-cuda-12=9.10.2.21-1 libcudnn9-dev-cuda-12=9.10.2.21-1
cudnn 12.4 rpm ppc64le libcudnn9-cuda-12-9.0.0.312-1 libcudnn9-devel-cuda-12-9.0.0.312-1
nccl 10.1 deb ppc64le libnccl2=2.8.3-1+cuda10.1 libnccl-dev=2.8.3-1+cuda10.1
nccl 12.4 rpm aarch64 libnccl-2.21.5-1+cuda12.4 libnccl-devel-2.21.5-1+cuda12.4
"""


@pytest.mark.parametrize("row", PACKAGES.splitlines())
def test_packages_are_those_of_the_images(row: str, known: Facts) -> None:
    """As NVIDIA's image definitions pin them."""
    name, cuda, packaging, arch, *names = row.split()
    library = known.library(name, cuda=cuda, packaging=packaging, arch=arch)
    assert library is not None
    assert [*library.packages(packaging)] == names


def test_no_library_where_there_is_none(known: Facts) -> None:
    assert known.library("cudnn", cuda="11.0", packaging="rpm", arch="aarch64") is None
    assert known.library("nccl", cuda="13.0", packaging="deb", arch=PPC64LE) is None


@pytest.mark.parametrize(
    ("family", "version", "soname", "pmix"),
    [
        ("openmpi", "1.10.7", "libmpi.so.12", ""),
        ("openmpi", "2.1", "libmpi.so.20", "1.2"),
        ("openmpi", "3.1.6", "libmpi.so.40", "2.2"),
        ("openmpi", "4.1.4", "libmpi.so.40", "3.2"),
        ("openmpi", "5.0.7", "libmpi.so.40", "5.0"),
        ("mpich", "4.0.2", "libmpi.so.12", ""),
        ("mvapich2", "2.3.7", "libmpi.so.12", ""),
        ("intelmpi", "2021.10", "libmpi.so.12", ""),
        ("craympich", "8.1.28", "libmpi.so.12", ""),
        ("spectrummpi", "10.3.1", "libmpi_ibm.so.3", "3.1"),
    ],
)
def test_mpi_series(known: Facts, family: str, version: str, soname: str, pmix: str) -> None:
    found = known.mpi_series(family, version)
    assert found is not None
    assert (found.soname, found.pmix) == (soname, pmix)


def test_an_unknown_series_is_none(known: Facts) -> None:
    assert known.mpi_series("openmpi", "1.1") is None
    assert known.mpi_series("openmpi", "") is None


def test_every_mpi_family_has_a_series_and_an_abi(known: Facts) -> None:
    assert {one.family for one in known.mpi} == set(facts.MPI_FAMILIES)
    assert {one.abi for one in facts.MPI_FAMILIES.values()} == {"openmpi", "mpich", "spectrummpi"}
    of_hosts = [one.name for one in facts.MPI_FAMILIES.values() if one.host_only]
    assert of_hosts == ["intelmpi", "craympich", "spectrummpi"]


def test_a_library_name_does_not_tell_an_abi(known: Facts) -> None:
    sharing = {one.family for one in known.mpi if one.soname == "libmpi.so.12"}
    assert {"openmpi", "mpich"} <= sharing


def test_cpu_targets_are_those_of_archspec() -> None:
    for arch, targets in CPU_TARGETS.items():
        for target in targets:
            assert str(archspec.cpu.TARGETS[target].family) == arch
    assert CPU_TARGETS.keys() == ARCHITECTURES.keys()


def archspecs(target: str) -> set[str]:
    """What archspec names of a target, as /proc/cpuinfo and our tables do."""
    found = archspec.cpu.TARGETS[target]
    if str(found.family) == PPC64LE:
        return {f"power{level}" for level in range(8, int(found.generation) + 1)}
    features = {str(one) for one in found.features} - NOT_INSTRUCTIONS
    return features - ({"sse3"} if "ssse3" in features else set())


@pytest.mark.parametrize("target", [one for targets in CPU_TARGETS.values() for one in targets])
def test_features_of_cpu_targets_are_those_of_archspec(target: str) -> None:
    assert {*cpu_features(target)} == archspecs(target)
    assert list(cpu_features(target)) == sorted(cpu_features(target))


def test_generic_needs_no_feature() -> None:
    assert cpu_features("generic") == cpu_features("") == ()


@pytest.mark.parametrize(
    ("model", "levels"),
    [
        ("POWER9, altivec supported", "power8 power9"),
        ("POWER8NVL (raw), altivec supported", "power8"),
        ("POWER10 (architected), altivec supported", "power8 power9 power10"),
        ("POWER7 (raw), altivec supported", ""),
        ("PPC970MP", ""),
        ("POWER99999999", ""),
    ],
)
def test_levels_of_power(model: str, levels: str) -> None:
    assert power_levels(model) == tuple(levels.split())


def test_the_level_of_a_processor() -> None:
    assert level_of("x86_64", cpu_features("zen2")) == "x86_64_v3"
    assert level_of("x86_64", cpu_features("skylake_avx512")) == "x86_64_v4"
    assert level_of("x86_64", ("sse", "sse2")) == ""
    assert level_of(PPC64LE, cpu_features("power9le")) == "power9le"
    assert level_of("aarch64", cpu_features("a64fx")) == ""


def test_every_shipped_base_has_its_c_library(known: Facts) -> None:
    for base in shipped_project().bases.values():
        system = known.system(base.distribution, base.version)
        assert system is not None, base.name
        assert {*system.kernel} >= {*base.architectures}, base.name


@pytest.mark.parametrize(
    ("distribution", "version", "glibc", "kernel", "cpu"),
    [
        ("debian", "12", "2.36", "3.10.0", "power8le"),
        ("debian", "13", "2.41", "3.10.0", "power8le"),
        ("ubuntu", "18.04", "2.27", "3.10.0", "power8le"),
        ("ubuntu", "22.04", "2.35", "3.10.0", "power9le"),
        ("ubi", "8", "2.28", "3.10.0", "power8le"),
        ("rockylinux", "9", "2.34", "3.10.0", "power9le"),
    ],
)
def test_systems_on_power(
    known: Facts, distribution: str, version: str, glibc: str, kernel: str, cpu: str
) -> None:
    system = known.system(distribution, version)
    assert system is not None
    assert (system.glibc, system.kernel[PPC64LE], system.cpu[PPC64LE]) == (glibc, kernel, cpu)


def test_an_unknown_system_is_none(known: Facts) -> None:
    assert known.system("debian", "1") is None


@pytest.mark.parametrize(
    ("model", "capability"),
    [
        ("Tesla V100-SXM2-32GB", 70),
        ("NVIDIA A100-SXM4-40GB", 80),
        ("NVIDIA GH200 480GB", 90),
        ("Tesla P100-PCIE-16GB", 60),
        ("NVIDIA L40S", 89),
        ("Tesla T4", 75),
        ("NVIDIA GeForce RTX 3090", None),
        ("Quadro GP100", None),
        ("", None),
    ],
)
def test_capabilities_by_model(model: str, capability: int | None) -> None:
    assert capability_of(model) == capability
    assert is_desktop(model) == ("GeForce" in model)


@pytest.mark.parametrize(
    ("capability", "branch"), [(20, 390), (37, 470), (52, 580), (70, 580), (75, None), (90, None)]
)
def test_the_last_driver_branch(capability: int, branch: int | None) -> None:
    assert last_branch(capability) == branch


def test_cuda_errors_are_in_order_and_named() -> None:
    errors = facts.cuda_errors()
    assert list(errors) == sorted(errors)
    assert errors[34].name == "cudaErrorStubLibrary"
    assert errors[804].name == "cudaErrorCompatNotSupportedOnDevice"


def test_a_project_adds_a_release(tmp_path: Path) -> None:
    root = written(
        tmp_path,
        "cuda.yaml",
        """
sources: {mail: https://site.example/mail}
releases:
  - version: "14.0"
    update: 14.0.1
    driver: 650.10.01
    architectures: [x86_64, arm64]
    sources: mail https://site.example/notes
""",
    )
    release = read(root).cuda["14.0"]
    assert release.architectures == ("x86_64", "aarch64")
    assert release.sources == ("https://site.example/mail", "https://site.example/notes")
    assert (release.where.file, release.where.line) == ("facts/cuda.yaml", 4)
    assert list(read(root).cuda) == [*RELEASES, "14.0"]


def test_a_projects_row_replaces_the_shipped_one(tmp_path: Path, known: Facts) -> None:
    row = 'version: "12.4", update: 12.4.1, driver: 525.60.13, architectures: x86_64'
    text = f"releases:\n  - {{{row}, sources: https://site.example/cuda}}\n"
    found = read(written(tmp_path, "cuda.yaml", text))
    assert found.cuda["12.4"].architectures == ("x86_64",)
    assert found.cuda["12.3"] == known.cuda["12.3"]
    assert list(found.cuda) == list(known.cuda)


def test_rows_do_not_change_between_readings(known: Facts) -> None:
    assert read(NOWHERE) == known


def test_no_name_of_a_repository_is_mistyped(known: Facts) -> None:
    """A mistyped name would stand in one row alone: few others do."""
    rows = list(known.cuda.values())
    seen = [{name for names in one.repositories.values() for name in names} for one in rows]
    counts = {name: sum(name in names for names in seen) for name in set(itertools.chain(*seen))}
    assert {name for name, count in counts.items() if count == 1} == {
        "ubuntu1710",
        "fedora39",
        "ubuntu2604",
        "sles15",
        "rhel10",
    }
