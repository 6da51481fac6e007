"""Faults between a site and a real registry: refused with the reason, or recovered from.

Each is injected by a proxy on loopback. What is accepted in spite of a fault is whole.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from faulty_proxy import Fault, Proxy
from harness import PROJECT, passed, small_disk, wait_for
from pulling import assert_refused, known_images, left_behind, one_registry, proxy, pull, site
from registry_site import GOOD, Content, Published, Site, file, folder, layer_of

from builder.cli import main
from builder.distribute.pull.artifacts import tree_on_disk
from builder.distribute.pull.receipts import read_receipt
from builder.trust.proof.keys import generate_key

pytestmark = pytest.mark.engines
__all__ = ["known_images", "one_registry", "proxy", "site"]  # fixtures
MANIFESTS, BLOBS = r"/manifests/", r"/blobs/"


def assert_whole(site: Site) -> None:
    receipt = read_receipt(site.place / "out")
    assert receipt is not None
    assert tree_on_disk(site.place / "out/rootfs") == receipt.on_disk


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("path", [MANIFESTS, BLOBS])
def test_who_is_not_let_in_gets_nothing(site: Site, proxy: Proxy, status: int, path: str) -> None:
    site.publish()
    proxy.faults.append(Fault(path=path, status=status))
    assert_refused(pull(site, "directory", host=proxy.host), site, status=4)


@pytest.mark.parametrize(("status", "headers"), [(429, {"Retry-After": "1"}), (500, {}), (503, {})])
@pytest.mark.parametrize("path", [MANIFESTS, BLOBS])
def test_what_passes_is_waited_for(
    site: Site, proxy: Proxy, status: int, headers: dict[str, str], path: str
) -> None:
    site.publish()
    proxy.faults.append(Fault(path=path, status=status, headers=headers, times=2))
    passed(pull(site, "directory", host=proxy.host))
    assert_whole(site)


@pytest.mark.parametrize("how", ["reset", "cut"])
@pytest.mark.parametrize("which", ["layer", "config", "manifest", "index"])
def test_what_breaks_off_is_gone_on_with(site: Site, proxy: Proxy, how: str, which: str) -> None:
    published = site.publish()
    proxy.faults.append(Fault(path=of(published, which), body=how, times=2))
    passed(pull(site, "directory", host=proxy.host))
    assert proxy.faults[0].seen == 2
    assert_whole(site)


def of(published: Published, which: str) -> str:
    """The path of a part of an image."""
    parts = {
        "layer": f"/blobs/{published.layers[0]}$",
        "config": f"/blobs/{published.config}$",
        "manifest": f"/manifests/{published.image}$",
        "index": "/manifests/1.0$",
        "sif": f"/blobs/{published.artifacts['sif']}$",
        "charliecloud": f"/blobs/{published.artifacts['charliecloud']}$",
    }
    return parts[which]


@pytest.mark.parametrize(
    ("which", "artifact_format"),
    [
        *((which, "directory") for which in ("layer", "config", "manifest", "index")),
        *(("layer", "oci"), ("sif", "sif"), ("charliecloud", "charliecloud")),
    ],
)
def test_a_wrong_byte_is_refused(
    site: Site, proxy: Proxy, which: str, artifact_format: str
) -> None:
    published = site.publish()
    proxy.faults.append(Fault(path=of(published, which), changed=True))
    assert_refused(pull(site, artifact_format, host=proxy.host), site)
    assert proxy.faults[0].seen
    proxy.faults.clear()
    passed(pull(site, artifact_format, host=proxy.host))


def test_a_wrong_byte_in_all_proof_is_refused_and_named(site: Site, proxy: Proxy) -> None:
    published = site.publish()
    for one in published.evidence:
        proxy.faults.append(Fault(path=f"/(blobs|manifests)/{one}$", changed=True))
    proxy.faults.append(Fault(path=r"/manifests/sha256-.*\.(sig|att)$", changed=True))
    done = pull(site, "directory", host=proxy.host)
    assert_refused(done, site)
    assert "✗ refused    evidence" in done.stderr
    assert "damaged" in done.stderr


def test_one_good_copy_of_the_proof_will_do(site: Site, proxy: Proxy) -> None:
    """It is there in two of cosign's formats: rubbish in one does not hide the other."""
    site.publish()
    proxy.faults.append(Fault(path=r"/manifests/sha256-.*\.(sig|att)$", changed=True))
    passed(pull(site, "directory", host=proxy.host))


@pytest.mark.parametrize("which", ["manifest", "index", "config", "layer"])
def test_a_gigabyte_is_not_read(site: Site, proxy: Proxy, which: str) -> None:
    published = site.publish()
    proxy.faults.append(Fault(path=of(published, which), body="huge"))
    start = time.monotonic()
    assert_refused(pull(site, "directory", host=proxy.host), site)
    assert which == "layer" or time.monotonic() - start < 60


# What is said of the image


FAILED = {"formats-equal": "passed", "environment": "passed", "mpi": "failed"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (Content(finished="2020-01-01T00:00:00+00:00"), "✗ refused    age"),
        (Content(finished="2126-01-01T00:00:00+00:00"), "which is in the future"),
        (Content(outcomes=FAILED), "✗ refused    checks"),
    ],
    ids=["too old", "from the future", "failed"],
)
def test_evidence_that_is_not_good_is_refused(site: Site, content: Content, reason: str) -> None:
    site.publish(content)
    done = pull(site, "directory")
    assert_refused(done, site)
    assert reason in done.stderr


def test_a_signature_by_another_key_is_refused(site: Site) -> None:
    site.publish(Content(note="another key"), key=generate_key())
    done = pull(site, "directory")
    assert_refused(done, site)
    assert "not signed by a trusted key" in done.stderr


def test_a_key_that_has_expired_signs_nothing(site: Site) -> None:
    site.publish()
    site.policy()
    expired = site.policy("expired.yaml", keys=[{"file": "site.pub", "until": "2026-01-01"}])
    done = pull(site, "directory", policy=expired)
    assert_refused(done, site)
    assert "no longer trusted: site.pub until 2026-01-01" in done.stderr


def test_a_skipped_check_is_not_passed(site: Site) -> None:
    outcomes = {"formats-equal": "passed", "environment": "passed", "gpu-compute": "skipped"}
    site.publish(Content(outcomes=outcomes))
    wanting = site.policy("gpu.yaml", evidence={"required": ["gpu-compute"]})
    done = pull(site, "directory", policy=wanting)
    assert_refused(done, site)
    assert "skipped, so not passed: gpu-compute" in done.stderr
    assert pull(site, "directory").status == 0


def test_emulated_evidence_is_not_native(site: Site) -> None:
    site.publish(Content(emulated=True))
    done = pull(site, "directory")
    assert_refused(done, site)
    assert "is emulated, not native" in done.stderr
    accepting = site.policy("emulated.yaml", evidence={"emulated": "accepted"})
    assert pull(site, "directory", policy=accepting).status == 0


def test_another_tree_than_the_proven_one_is_refused(site: Site) -> None:
    site.publish(Content(tree="sha256:" + "00" * 32))
    for artifact_format in ("oci", "directory", "charliecloud"):
        done = pull(site, artifact_format)
        assert_refused(done, site)
        assert "✗ refused    tree" in done.stderr


def test_a_tag_that_is_rolled_back_is_refused(site: Site) -> None:
    site.publish(Content(note="old", built="2026-01-01T00:00:00Z"), tag="old")
    site.publish(Content(note="new", built="2026-02-01T00:00:00Z"))
    assert pull(site, "sif").status == 0
    shutil.rmtree(site.place / "out")
    old = site.publish(Content(note="old", built="2026-01-01T00:00:00Z"))
    done = pull(site, "sif")
    assert_refused(done, site)
    assert "older than the last pulled image by provenance time: 2026-01-01" in done.stderr
    passed(pull(site, "sif", name=f"site/tool@{old.index}"))


def test_a_tag_that_moves_meanwhile_changes_nothing(site: Site, proxy: Proxy) -> None:
    """Whoever is judged is brought: the tag is asked once."""
    first = site.publish(Content(note="first"))
    thread = ThreadPoolExecutor(1).submit(_move_when_asked, site, proxy)
    done = pull(site, "oci", host=proxy.host)
    thread.result()
    assert done.status == 0, done.stderr
    receipt = read_receipt(site.place / "out")
    assert receipt is not None
    assert receipt.image.digest == first.image
    assert len([one for one in proxy.requests if one.endswith("/manifests/1.0")]) == 1
    moved = site.repository().resolve("1.0").digest
    assert moved != first.index


def _move_when_asked(site: Site, proxy: Proxy) -> None:
    while not [one for one in proxy.requests if "/manifests/1.0" in one]:
        time.sleep(0.01)
    site.publish(Content(note="second"))


# Space, time and others


@pytest.fixture(name="small_disk")
def two_megabytes(site: Site) -> Iterator[Path]:
    with small_disk(site.place / "disk") as place:
        yield place


@pytest.mark.parametrize("what", ["home", "out"])
@pytest.mark.parametrize("artifact_format", ["directory", "oci", "charliecloud"])
def test_a_full_disk_leaves_nothing(
    site: Site, small_disk: Path, what: str, artifact_format: str
) -> None:
    site.publish(Content(layers=(layer_of([file("big", os.urandom(3 << 20))]),)))
    if what == "home":
        (site.place / "home").symlink_to(small_disk)
    output = small_disk / "out" if what == "out" else site.place / "out"
    done = pull(site, artifact_format, "--output", output)
    assert_refused(done, site, status=4)
    assert "No space left" in done.stderr
    assert [path for path in small_disk.rglob("*") if path.is_file() and path.stat().st_size] == []
    assert not output.exists()


@contextmanager
def started(site: Site, artifact_format: str, host: str) -> Iterator[subprocess.Popen[bytes]]:
    """A pull that is under way."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "builder", "pull", f"{host}/site/tool:1.0"),
            *("--format", artifact_format, "--policy", str(site.policy())),
            *("--output", str(site.place / "out")),
            *("--host", str(site.record())),
        ],
        cwd=PROJECT,
        env={**os.environ, "BUILD_IMAGES_HOME": str(site.place / "home")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_until(process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    """Wait for a moment in the life of a process, or for its end."""
    wait_for(lambda: condition() or process.poll() is not None, every_s=0.01)


def has_come_to(step: str, site: Site, proxy: Proxy) -> bool:
    """Whether a pull has come to a step."""
    if step == "asked":
        return bool(proxy.requests)
    if step == "proof":
        return any("referrers" in one for one in proxy.requests)
    place = {"layer": "home/pulls/blobs/*.partial", "unpacking": ".out.partial/rootfs/*"}[step]
    return any(site.place.glob(place))


@pytest.mark.parametrize("step", ["asked", "proof", "layer", "unpacking"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_at_a_step_and_gone_on_with(
    site: Site, proxy: Proxy, step: str, number: signal.Signals
) -> None:
    published = site.publish()
    if step in {"layer", "unpacking"}:
        which = published.layers[0 if step == "layer" else 1]
        proxy.faults.append(Fault(path=f"/blobs/{which}$", body="slow", times=1))
    with started(site, "directory", proxy.host) as process:
        wait_until(process, lambda: has_come_to(step, site, proxy))
        process.send_signal(number)
        process.wait(timeout=60)
    assert not (site.place / "out").exists()
    if number == signal.SIGTERM:
        assert left_behind(site) == []
    proxy.faults.clear()
    passed(pull(site, "directory", host=proxy.host))
    assert left_behind(site) == ["out"]
    assert_whole(site)


def test_what_came_before_a_kill_is_not_fetched_again(site: Site, proxy: Proxy) -> None:
    published = site.publish()
    proxy.faults.append(Fault(path=f"/blobs/{published.layers[1]}$", body="slow", times=1))
    first = site.place / "home/pulls/blobs" / published.layers[0][7:]
    with started(site, "directory", proxy.host) as process:
        wait_until(process, first.exists)
        process.kill()
    proxy.faults.clear()
    proxy.requests.clear()
    passed(pull(site, "directory", host=proxy.host))
    assert not [one for one in proxy.requests if published.layers[0] in one]


def as_nobody(work: Callable[[], int], log: Path) -> int:
    """What a function returns as an ordinary user; it runs in a process of its own.

    It is a fork: this interpreter may lie where only root can read.
    """
    child = os.fork()
    if not child:
        status = 99
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            status = work()
        except BaseException:  # said in the log, and told by the status
            log.write_text(traceback.format_exc())
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_an_ordinary_user_pulls_as_well(site: Site) -> None:
    if os.geteuid() != 0:
        pytest.skip("this is an ordinary user already")
    layers = (*GOOD, layer_of([folder("dev"), file("dev/null", type=tarfile.CHRTYPE)]))
    site.publish(Content(layers=layers))
    assert pull(site, "sif", "--output", site.place / "warm").status == 0  # has all modules now
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # pytest's is only for root
        mine = Path(name)
        for file_of_site in (site.policy(), site.record(), site.place / "site.pub"):
            shutil.copy(file_of_site, mine)
        shutil.chown(mine, 65534, 65534)
        for artifact_format in ("directory", "charliecloud"):
            assert pull_as_nobody(site, mine, artifact_format) == 0, (mine / "log").read_text()
        assert (mine / "directory/rootfs/bin/tool").stat().st_uid == 65534
        assert "devices that were left out" in (mine / "directory/receipt.json").read_text()


def pull_as_nobody(site: Site, mine: Path, artifact_format: str) -> int:
    argv = ["pull", f"{site.registry}/site/tool:1.0", "--format", artifact_format]
    argv += ["--policy", str(mine / "policy.yaml"), "--host", str(mine / site.record().name)]
    argv += ["--output", str(mine / artifact_format)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BUILD_IMAGES_HOME", str(mine / "home"))
        patch.setenv("HOME", str(mine))
        return as_nobody(lambda: main(argv), mine / "log")


def test_a_damaged_blob_in_the_store_is_fetched_again(site: Site) -> None:
    published = site.publish()
    store = site.place / "home/pulls/blobs"
    store.mkdir(parents=True)
    (store / published.layers[0][7:]).write_bytes(b"rubbish")
    (store / f"{published.layers[1][7:]}.partial").write_bytes(b"rubbish")
    passed(pull(site, "directory"))
    assert_whole(site)


@pytest.mark.parametrize("artifact_format", ["directory", "sif"])
def test_two_at_once_of_the_same_image(site: Site, artifact_format: str) -> None:
    site.publish()
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: pull(site, artifact_format, apart=True), range(3)))
    for ended in done:
        passed(ended)
    assert left_behind(site) == ["out"]
    assert sum("already there, and complete" in one.stderr for one in done) == 2


def test_two_at_once_to_different_places(site: Site) -> None:
    site.publish()
    places = [site.place / "out-a", site.place / "out-b"]
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda one: pull(site, "sif", "--output", one, apart=True), places))
    for ended in done:
        passed(ended)
    one, other = (place / "image.sif" for place in places)
    assert one.read_bytes() == other.read_bytes()
    assert one.stat().st_ino != other.stat().st_ino


def test_a_name_that_is_not_there(site: Site) -> None:
    site.publish()
    done = pull(site, "oci", name="site/tool:none")
    assert done.status != 0
    assert "Traceback" not in done.stderr
    assert left_behind(site) == []


def test_memory_stays_small_before_a_manifest_of_a_gigabyte(site: Site, proxy: Proxy) -> None:
    published = site.publish()
    proxy.faults.append(Fault(path=of(published, "manifest"), body="huge"))
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert_refused(pull(site, "oci", host=proxy.host, apart=True), site)
    after = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    # The greatest child of this process so far may have been another test's.
    assert after <= max(before, 600 << 10)
