"""`build-images pull` before it asks a registry."""

from __future__ import annotations

import datetime as dt
import errno
import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builder.cli import main
from builder.distribute.pull import images, request
from builder.distribute.pull.images import Puller
from builder.distribute.pull.request import Judged, NotProven, PullRequest, references_of
from builder.model.errors import BadInput, Interrupted
from builder.registry import Reference, Registry
from builder.system.process import Processes
from builder.trust.policy.records import (
    Bill,
    Claim,
    Content,
    Evidence,
    Package,
    not_asked,
    passed,
    refused,
)
from builder.trust.policy.site_policy import Policy
from builder.trust.proof.keys import generate_key


@pytest.mark.parametrize(
    "keys",
    [
        ["a.pub", {"file": "a.pub", "until": "2027-12-31"}],
        [{"file": "a.pub", "until": "2027-12-31"}, "a.pub"],
        ["a.pub", "b.pub"],
    ],
    ids=["plain first", "dated first", "another name"],
)
def test_a_key_that_is_named_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], keys: list[Any]
) -> None:
    """Listed plain as well, it would be trusted beyond its day."""
    for name in ("a.pub", "b.pub"):
        (tmp_path / name).write_bytes(PEM)
    policy = tmp_path / "policy.yaml"
    policy.write_text(json.dumps({"schema": "build-images/policy/v1", "keys": keys}))
    words = ["pull", "127.0.0.1:1/site/tool:1", "--format", "sif", "--policy", str(policy)]
    assert main(words) == 2
    assert "the same key as a.pub" in capsys.readouterr().err


def test_all_references_that_are_none_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pull", "Not A Reference", "quay.io/site/tool:1", "quay.io/site/tool@sha256:1"]
    assert main([*words, "--format", "sif"]) == 2
    said = capsys.readouterr().err
    assert "Not A Reference" in said
    assert "sha256:1" in said
    names = ["Not A Reference", "quay.io/site/tool@sha256:1"]
    messages = list[str]()
    for wrong in (names[:1], names[1:], names):
        with pytest.raises(BadInput) as raised:
            references_of(wrong)
        messages.append(str(raised.value))
    assert messages[2] == "\n".join(messages[:2])


DIGEST = f"sha256:{'0123456789ab' * 5}0123"


@pytest.mark.parametrize(
    ("reference", "identifier", "remembered"),
    [
        ("h.example/site/tool:1.0", "tool-1.0-x86_64", "h.example/site/tool:1.0"),
        ("h.example/site/tool", "tool-latest-x86_64", "h.example/site/tool:latest"),
        (f"h.example/site/tool@{DIGEST}", "tool-0123456789ab-x86_64", ""),
    ],
)
def test_what_an_image_is_called_on_disk(reference: str, identifier: str, remembered: str) -> None:
    """By its digest, a later pull cannot get an older image."""
    parts: dict[str, Any] = {**dict.fromkeys(("host", "policy", "now", "emulated")), "trusted": ()}
    parsed = Reference.parse(reference)
    asked = PullRequest(reference=parsed, format="sif", arch="x86_64", **parts)
    assert (asked.identifier, asked.folder_name) == (identifier, f"{identifier}-sif")
    assert asked.remembered == remembered


def test_the_same_reference_is_pulled_once() -> None:
    name = "h.example/site/tool"
    texts = [f"{name}:1", name, f"{name}@{DIGEST}"]
    found = references_of([*texts, f"{name}:latest", *texts])
    assert [str(one) for one in found] == texts


def test_what_is_pulled_for_no_architecture_or_by_no_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pull(tmp_path, monkeypatch, "1", more=["--arch", "sparc"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "build-images: unknown architecture: sparc",
        "  hint: use --arch with one of x86_64, ppc64le, aarch64",
    ]
    assert Path("/etc/build-images/policy.yaml") == request.POLICY
    monkeypatch.setattr(request, "POLICY", tmp_path / "lost.yaml")
    assert main(["pull", "127.0.0.1:1/site/tool:1", "--format", "sif"]) == 2
    assert f"no policy: {tmp_path}/lost.yaml is missing" in capsys.readouterr().err


def pull(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *tags: str, more: Sequence[str] = ()
) -> int:
    """Pull images of a registry that is not there, by a policy with one key."""
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    (tmp_path / "a.pub").write_bytes(PEM)
    policy = tmp_path / "policy.yaml"
    policy.write_text(json.dumps({"schema": "build-images/policy/v1", "keys": ["a.pub"]}))
    names = [f"127.0.0.1:1/site/tool:{tag}" for tag in tags]
    return main(["pull", *names, "--format", "sif", "--policy", str(policy), *more])


def test_a_disk_that_is_full_ends_one_image_of_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one may be smaller; all are told, and the highest exit code is the command's."""

    def full(request: PullRequest, *_: object) -> Judged:
        if request.reference.tag == "bad":
            raise BadInput("no such image")
        raise OSError(errno.ENOSPC, "No space left on device", f"/big/{request.reference.tag}")

    monkeypatch.setattr(images, "look", full)
    assert pull(tmp_path, monkeypatch, "1", "bad", "2") == 4
    assert capsys.readouterr().err.splitlines() == [
        "build-images: /big/1: No space left on device",
        "  hint: free disk space, or name another folder: --output, BUILD_IMAGES_HOME",
        "build-images: no such image",
        "build-images: /big/2: No space left on device",
        "  hint: free disk space, or name another folder: --output, BUILD_IMAGES_HOME",
    ]


def test_an_image_that_failed_does_not_stop_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of one repository share a connection; one that fails ends it."""
    sources = list[Registry]()

    def failed(_: PullRequest, source: Registry) -> Judged:
        source.check()
        sources.append(source)
        source.stop()
        raise BadInput("its layers do not unpack")

    monkeypatch.setattr(images, "look", failed)
    puller = images.Puller(plain_http=(), say=lambda _: None)
    parts: dict[str, Any] = {**dict.fromkeys(("host", "policy", "now", "emulated")), "trusted": ()}
    for tag in ("1", "2"):
        reference = Reference.parse(f"127.0.0.1:1/a/b:{tag}")
        with pytest.raises(BadInput, match="do not unpack"):
            puller.judged(PullRequest(reference=reference, format="sif", arch="x86_64", **parts))
    assert len(sources) == 2


def test_an_interrupt_while_an_image_is_judged_is_not_delayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A silent server of names holds up Python's own handling of signals."""
    judging, end, stopped = threading.Event(), threading.Event(), list[str]()

    def look(_: PullRequest, source: Registry) -> Judged:
        judging.set()
        end.wait(20)
        try:
            source.check()
        except Interrupted:
            stopped.append("source")
        raise BadInput("too late")

    def interrupt() -> None:
        judging.wait(20)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(images, "look", look)
    monkeypatch.setattr(Processes, "stop", lambda _: stopped.append("processes"))
    threading.Thread(target=interrupt, daemon=True).start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & ignores it
    try:
        assert pull(tmp_path, monkeypatch, "1", "2") == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert "interrupted" in capsys.readouterr().err
    assert stopped == ["processes"]
    end.set()
    while stopped != ["processes", "source"]:
        time.sleep(0.01)


def run_of(day: int, **more: Any) -> Evidence:
    """A run on a day of January; the check `mpi` passed unless `more` says otherwise."""
    finished = dt.datetime(2026, 1, day, tzinfo=dt.timezone.utc)
    values = {"format": "oci", "architecture": "x86_64", "outcomes": {"mpi": "passed"}, **more}
    return Evidence(finished=finished, **values)


FAILED_RUN = run_of(1, outcomes={"mpi": "failed"}, runner="podman")
SKIPPED_RUN = run_of(1, outcomes={"mpi": "skipped"})
OLD, NEW = (Bill(packages=(Package(name="mpi", version=text),)) for text in ("4", "5"))
OF_OTHERS = Bill(packages=(Package(name="mpi", version="6"),))
SEVERAL = "packages: not compared: no bill of materials that the policy trusts, or several"


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ([FAILED_RUN, run_of(2)], [run_of(2)], "  oci/mpi: failed → passed"),
        ([run_of(2), FAILED_RUN], [SKIPPED_RUN, FAILED_RUN], "checks: equal"),
        ([SKIPPED_RUN, run_of(2)], [run_of(3)], "  oci/mpi: skipped → passed"),
        ([OLD], [NEW], "  mpi: 4 → 5"),
        ([OLD, OLD], [OLD], "packages: equal"),
        ([OLD, NEW], [OLD], SEVERAL),
        ([], [OLD], SEVERAL),
    ],
)
def test_several_statements_about_one_published_image(
    before: list[Content], after: list[Content], shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst outcome of a check counts, and bills only if they agree."""
    digest = f"sha256:{'1' * 64}"

    def look(request: Any, _: object) -> Any:
        contents = before if request.reference.tag == "before" else after
        proofs = [
            Claim(kind="any", subjects=(digest,), key="a.pub", content=content)
            for content in contents
        ]
        proofs.append(Claim(kind="any", subjects=(digest,), content=OF_OTHERS))  # unsigned
        proofs.append(Claim(kind="any", subjects=("sha256:2",), key="a.pub", content=OF_OTHERS))
        return SimpleNamespace(
            request=request,
            source=None,
            remote=SimpleNamespace(image=SimpleNamespace(digest=digest), layers=(), labels={}),
            gathered=SimpleNamespace(proofs=proofs),
            check=lambda: None,
        )

    monkeypatch.setattr(images, "look", look)
    monkeypatch.setattr(images, "published", lambda *_: ())
    parts: dict[str, Any] = dict.fromkeys(("host", "now", "emulated"))
    requests = [
        PullRequest(
            reference=Reference.parse(f"127.0.0.1:1/site/tool:{tag}"),
            format="oci",
            arch="x86_64",
            policy=Policy(keys=()),
            trusted=(),
            **parts,
        )
        for tag in ("before", "after")
    ]
    puller = Puller(plain_http=(), say=lambda _: None)
    assert shown in puller.changes(*requests).as_text().splitlines()


def test_a_reader_that_goes_away_ends_all_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*_: object) -> Judged:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(images, "look", look)
    assert pull(tmp_path, monkeypatch, "1", "2") == 141
    assert capsys.readouterr().err == ""


def test_what_a_policy_refuses_is_told_and_nothing_else() -> None:
    rulings = (
        passed("identity", "it is tools 1.0"),
        refused("age", "proven 100 days ago", "ask for it to be verified again"),
        not_asked("rollback", "nothing was pulled before"),
    )
    error = NotProven("registry.example/tools:1.0", rulings)
    assert str(error).splitlines() == [
        "registry.example/tools:1.0: refused",
        "  ✗ refused    age  proven 100 days ago",
        "                   fix: ask for it to be verified again",
    ]
    assert (error.exit_code, error.rulings) == (5, rulings)


PEM = generate_key().public.pem
