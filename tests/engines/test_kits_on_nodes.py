"""Kits run by a user of the node without this program, and judged as the checks of this machine."""

from __future__ import annotations

import dataclasses
import json
import platform
import random
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import (
    ARCHITECTURES,
    TOOLS,
    Ended,
    build_images,
    manifest_of,
    need,
    passed,
    processes,
    run_program,
    small_disk,
    wait_for,
)
from publishing import SIGNING, Pair, pull
from real_registry import RealRegistry
from small_images import Check, Maker, sound

pytestmark = pytest.mark.engines

HANGS = "trap '' TERM; (setsid sleep 71411 &); echo rank 3 sends; sleep 71412"
CHECKS = (
    Check(name="hangs", text=HANGS, timeout_s=3),
    Check(name="prints-3-mb", text="echo FAILED; head -c 3000000 /dev/zero | tr '\\0' x; echo"),
    Check(name="is-killed", text="echo rank 2 sends; kill -SEGV $$"),
    Check(name="needs-a-gpu", text="echo no GPU here; exit 77", needs=("gpu",)),
    Check(name="comes-last", text="echo 'data: {\"n\": 1}'; echo all is well"),
)
USER = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
NETLESS = ("unshare", "--net", *USER)  # only root makes a network namespace


@dataclasses.dataclass(frozen=True, kw_only=True)
class Node:
    """A folder on the node, in which a kit was unpacked."""

    folder: Path

    def run(self, *words: object) -> Ended:
        """Run the kit as a user without a home, without variables and without a network."""
        argv = ("env", "-i", f"PATH={TOOLS}", "HOME=/nonexistent", "/usr/bin/python3")
        options = ("--scratch", self.folder)
        return run_program(
            *NETLESS, *argv, self.folder / "kit/run", *words, *options, cwd=Path("/")
        )

    @property
    def leftovers(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()} - {"kit"}


@pytest.fixture(scope="module")
def image(small_images: Maker) -> Path:
    """An image whose checks do what checks must not do, verified here."""
    need("setpriv", "unshare", "tar")
    small = dataclasses.replace(
        sound("x86_64", 1, random.Random(1)), identifier="for-nodes", checks=CHECKS
    )
    folder = small_images.make(small)
    words = ("--runner", "apptainer", "--runner", "charliecloud")
    assert build_images("verify", folder, *words).status == 1
    return folder


@pytest.fixture(scope="module")
def node(image: Path) -> Iterator[Node]:
    folder = Path(tempfile.mkdtemp(prefix="build-images-node-", dir="/var/tmp"))
    folder.chmod(0o777)
    done = passed(build_images("kit", image, "--output", folder / "kit.tar"))
    assert "sif, charliecloud  7 steps" in done.stdout
    passed(run_program("tar", "-xf", folder / "kit.tar", "-C", folder))
    (folder / "kit.tar").unlink()
    yield Node(folder=folder)
    shutil.rmtree(folder)


def outcomes(image: Path, run: str) -> dict[str, tuple[str, str, list[str]]]:
    """The outcomes and reasons of a run, and the `sleep`s that it waited for in vain.

    That of comparing the formats is left out: it is this machine's in any case.
    """
    by_check = {outcome["check"]: outcome for outcome in manifest_of(image)["checks"][run]}
    del by_check["formats-equal"]
    return {
        check: (
            outcome["outcome"],
            outcome["reason"].partition("; it was waiting for: ")[0],
            sorted(re.findall(r"sleep \d+", outcome["reason"])),
        )
        for check, outcome in by_check.items()
    }


def facts_of_run(image: Path, run: str) -> dict[str, Any]:
    statement = json.loads((image / f"evidence/{run}.json").read_text())
    facts: dict[str, Any] = statement["predicate"]["configuration"][0]["annotations"]
    return facts


@pytest.mark.parametrize(
    ("engine", "usual", "runner"),
    [
        ("apptainer", "sif", "apptainer"),
        ("ch-run", "charliecloud", "ch-run"),
        ("userns", "charliecloud", "user namespaces"),
    ],
)
def test_a_node_finds_what_this_machine_finds(
    engine: str, usual: str, runner: str, image: Path, node: Node
) -> None:
    before = manifest_of(image)
    evidence = node.folder / "evidence.json"
    done = node.run("--engine", engine, "--output", evidence)
    assert (done.status, node.leftovers) == (1, {evidence.name}), done.stderr
    assert re.search(r"(?m)^comes-last +status 0, [\d.]+ s: all is well$", done.stdout)
    assert not processes("^sleep 7141")
    imported = build_images("verify", image, "--import", evidence)
    evidence.unlink()
    assert imported.status == 1, imported.stderr
    [run] = manifest_of(image)["checks"].keys() - before["checks"].keys()
    assert re.fullmatch(f"{usual}-kit-{engine}-[a-z0-9-]+", run)
    assert outcomes(image, run) == outcomes(image, usual)
    assert outcomes(image, run)["hangs"][2] == ["sleep 71411", "sleep 71412"]
    facts = facts_of_run(image, run)
    assert facts["runner"]["name"] == runner
    assert facts["host"] == facts_of_run(image, usual)["host"]
    assert facts["kit"]["kit"] in {path.stem for path in (image / "kits").iterdir()}
    assert manifest_of(image)["checks"][usual] == before["checks"][usual]


def test_what_is_wrong_on_a_node_is_one_error(node: Node) -> None:
    """Nothing is written: no evidence, no folder, no partial file."""
    kit, evidence = node.folder / "kit", node.folder / "evidence.json"
    closed = node.run("--output", "/evidence.json")
    assert (closed.status, closed.stderr.count("\n")) == (4, 1)
    assert "Permission denied" in closed.stderr
    with small_disk(node.folder / "full") as disk:
        disk.chmod(0o777)
        full = run_program(
            *(*NETLESS, "/usr/bin/python3", kit / "run", "--engine", "userns"),
            *("--output", evidence, "--scratch", disk),
        )
    assert (full.status, "No space left on device; name other" in full.stderr) == (4, True)
    (node.folder / "full").rmdir()
    tarball = kit / "image.tar.gz"
    content = tarball.read_bytes()
    tarball.write_bytes(content + b"more")
    changed = node.run("--engine", "userns", "--output", evidence)
    tarball.write_bytes(content)
    assert (changed.status, "image.tar.gz: its digest is sha256:" in changed.stderr) == (2, True)
    assert not node.leftovers


@pytest.mark.parametrize(
    ("option", "libraries"),
    [
        ("--enter", []),
        (
            "--enter-with-gpus",
            ["libcuda.so.1", "libcuda.so.1.0", "libnvidia-ptxjitcompiler.so.1"],
        ),
    ],
)
def test_a_user_namespace_has_the_drivers_libraries(
    option: str, libraries: list[str], node: Node, tmp_path: Path
) -> None:
    """With made-up ones; the real ones were passed on an H200 (docs/evidence).

    The loader finds a link to libcuda, beside which is one that leads nowhere.
    """
    (tmp_path / "empty.c").write_text("int nothing;\n")
    with tempfile.TemporaryDirectory(prefix="build-images-driver-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "links").mkdir()
        (folder / "links/libcuda.so.1").symlink_to("../libcuda.so.1.0")
        (folder / "libnvidia-gone.so.1").symlink_to("nowhere")
        for library in ("libcuda.so.1.0", "libnvidia-ptxjitcompiler.so.1", "libother.so.1"):
            words = ("cc", "-shared", "-fPIC", "-o", str(folder / library))
            passed(run_program(*words, tmp_path / "empty.c"))
        passed(run_program(*USER, "mkdir", folder / "image"))
        tarball = node.folder / "kit/image.tar.gz"
        passed(run_program(*USER, "tar", "-xf", tarball, "-C", folder / "image"))
        listed = 'echo "LD_LIBRARY_PATH=$LD_LIBRARY_PATH"; for f in /.singularity.d/libs/*; do'
        listed += ' if [ -s "$f" ]; then echo "${f##*/}"; fi; done'
        kit = ("/usr/bin/python3", "-I", node.folder / "kit/run", option, folder / "image")
        env = ("env", "-i", f"LD_LIBRARY_PATH={folder}/links")
        argv = (*NETLESS, *env, *kit, "/bin/sh", "-c", listed)
        done = passed(run_program(*argv, cwd=Path("/")))
        path = "/.singularity.d/libs" if libraries else ""
        assert done.stdout.split() == [f"LD_LIBRARY_PATH={path}", *libraries]

        # what the image has there is not followed on the node
        shutil.rmtree(folder / "image/.singularity.d", ignore_errors=True)
        (folder / "image/.singularity.d").symlink_to(folder / "elsewhere")
        assert passed(run_program(*argv, cwd=Path("/"))).stdout == done.stdout
        assert not (folder / "elsewhere").exists()


def test_an_interrupted_kit_leaves_nothing(node: Node) -> None:
    words = (
        "/usr/bin/python3",
        node.folder / "kit/run",
        "--engine",
        "userns",
        "--output",
        "e.json",
    )
    interrupter = 'cd "$0" && "$@" --scratch "$0" & sleep 2; kill -TERM $!; wait $!'
    done = run_program(*NETLESS, "sh", "-c", interrupter, node.folder, *words)
    assert (done.status, "interrupted" in done.stderr) == (130, True), done.stderr
    wait_for(lambda: not processes("^sleep 7141"))
    assert not node.leftovers


def test_the_run_of_a_kit_is_published_and_pulled(
    lean: Path, pair: Pair, registry: RealRegistry, tmp_path: Path
) -> None:
    """A site whose policy asks for runs in user namespaces has no other evidence than the kit's."""
    with tempfile.TemporaryDirectory(prefix="build-images-node-", dir="/var/tmp") as name:
        node = Node(folder=Path(name))
        node.folder.chmod(0o777)
        passed(build_images("kit", lean, "--output", node.folder / "kit.tar"))
        passed(run_program("tar", "-xf", node.folder / "kit.tar", "-C", node.folder))
        passed(node.run("--engine", "userns", "--output", node.folder / "evidence.json"))
        words = ("--project", lean.parents[1], f"--image={lean.name}", "--output", lean.parent)
        to = ("--to", f"{registry.host}/site", "--key", pair.private)
        policy, hosts = tmp_path / "policy.yaml", {"runtimes": ["user namespaces"]}
        document = {"keys": [str(pair.public)], "evidence": {"hosts": hosts}}
        policy.write_text(json.dumps({"schema": "build-images/policy/v1", **document}))
        reference = f"{registry.host}/site/{lean.name.removesuffix('-x86_64').replace('-', ':', 1)}"
        env = {"BUILD_IMAGES_HOME": str(tmp_path / "home"), "PATH": "/nonexistent"}
        more = (tmp_path / "out", "--arch=x86_64", "--explain")

        passed(build_images("publish", *words, *to, env=SIGNING))
        refused = pull(reference, policy, "charliecloud", *more, env=env)
        assert (refused.status, "✗ refused    evidence" in refused.stderr) == (5, True)
        passed(build_images("verify", lean, "--import", node.folder / "evidence.json"))
        passed(build_images("publish", *words, *to, env=SIGNING))
    done = passed(pull(reference, policy, "charliecloud", *more, env=env))
    assert "✓ passed     evidence       checked by user namespaces on x86_64, native" in done.stdout
    assert (tmp_path / "out/image.tar.gz").stat().st_size > 1000


@pytest.mark.long(reason="it compresses an image's files for seconds")
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_kit_without_the_image_runs_its_mpi(arch: str, hpc_base: dict[str, Path]) -> None:
    """In some MB; what ran under emulation is called emulated."""
    image = hpc_base[arch]
    before = manifest_of(image)
    with tempfile.TemporaryDirectory(prefix="build-images-node-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)
        passed(build_images("kit", image, "--checks-only", "--output", folder / "kit.tar"))
        assert (folder / "kit.tar").stat().st_size < 60 << 20
        passed(run_program("tar", "-xf", folder / "kit.tar", "-C", folder))
        for engine in ("apptainer", "ch-run", "userns"):
            evidence = folder / "evidence.json"
            words = ("/usr/bin/python3", folder / "kit/run", "--scratch", folder)
            env = ("env", "-i", f"PATH={TOOLS}")
            options = ("--engine", engine, "--output", evidence)
            passed(run_program(*USER, *env, *words, *options, cwd=Path("/")))
            done = passed(build_images("verify", image, "--import", evidence))
            assert re.search(rf"charliecloud-kit-{engine}-\S+ mpi +passed +5 ranks", done.stdout)
            assert "this proves the node, and nothing was recorded" in done.stderr
            assert (": passed  emulated\n" in done.stdout) is (arch != platform.machine())
    assert manifest_of(image) == before
