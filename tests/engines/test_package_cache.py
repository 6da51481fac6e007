"""The cache of packages before real package managers: what they refuse does not stay in it."""

from __future__ import annotations

import functools
import hashlib
import lzma
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import served
from harness import build_images, need, passed, run_program
from small_base import write_tiny

from builder.model.errors import StepFailed
from builder.sources.package_cache import PackageCache
from builder.sources.package_proxy import package_cache
from builder.sources.suites import Suites

pytestmark = pytest.mark.engines

SPEC = """\
Name: tiny
Version: 1.0
Release: 1
Summary: A file
License: MIT
BuildArch: noarch
%description
A file.
%install
mkdir -p %{buildroot}/opt
seq 99 > %{buildroot}/opt/tiny
%files
/opt/tiny
"""
PACKAGE = "tiny-1.0-1.noarch.rpm"


@pytest.fixture(name="repository", scope="module")
def made_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of one package."""
    need("dnf", "rpmbuild", "createrepo_c")
    folder = tmp_path_factory.mktemp("rpm")
    (folder / "tiny.spec").write_text(SPEC)
    made = folder / "made"
    where = [f"--define=_topdir {folder}", f"--define=_rpmdir {made}"]
    passed(run_program("rpmbuild", "-bb", *where, folder / "tiny.spec"))
    passed(run_program("createrepo_c", made))
    return made


@pytest.fixture(name="asked")
def names_asked_for() -> list[str]:
    return []


@pytest.fixture(name="mirror")
def served_repository(repository: Path, asked: list[str]) -> Iterator[str]:
    with served(repository, asked) as address:
        yield address


@pytest.fixture(name="cache")
def own_cache(tmp_path: Path) -> Iterator[PackageCache]:
    with package_cache(tmp_path / "packages") as cache:
        yield cache


def install(root: Path, mirror: str, cache: PackageCache) -> str:
    """Install the package into a root of its own, as a build step does; what dnf says."""
    words = (
        *("--assumeyes", "--noplugins", "--nogpgcheck", "--releasever=1"),
        *(f"--installroot={root}", f"--setopt=cachedir={root}/cache"),
        *(f"--repofrompath=here,{mirror}", "--repo=here", "--setopt=reposdir=/nonexistent"),
    )
    env = {"LC_ALL": "C", "http_proxy": cache.url}
    with cache.step():
        done = run_program("dnf", *words, "install", "tiny", env=env, inherit=False)
        if done.status:
            raise StepFailed(done.stdout + done.stderr)
    assert (root / "opt/tiny").read_text().startswith("1\n2\n")
    return done.stdout


def kept(cache: PackageCache) -> list[Path]:
    return [one for one in cache.folder.rglob("*.rpm") if one.is_file()]


def test_dnf_downloads_a_package_once(
    mirror: str, asked: list[str], cache: PackageCache, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        assert "Complete!" in install(tmp_path / name, mirror, cache)
    assert asked.count(PACKAGE) == 1
    assert asked.count("repomd.xml") == 2, "what says which packages there are is never kept"
    assert (cache.fetched, cache.taken, cache.suspected) == (1, 1, 0)


def test_dnf_refuses_what_was_damaged_in_the_cache_and_the_next_step_is_given_another(
    mirror: str, asked: list[str], cache: PackageCache, tmp_path: Path
) -> None:
    install(tmp_path / "one", mirror, cache)
    [package] = kept(cache)
    damage(package)
    with pytest.raises(StepFailed, match="checksum doesn't match"):
        install(tmp_path / "two", mirror, cache)
    assert asked.count(PACKAGE) == 1
    assert not cache.is_good(package)
    install(tmp_path / "three", mirror, cache)
    assert asked.count(PACKAGE) == 2
    assert cache.is_good(package)


def test_dnf_refuses_a_wrong_file_under_the_right_name_and_asks_for_it_again(
    repository: Path, mirror: str, asked: list[str], cache: PackageCache, tmp_path: Path
) -> None:
    package = repository / "noarch" / PACKAGE
    sound = package.read_bytes()
    damage(package)
    with pytest.raises(StepFailed, match="checksum doesn't match"):
        install(tmp_path / "one", mirror, cache)
    assert PACKAGE in asked
    assert not any(map(cache.is_good, kept(cache)))
    package.write_bytes(sound)
    install(tmp_path / "two", mirror, cache)
    assert [one.read_bytes() for one in kept(cache)] == [sound]


@pytest.fixture(name="signed", scope="module")
def signing_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a key of gpg's, and `keyring.gpg` with its public half."""
    home = tmp_path_factory.mktemp("gpg")
    home.chmod(0o700)
    gpg = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--passphrase", ""]
    subprocess.run([*gpg, "--quick-generate-key", "mirror@site.example", "ed25519"], check=True)
    subprocess.run([*gpg, "--output", str(home / "keyring.gpg"), "--export"], check=True)
    yield home
    subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=True)


def suite(folder: Path, version: str, promised: str, signed: Path) -> None:
    """A suite whose index has one version of a package, and whose Release file promises another."""
    stanza = "Package: tree\nArchitecture: ppc64el\nFilename: pool/tree.deb\nSize: 1\n"
    texts = [f"{stanza}SHA256: {'0' * 64}\nVersion: {one}\n" for one in (version, promised)]
    there, wanted = ((lzma.compress(text.encode()), text.encode()) for text in texts)
    index = "main/binary-ppc64el/Packages"
    (folder / index).parent.mkdir(parents=True)
    (folder / f"{index}.xz").write_bytes(there[0])
    lines = ["Origin: Debian", "Suite: stable", "Codename: trixie", "Components: main"]
    lines += ["Architectures: ppc64el", "Date: Sat, 21 Nov 2026 09:15:44 UTC", "SHA256:"]
    for content, end in zip(wanted, (".xz", ""), strict=True):
        lines.append(f" {hashlib.sha256(content).hexdigest()} {len(content)} {index}{end}")
    (folder / "Release").write_text("\n".join([*lines, ""]))
    gpg = ["gpg", "--homedir", str(signed), "--batch", "--quiet"]
    files = ["--output", str(folder / "InRelease"), str(folder / "Release")]
    subprocess.run([*gpg, "--clearsign", *files], check=True)


@pytest.mark.parametrize("minds", [True, False], ids=["minds", "does not mind"])
def test_apt_reads_the_whole_state_of_a_suite_that_is_torn(
    minds: bool, signed: Path, tmp_path: Path
) -> None:
    """The state that apt refused, or a whole one of the same suite, signature checked."""
    suite(tmp_path / "mirror/dists/trixie", "1.0", "1.0+deb13u1", signed)
    suite(tmp_path / "mirror/dists/stable", "1.0", "1.0", signed)
    for name in ("lists/partial", "archives/partial", "etc/preferences.d", "etc/apt.conf.d"):
        (tmp_path / "apt" / name).mkdir(parents=True)
    (tmp_path / "apt/status").touch()
    state = tmp_path / "apt"
    where = [f"Dir::State={state}", f"Dir::Cache={state}", f"Dir::Etc={state}/etc"]
    where += [f"Dir::State::status={state}/status", "APT::Architecture=ppc64el"]
    where += ["APT::Architectures=ppc64el", "APT::Sandbox::User=root"]
    options = [word for setting in where for word in ("-o", setting)]
    suites = Suites(architectures=frozenset({"ppc64el"} if minds else ()))
    with (
        served(tmp_path / "mirror") as mirror,
        package_cache(tmp_path / "packages", suites=suites) as cache,
    ):
        line = f"deb [signed-by={signed / 'keyring.gpg'}] {mirror} trixie main\n"
        (state / "etc/sources.list").write_text(line)
        env = {"LC_ALL": "C", "http_proxy": cache.url}
        run = functools.partial(run_program, env=env, inherit=False)
        updated = run("apt-get", *options, "--error-on=any", "update")
        shown = run("apt-cache", *options, "show", "tree")
    assert (updated.status == 0) is minds, updated.stderr
    assert ("Mirror sync in progress?" in updated.stderr) is not minds
    assert ("Version: 1.0\n" in shown.stdout) is minds


def test_a_build_whose_packages_are_damaged_here_fails_once(site: Path, home: Path) -> None:
    """apt refuses what lies in the home, by the command that users run: the next run goes well."""
    env, runs = {"BUILD_IMAGES_HOME": str(home)}, []
    install_tree = '"apt-get update", "apt-get install -y --no-install-recommends tree"'
    for number in range(3):
        write_tiny(site, f'"true {number}", {install_tree}', base="debian13")
        if number == 1:
            [package] = (home / "packages").rglob("*-tree_*.deb")
            damage(package)
        words = ("--project", site, "--all", "--format=oci", "--no-verify")
        runs.append(build_images(*words, env=env))
    assert [done.status for done in runs] == [0, 1, 0]
    assert "1 package of failed steps will be fetched again" in runs[1].stderr
    assert "Hash Sum mismatch" in runs[1].stderr


def damage(file: Path) -> None:
    """Change a byte in the middle: its size stays."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
