"""Formats have to hold the same tree, and the same owners where they keep them."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest
from made_formats import SifPart, write_sif
from samples import a_file, a_link, tar_bytes
from test_proving import Unpacks

from builder.artifacts.tree import TreeEntry
from builder.build.engines import Tools
from builder.model import FAILED, PASSED, SKIPPED, Artifact
from builder.system.home import Home
from builder.system.process import Processes
from builder.verify import formats
from builder.verify.formats import FormatTree, equality
from builder.verify.launched import PROGRAM, program_digest


def a_tree(owners: dict[str, str] | None = None, **contents: str) -> FormatTree:
    return FormatTree(
        entries={
            name: TreeEntry(
                path=name,
                kind="file",
                mode=0o644,
                content=text,
                owner=(owners or {}).get(name, "0:0"),
            )
            for name, text in contents.items()
        }
    )


def test_equal_trees_are_said_to_be() -> None:
    tree = a_tree(a="1")
    outcome = equality({"oci": tree, "sif": a_tree(a="1")})
    assert outcome.outcome == PASSED
    digest = tree.digest[: len("sha256:") + 12]
    assert outcome.reason == f"oci, sif hold the same 1 paths, {digest}"


def test_one_tree_is_compared_with_none() -> None:
    assert equality({"oci": a_tree(a="1")}).outcome == SKIPPED


def test_trees_that_differ_are_failed_with_the_first_paths() -> None:
    other = a_tree(None, **{f"f{n}": "" for n in range(100, 301)})
    outcome = equality({"oci": a_tree(), "sif": a_tree(), "charliecloud": other})
    assert outcome.outcome == FAILED
    assert outcome.reason.startswith("oci and charliecloud: /f100: only in the second; ")
    assert outcome.reason.endswith("; and 196 more")
    assert outcome.output.splitlines() == [
        f"oci and charliecloud: /f{n}: only in the second" for n in range(100, 300)
    ]


@pytest.mark.parametrize(("count", "end"), [(5, "second"), (6, "; and 1 more")])
def test_as_many_paths_as_are_shown_are_not_cut_short(count: int, end: str) -> None:
    other = a_tree(None, **{f"f{n}": "" for n in range(count)})
    assert equality({"oci": a_tree(), "sif": other}).reason.endswith(end)


def test_a_format_that_cannot_be_read_is_not_equal() -> None:
    broken = {"sif": "image.sif: not a SIF", "charliecloud": "no tar"}
    outcome = equality({"oci": a_tree(a="1")}, broken)
    reason = "sif: image.sif: not a SIF; charliecloud: no tar"
    assert (outcome.outcome, outcome.reason) == (FAILED, reason)


def test_an_interruption_ends_what_reads_the_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> FormatTree:
        raise KeyboardInterrupt

    monkeypatch.setattr(formats, "tree_of_artifact", interrupted)
    tools = Tools(processes=Processes(), home=Home(path=tmp_path))
    with pytest.raises(KeyboardInterrupt):
        formats.read_formats({"oci": tmp_path}, arch="x86_64", work=tmp_path, tools=tools)
    assert tools.processes.stopping


MAIL = {"a": "0:8"}


@pytest.mark.parametrize("capability", ["", " security.capability='\\x01'"])
def test_owners_are_compared_where_they_are_kept(capability: str) -> None:
    """A SIF that an ordinary user packed has one owner for all, and files' capabilities."""
    able = {"b": f"0:0{capability}"}
    trees = {
        "oci": a_tree({**MAIL, **able}, a="1", b="2"),
        "sif": a_tree(able, a="1", b="2"),
        "charliecloud": a_tree({**MAIL, **able}, a="1", b="2"),
    }
    outcome = equality(trees)
    assert outcome.outcome == PASSED
    assert outcome.reason.endswith("; owners are the same in oci and charliecloud")


@pytest.mark.parametrize("lost", ["oci", "charliecloud"])
def test_an_owner_that_was_lost_is_found(lost: str) -> None:
    kept = a_tree(MAIL, a="1", b="2")
    trees = {"oci": kept, "sif": a_tree(a="1", b="2"), "charliecloud": kept}
    trees[lost] = a_tree({}, a="1", b="2")
    outcome = equality(trees)
    assert outcome.outcome == FAILED
    first, second = ("0:0", "0:8") if lost == "oci" else ("0:8", "0:0")
    assert outcome.reason == f"oci and charliecloud: /a: owner {first}, not {second}"


def test_owners_in_a_sif_that_keeps_them_are_compared() -> None:
    kept = a_tree(MAIL, a="1", b="2")
    trees = {"oci": kept, "sif": a_tree({"b": "0:8"}, a="1", b="2"), "charliecloud": kept}
    outcome = equality(trees)
    assert outcome.outcome == FAILED
    assert outcome.reason == (
        "oci and sif: /a: owner 0:8, not 0:0; oci and sif: /b: owner 0:0, not 0:8"
    )


def program_in(artifact_format: str, path: Path, tools: Tools) -> str:
    artifact = Artifact(format=artifact_format, path=path, digest="", size=1)
    return program_digest(artifact, work=path.parent, tools=tools)


def test_the_digest_of_the_ranks_program_in_an_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tools, "which", lambda _tools, name: name)
    processes = Unpacks(tar_bytes(a_file(PROGRAM[1:], "program")))
    tools = Tools(processes=processes, home=Home(path=tmp_path))
    sif = write_sif(tmp_path / "image.sif", [SifPart(content=b"hsqs", arch=b"02")])
    assert program_in("sif", sif, tools) == hashlib.sha256(b"program").hexdigest()
    assert processes.options == ["--subdir", "opt/build-images/bin", "--keep-as-dir"]
    tarball = tmp_path / "image.tar.gz"
    for name, digest in ((PROGRAM, hashlib.sha256(b"program").hexdigest()), ("/opt/other", "")):
        tarball.write_bytes(gzip.compress(tar_bytes(a_file(f".{name}", "program"))))
        assert program_in("charliecloud", tarball, tools) == digest
    tarball.write_bytes(gzip.compress(tar_bytes(a_link(PROGRAM[1:], "/bin/true"))))
    assert program_in("charliecloud", tarball, tools) == ""
    tarball.write_bytes(gzip.compress(b"no tar"))
    assert program_in("charliecloud", tarball, tools) == ""


def test_no_digest_where_this_machine_cannot_look_into_an_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tools, "which", lambda *_: None)
    tools = Tools(processes=Processes(), home=Home(path=tmp_path))
    (tmp_path / "image.sif").write_bytes(b"no sif")
    for name, file in (("charliecloud", "image.tar.gz"), ("sif", "image.sif")):
        assert program_in(name, tmp_path / file, tools) == ""


def test_a_name_with_a_newline_forges_no_line() -> None:
    name = "a\n  sif          formats-equal    passed   oci, sif hold the same"
    outcome = equality({"oci": a_tree(), "sif": a_tree(None, **{name: ""})})
    assert outcome.outcome == FAILED
    assert "\n" not in outcome.reason + outcome.output
    assert "/a\\n  sif" in outcome.reason
