"""Rehearsals of distribution packages, against lists of packages as mirrors keep them."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import lzma
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import zstandard
from rehearse_samples import outcomes, shipped, step
from samples import ROOT, block, recipe, shipped_project

from builder.build.mirror import apt_archives
from builder.compile import spec
from builder.compile.lint.reading import read
from builder.model import PlannedImage, Selection
from builder.plan import make_plan
from builder.verify.rehearse import repositories
from builder.verify.rehearse.packages import Archives, PackageTrials, installed_by
from builder.verify.rehearse.rehearsal import package_archives
from builder.verify.rehearse.repositories import rpm_names, unpacked
from builder.verify.rehearse.servers import NotOnServer, Unavailable, read_url
from builder.verify.rehearse.steps import steps_of
from builder.verify.rehearse.trials import FAILED, NOT_TRIED, PASSED, Trial, not_tried

DATA = ROOT / "tests/data/packages"
NAMED = {
    "ubuntu18.04": (f"file://{DATA}/ubuntu", f"file://{DATA}/ubuntu-ports"),
    "centos7": (f"file://{DATA}/centos7/$basearch",),
    "ubi8": (f"file://{DATA}/ubi8/$basearch",),
}
OF_DEBIAN = Archives(debian="mirror")
UBUNTU = "hpc-base-1.0-ubuntu18.04-openmpi2.1-ppc64le"
CENTOS = "hpc-base-1.0-centos7-openmpi1.10-ppc64le"
UBI = "nvidia-toolkit-1.0-ubi8-cuda11.8-x86_64"


def misspelt(identifier: str, name: str) -> PlannedImage:
    """A cell of a recipe that installs one more package than make, at line 10."""
    packages = block("packages", line=9, ospackages=["make", name])
    cuda = (block("cuda"),) if "cuda" in identifier else ()
    added = recipe("added", development=(*cuda, packages))
    project = dataclasses.replace(shipped_project(), recipes={"added": added})
    cell = identifier.replace(identifier.partition("-1.0-")[0], "added")
    selection = Selection(images=(cell,))
    return make_plan(project, selection, compiler=spec.COMPILER).images[0]


def trials_of(planned: PlannedImage, named: dict[str, tuple[str, ...]] = NAMED) -> list[Trial]:
    steps = steps_of(read(spec.compile_spec(planned, run_checks=""), locked=False))
    trials = PackageTrials(read_url, Archives(named=named))
    return [*trials.of(steps, planned)]


# Cells against the lists of their distributions.


@pytest.mark.parametrize("identifier", [UBUNTU, CENTOS, UBI])
def test_the_packages_of_shipped_cells_are_in_their_distributions_lists(identifier: str) -> None:
    """`dnf-utils`, which UBI's cells install, is what the package yum-utils provides."""
    trials = [trial for trial in trials_of(shipped(identifier)) if "NVIDIA" not in trial.text]
    assert {*outcomes(trials)} == {PASSED}
    assert len(trials) > 1


@pytest.mark.parametrize(
    ("identifier", "name", "right"),
    [
        (UBUNTU, "libopenmpi-dve", "libopenmpi-dev"),
        (CENTOS, "openmpi-devl", "openmpi-devel"),
        (UBI, "dnf-util", "dnf-utils"),
        (UBUNTU, "libopenmpi-dve=1.2", "libopenmpi-dev"),
    ],
)
def test_a_misspelt_package_is_a_failure_with_its_place_and_the_right_name(
    identifier: str, name: str, right: str
) -> None:
    planned = misspelt(identifier, name)
    [trial] = [trial for trial in trials_of(planned) if trial.outcome == FAILED]
    place = f"{name.partition('=')[0]} (recipes/core.yaml:10)"
    base = planned.base.name
    assert trial.text == f"{base} for {planned.cell.arch} has no package {place}"
    assert trial.hint == f'did you mean "{right}"?'


def test_a_package_of_a_base_is_named_with_the_bases_file() -> None:
    planned = shipped(CENTOS)
    mpi = dataclasses.replace(planned.mpi, development=("openmpi-x",))  # type: ignore[type-var]
    changed = dataclasses.replace(planned, mpi=mpi)
    trials = PackageTrials(read_url, Archives(named=NAMED))
    [trial] = trials.of([step("yum install -y openmpi-x")], changed)
    assert "openmpi-x (base-images/centos7.yaml: mpi)" in trial.text


@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        ("yum install -y make-4.2.1-10.el8", PASSED),
        ("yum install -y make.x86_64 libgomp.i686 gcc.noarch", PASSED),
        ("yum install -y gcc-c*", PASSED),
        ("yum install -y /usr/bin/make", PASSED),
        ("yum install -y pkgconfig(zlib)", FAILED),
        ("yum install -y /usr/bin/mak", FAILED),
        ("yum install -y make.i686", FAILED),
        ("yum install -y make-devel-1.0", FAILED),
        ("yum install -y gcc-13-x", FAILED),
        ("yum install -y nothing*", FAILED),
    ],
)
def test_names_are_taken_as_dnf_takes_them(command: str, outcome: str) -> None:
    trials = PackageTrials(read_url, Archives(named=NAMED))
    assert outcomes(trials.of([step(command)], shipped(UBI))) == [outcome]


OF_NVIDIA = "the lists of NVIDIA's repositories are not available"
A_FILE = "it is a file, and lists of packages do not contain it"
ELSEWHERE = "lists of packages do not contain files of that folder"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((f"{name}-12-4", OF_NVIDIA) for name in ("cuda", "libcublas", "libcudnn", "libnccl")),
        *((name, A_FILE) for name in ("a.rpm", "./a.deb", "https://a.example/a")),
        *((name, ELSEWHERE) for name in ("/opt/make", "lib/x")),
        ("@development", "lists of packages contain no groups"),
        *((f"{folder}/x", "") for folder in ("/etc", "/bin", "/sbin", "/usr/bin", "/usr/sbin")),
        *((name, "") for name in ("cuda", "nothing")),
    ],
)
def test_why_lists_do_not_tell(name: str, reason: str) -> None:
    """What a list could tell is a failure where it does not."""
    for installer in ("apt-get", "dnf", "yum", "microdnf"):
        trials = PackageTrials(read_url, Archives(named=NAMED))
        [trial] = trials.of([step(f"{installer} install -y {name}", line=3)], shipped(UBI))
        missing = f"ubi8 for x86_64 has no package {name}"
        if reason:
            assert trial == not_tried("packages", name, reason, 3)
        else:
            assert (trial.outcome, trial.text, trial.line) == (FAILED, missing, 3)


def test_a_name_like_no_other_may_be_in_another_repository() -> None:
    trials = PackageTrials(read_url, Archives(named=NAMED))
    [trial] = trials.of([step("yum install -y qqqq make xxxx")], shipped(UBI))
    assert trial.text == "ubi8 for x86_64 has no package qqqq, xxxx"
    [trial] = [each for each in trials_of(misspelt(UBI, "qqqq")) if each.outcome == FAILED]
    assert trial.hint == "if another repository has it, add that one to packages in site.yaml"


def test_without_its_mirror_a_base_is_not_tried() -> None:
    trials = trials_of(shipped(CENTOS), {})
    assert {*outcomes(trials)} == {NOT_TRIED}
    assert trials[0].text == "no list of the packages of centos7 is available"


def test_a_repository_that_is_gone_leaves_a_base_untried() -> None:
    """A name that the others lack may be in that one."""
    named = {"ubi8": (*NAMED["ubi8"], "file:///nonexistent")}
    [first, *_] = trials_of(shipped(UBI), named)
    assert first.outcome == NOT_TRIED
    assert first.text == "repository 2 of 2: it has no repomd.xml"


# Debian, and in place of Ubuntu.


@pytest.mark.parametrize(
    ("ending", "packed"), [(".xz", lzma.compress), (".gz", gzip.compress), ("", bytes)]
)
def test_names_of_packages_are_looked_up_in_the_distributions_list(
    ending: str, packed: Callable[[bytes], bytes]
) -> None:
    """A repository has its list in one of three forms at least."""

    read = list[str]()

    def read_list(url: str) -> bytes:
        if not url.endswith(f"/Packages{ending}"):
            raise NotOnServer(f"it has no {url}")
        read.append(url)
        return packed(b"Package: \xff\nPackage: make\nProvides: maker (= 1), tool:any\n")

    planned = shipped("hpc-base-1.0-debian13-openmpi5.0-ppc64le")
    trials = PackageTrials(read_list, OF_DEBIAN)
    steps = [
        step("apt-get install -y --no-install-recommends make=1 maker tool", line=3),
        step("apt-get install -y make nothing", line=4),
        step("apt-get update -y", line=5),
    ]
    results = [*trials.of(steps, planned)]
    assert outcomes(results) == [PASSED, FAILED]
    assert results[1].text == "debian13 for ppc64le has no package nothing"
    assert read == [
        f"mirror/dists/trixie/{component}/binary-ppc64el/Packages{ending}"
        for component in ("main", "contrib", "non-free")
    ]


@pytest.mark.parametrize(
    ("version", "suite", "stand_ins"),
    [
        ("18.04", "bionic", ["buster", "bullseye"]),
        ("20.04", "focal", ["bullseye", "bookworm"]),
        ("22.04", "jammy", ["bookworm"]),
        ("24.04", "noble", ["trixie"]),
        ("26.04", "26.04", []),
    ],
)
def test_the_lists_of_ubuntu_are_those_of_its_release_or_of_debians(
    version: str, suite: str, stand_ins: list[str]
) -> None:
    planned = shipped(UBUNTU)
    planned = dataclasses.replace(planned, base=dataclasses.replace(planned.base, version=version))
    asked = list[str]()

    def read_list(url: str) -> bytes:
        asked.append(url.removesuffix("/binary-ppc64el/Packages.xz"))
        if url.startswith("mirror"):
            raise Unavailable("gone")
        return lzma.compress(b"Package: make\n")

    [trial] = PackageTrials(read_list, OF_DEBIAN).of([step("apt-get install make")], planned)
    lists = f"no list of the packages of {planned.base.name} is available"
    assert trial == not_tried("packages", "make", lists, 1)
    assert asked == [f"mirror/dists/{name}/main" for name in stand_ins]
    asked.clear()
    trials = PackageTrials(read_list, Archives(ubuntu=("site",)))
    assert outcomes(trials.of([step("apt-get install make")], planned)) == [PASSED]
    assert asked == [
        f"site/dists/{suite}{pocket}/{component}"
        for pocket in ("", "-updates", "-security")
        for component in ("universe", "main", "restricted", "multiverse")
    ]


def test_a_list_that_a_mirror_may_lack_is_passed_over() -> None:
    """Of Ubuntu's archives, the release's main and universe have to be there."""

    def read_list(url: str) -> bytes:
        if not ("bionic/main" in url or "bionic/universe" in url):
            raise NotOnServer("it is not there")
        return lzma.compress(b"Package: make\n")

    trials = PackageTrials(read_list, Archives(ubuntu=("site",)))
    assert outcomes(trials.of([step("apt-get install make")], shipped(UBUNTU))) == [PASSED]
    trials = PackageTrials(lambda url: read_list(url.replace("main", "x")), Archives(ubuntu=("s",)))
    reason = "the mirror's list of bionic/universe: it has no dists/bionic/main/binary-ppc64el"
    [trial] = trials.of([step("apt-get install make")], shipped(UBUNTU))
    assert (trial.outcome, trial.text) == (NOT_TRIED, f"{reason}/Packages")


def test_debian_stands_in_for_ubuntu_and_it_is_said() -> None:
    planned = shipped("hpc-base-1.0-ubuntu24.04-mpich4.2-ppc64le")
    trials = PackageTrials(packed_list("Package: make\n"), OF_DEBIAN)
    steps = [step("apt-get install make"), step("apt-get install odd", line=2)]
    results = [*trials.of(steps, planned)]
    assert outcomes(results) == [PASSED, NOT_TRIED]
    lists = "no list of the packages of ubuntu24.04 is available"
    assert [trial.text for trial in results] == [
        "each is in the list of Debian's trixie, which stands in for ubuntu24.04",
        f"{lists}, and its stand-in Debian trixie has no odd",
    ]


def test_a_mirror_that_lacks_a_list_is_said() -> None:
    def read_nothing(url: str) -> bytes:
        raise NotOnServer(f"it has no {url}")

    planned = shipped("hpc-base-1.0-debian13-openmpi5.0-ppc64le")
    trials = PackageTrials(read_nothing, OF_DEBIAN)
    [trial] = trials.of([step("apt-get install a")], planned)
    assert trial.outcome == NOT_TRIED
    assert "it has no dists/trixie/main/binary-ppc64el/Packages" in trial.text


def test_an_archive_that_fails_is_asked_for_no_other_packing() -> None:
    asked = []

    def read_failing(url: str) -> bytes:
        asked.append(url)
        raise Unavailable(f"no route to {url.partition('/')[0]}")

    trials = PackageTrials(read_failing, Archives(ubuntu=("mirror", "other")))
    known = trials._known(shipped(UBUNTU))
    begin = "the mirror's list of bionic/universe: no route to"
    assert known == f"{begin} mirror; {begin} other"
    assert len(asked) == 2


def test_the_repositories_are_the_sites_and_this_machines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BUILD_IMAGES_MIRROR", "http://a.example/debian")
    monkeypatch.delenv("BUILD_IMAGES_SITE", raising=False)
    (tmp_path / "site.yaml").write_text("packages: {centos7: ['https://b.example/$basearch/']}\n")
    archives = package_archives(tmp_path)
    assert archives.named == {"centos7": ("https://b.example/$basearch",)}
    assert archives.debian == "http://a.example/debian"
    assert archives.of(shipped(CENTOS).base) == ("https://b.example/$basearch",)
    debian = shipped("hpc-base-1.0-debian13-openmpi5.0-ppc64le").base
    assert archives.of(debian) == ("http://a.example/debian",)
    mirrors = ("http://c.example/debian", "http://c.example/debian-security")
    assert archives.of(dataclasses.replace(debian, mirrors=mirrors)) == mirrors[:1]


def test_files_of_packages_are_no_names() -> None:
    assert installed_by(step("apt-get install -y a b=1 -o X=1")) == ("a", "b", "X")
    assert installed_by(step("pip3 install a")) == ()


def test_ubuntus_archives_are_those_of_this_machines_apt(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text(
        "deb http://a.example/ubuntu/ noble main universe\n"
        "deb http://a.example/ubuntu noble-updates main\n"
        "deb http://user:secret@b.example/ubuntu noble main\n"
        "deb http://c.example/debian trixie main\n"
        "deb http://d.example/ports jammy main\n"
    )
    archives = apt_archives({"noble", "jammy"}, apt=tmp_path)
    assert archives == ("http://a.example/ubuntu", "http://d.example/ports")


def packed_list(text: str) -> Callable[[str], bytes]:
    def read_list(url: str) -> bytes:
        return lzma.compress(text.encode() if "/main/" in url else b"")

    return read_list


# Lists as strangers may write them.


def repository(folder: Path, primary: bytes, *, path: str = "repodata/primary.xml") -> str:
    (folder / "repodata").mkdir()
    (folder / "repodata/primary.xml").write_bytes(primary)
    index = (DATA / "ubi8/x86_64/repodata/repomd.xml").read_text()
    old = hashlib.sha256((DATA / "ubi8/x86_64/repodata/primary.xml").read_bytes()).hexdigest()
    index = index.replace(old, hashlib.sha256(primary).hexdigest())
    index = index.replace("repodata/primary.xml", path)
    (folder / "repodata/repomd.xml").write_text(index)
    return f"file://{folder}"


@pytest.mark.parametrize("packed", [gzip.compress, lzma.compress, zstandard.compress])
def test_a_list_may_be_packed(packed: Callable[[bytes], bytes], tmp_path: Path) -> None:
    primary = (DATA / "ubi8/x86_64/repodata/primary.xml").read_bytes()
    names = rpm_names(read_url, repository(tmp_path, packed(primary)), "x86_64")
    assert {"make", "dnf-utils", "/usr/bin/make", "libgomp.i686"} <= names


def an_rpm(name: str, arch: str, *, entry: str, file: str) -> str:
    """A package that provides an entry, requires another and has a file."""
    return (
        f"<package><name>{name}</name><arch>{arch}</arch><format>"
        f'<r:provides><r:entry name="{entry}"/></r:provides>'
        f'<r:requires><r:entry name="not-{entry}"/></r:requires><file>{file}</file>'
        "</format></package>"
    )


def test_the_names_in_a_list_are_those_of_its_architecture(tmp_path: Path) -> None:
    """Of another's package only the name is known, with its architecture; sources are no names."""
    packages = [
        an_rpm(name, arch, entry=f"{name}(x)", file=f"/usr/bin/{name}")
        for name, arch in (("a", "x86_64"), ("b", "noarch"), ("c", "i686"), ("d", "src"))
    ]
    spaces = 'xmlns="http://linux.duke.edu/metadata/common" xmlns:r="http://r"'
    nameless = "<package><format><file>/bin/x</file></format></package>"
    primary = f"<metadata {spaces}>{nameless}{''.join(packages)}</metadata>"
    names = rpm_names(read_url, repository(tmp_path, primary.encode()), "x86_64")
    assert names == {"a", "a(x)", "/usr/bin/a", "b", "b(x)", "/usr/bin/b", "c.i686"}


ENTITY = b'<!DOCTYPE m [<!ENTITY a "b">]><metadata><package><name>&a;</name></package></metadata>'


@pytest.mark.parametrize(
    ("primary", "problem"),
    [
        (ENTITY, "document type"),
        (b"<metadata><package>", "damaged"),
        (b"<a>" * 99, "nested too deeply"),
        (gzip.compress(b"<metadata/>")[:-4], "cut off"),
        (b"\x1f\x8b" + b"x" * 99, "damaged"),
        (b"", "damaged"),
    ],
    ids=["entity", "cut", "deep", "gzip cut", "no gzip", "empty"],
)
def test_a_list_that_is_none_is_not_read(primary: bytes, problem: str, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=problem):
        rpm_names(read_url, repository(tmp_path, primary), "x86_64")


@pytest.mark.parametrize("path", ["../primary.xml", "/etc/passwd", "https://a.example/x", ""])
def test_an_index_names_files_below_its_repository_alone(path: str, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="names no usable list"):
        rpm_names(read_url, repository(tmp_path, b"<metadata/>", path=path), "x86_64")


def test_a_list_has_the_checksum_that_the_index_names(tmp_path: Path) -> None:
    """A mirror amid a sync has the new index with the old list."""
    shutil.copytree(DATA / "ubi8/x86_64", tmp_path, dirs_exist_ok=True)
    (tmp_path / "repodata/primary.xml").write_text("<metadata/>")
    with pytest.raises(Unavailable, match="the checksum of"):
        rpm_names(read_url, f"file://{tmp_path}", "x86_64")


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [("sha", "sha1"), ("sha1", "sha1"), ("sha256", "sha256"), ("sha512", "sha512"), ("md5", "")],
)
def test_the_kind_of_a_checksum_is_the_one_that_the_index_names(kind: str, algorithm: str) -> None:
    primary = b"<metadata><package><name>a</name><arch>noarch</arch></package></metadata>"
    checksum = hashlib.new(algorithm or kind, primary).hexdigest()
    data = f'<location href="p.xml"/><checksum type="{kind}">{checksum}</checksum></data>'
    other = '<data type="other"><location href="o.xml"/></data>'
    index = f'<repomd>{other}<data type="primary">{data}</repomd>'.encode()
    read = {"r/repodata/repomd.xml": index, "r/p.xml": primary}.__getitem__
    if algorithm:
        assert rpm_names(read, "r", "x86_64") == {"a"}
    else:
        with pytest.raises(Unavailable, match=r"^repodata/repomd.xml names no usable list of"):
            rpm_names(read, "r", "x86_64")
    without = {"r/repodata/repomd.xml": f"<repomd>{other}</repomd>".encode()}.__getitem__
    with pytest.raises(Unavailable, match=r"^repodata/repomd.xml names no list of packages$"):
        rpm_names(without, "r", "x86_64")


@pytest.mark.parametrize(
    ("length", "depth", "problem"), [(100, 16, ""), (101, 16, "too long"), (100, 17, "deep")]
)
def test_a_long_text_and_a_deep_element_are_refused(
    length: int, depth: int, problem: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(repositories, "_LONGEST", 100)
    deep = "<a>" * (depth - 1) + "</a>" * (depth - 1)
    primary = f"<metadata><package><name>{'x' * length}</name></package>{deep}</metadata>"
    with pytest.raises(Unavailable, match=problem) if problem else nullcontext():
        rpm_names(read_url, repository(tmp_path, primary.encode()), "x86_64")


@pytest.mark.parametrize("packed", [gzip.compress, lzma.compress])
def test_what_unpacks_to_more_than_the_limit_is_refused(
    packed: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repositories, "LARGEST", 1 << 20)
    bomb = packed(bytes(32 << 20))
    sizes: list[int] = []
    with pytest.raises(Unavailable, match="larger than 1 MiB"):
        sizes.extend(len(piece) for piece in unpacked(bomb))
    assert sum(sizes) <= 1 << 20
    assert sum(map(len, unpacked(packed(bytes(1 << 20))))) == 1 << 20
