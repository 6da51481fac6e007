"""Policies as they are read: every fault at once, with its line and what would be valid."""

from __future__ import annotations

import datetime as dt
import json
import lzma
import re
from pathlib import Path

import pytest
import yaml
from samples import ROOT, compare_with_golden

from builder.cli import main
from builder.model.errors import BadInput
from builder.trust.policy.cases import read_cases
from builder.trust.policy.site_policy import (
    CHECK_NAMES,
    MAX_AGE,
    Identity,
    Key,
    Policy,
    RequiredBill,
    RequiredEvidence,
    RequiredHosts,
    RequiredProvenance,
    read_policy,
)
from builder.trust.proof.keys import generate_key
from builder.verify.checks import ENVIRONMENT_CHECK
from builder.verify.formats import EQUALITY_CHECK
from builder.verify.proof import WITHHELD_CHECK
from builder.verify.ranks.launchers import LAUNCHERS
from builder.verify.targets import HARNESS_CHECK

POLICIES = ROOT / "tests/data/policy/policies"
FAULTS = """\
schema: build-images/policy/v2
keys: [site.pub, missing.pub, site.pub]
signatures: 0
evidence:
  required: formats-equal
  max_age: 3 months
  emulated: perhaps
  hosts:
    architectures: [power]
    capabilities: [70]
    driver: new
    runtimes: [enroot]
    launcher: srun
provenance: no
sbom: {forbidden: [x], forbidden_packages: [liblzma5=5.6.1-1, "liblzma5 5.6.1-1"]}
host_contract: ignore
rollback: yes
"""


@pytest.mark.parametrize(
    ("required", "message"),
    [
        ("[formats-equals]", 'did you mean "formats-equal"?'),
        ("[formats-equal, enviroment]", 'did you mean "environment"?'),
        ("[mpj]", 'did you mean "mpi"?'),
        ("[gpu-computes, mpi]", 'did you mean "gpu-compute"?'),
        ("[my-check]", "list your own checks under own_checks, too"),
    ],
)
def test_a_check_that_there_is_not_is_told_when_the_policy_is_read(
    required: str, message: str, tmp_path: Path
) -> None:
    """Every image would be refused, as one in which it was never run."""
    (tmp_path / "site.pub").write_bytes(generate_key().public.pem)
    policy = tmp_path / "policy.yaml"
    text = f"schema: build-images/policy/v1\nkeys: [site.pub]\nevidence:\n  required: {required}\n"
    policy.write_text(text)
    with pytest.raises(BadInput, match=re.escape(message)) as caught:
        read_policy(policy)
    assert f"{policy}:4: evidence.required[" in str(caught.value)
    own = "[my-check, enviroment, mpj, formats-equals, gpu-computes]"
    policy.write_text(f"{text}  own_checks: {own}\n")
    assert read_policy(policy).evidence.required


def test_policy_knows_every_check_of_checks_yaml() -> None:
    shipped = {*yaml.safe_load((ROOT / "tests/images/checks.yaml").read_text())["checks"]}
    launched = {f"mpi-{way}-{entry}" for way in ("hybrid", "bind") for entry in LAUNCHERS}
    harness = {EQUALITY_CHECK, ENVIRONMENT_CHECK, HARNESS_CHECK, WITHHELD_CHECK}
    assert {*CHECK_NAMES} == shipped | launched | harness


def test_a_key_alone_is_a_policy() -> None:
    policy = read_policy(POLICIES / "key-alone.yaml")
    assert policy == Policy(keys=(Key(name="site.pub", file=POLICIES / "site.pub"),))
    assert policy.evidence.max_age == MAX_AGE == dt.timedelta(days=90)
    assert (policy.evidence.emulated, policy.host_contract, policy.rollback) == (False, True, True)
    assert policy.provenance == RequiredProvenance()
    assert policy.bill == RequiredBill()


def test_everything_is_read() -> None:
    policy = read_policy(POLICIES / "everything.yaml")
    assert [entry.name for entry in policy.keys] == ["site.pub", "security.pub"]
    assert policy.signatures == 2
    assert policy.keys[0].until is None
    assert policy.keys[1].until == dt.datetime.combine(
        dt.date(2027, 12, 31), dt.time.max, tzinfo=dt.timezone.utc
    )
    assert policy.evidence == RequiredEvidence(
        required=("formats-equal", "environment", "mpi", "gpu-compute"),
        max_age=dt.timedelta(weeks=26),
        hosts=RequiredHosts(
            architectures=("x86_64",),
            capabilities=(70, 80),
            driver=">=525.60.13,<590",
            runtimes=("apptainer",),
            launchers=("srun",),
        ),
    )
    assert policy.provenance == RequiredProvenance(
        builders=("https://ci.site.example/*",), sources=("git+https://git.site.example/*",)
    )
    assert policy.bill == RequiredBill(
        forbidden_packages=("xz-utils@5.6.[01]*",), forbidden_licences=("AGPL-*",)
    )


@pytest.mark.parametrize(
    ("text", "age"),
    [("12h", dt.timedelta(hours=12)), ("3d", dt.timedelta(days=3)), ("2w", dt.timedelta(weeks=2))],
)
def test_ages_are_in_hours_days_or_weeks(text: str, age: dt.timedelta, tmp_path: Path) -> None:
    (tmp_path / "site.pub").touch()
    (tmp_path / "policy.yaml").write_text(
        f"{HEAD}keys: [site.pub]\nevidence: {{max_age: {text}}}\n"
    )
    assert read_policy(tmp_path / "policy.yaml").evidence.max_age == age


def test_what_is_ignored_is_not_asked_for() -> None:
    policy = read_policy(POLICIES / "little.yaml")
    assert policy.provenance is None
    assert policy.bill is None
    assert (policy.host_contract, policy.rollback, policy.evidence.emulated) == (False, False, True)
    assert policy.evidence.hosts == RequiredHosts(capabilities=None, driver="same")


def test_what_is_told_of_all_faults(tmp_path: Path) -> None:
    """Every word, so that none changes unseen. UPDATE_GOLDEN=1 writes it anew."""
    (tmp_path / "site.pub").touch()
    path = tmp_path / "policy.yaml"
    path.write_text(FAULTS)
    with pytest.raises(BadInput) as raised:
        read_policy(path)
    text = f"{raised.value}\n".replace(str(tmp_path), "HERE")
    compare_with_golden(text, "policy/faults.txt")


HEAD = "schema: build-images/policy/v1\n"
OF_IDENTITY = HEAD + "keys: [{{identity: a, {}}}]\n"


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("", "", "empty"),
        ("- a\n", "", "expected a mapping"),
        ("keys: [site.pub]\n", "schema", "missing"),
        (HEAD, "keys", "missing"),
        (f"{HEAD}keys: []\n", "keys", "at least one"),
        (f"{HEAD}keys: [site.pub]\nsignatures: 2\n", "signatures", "valid: 1 to 1"),
        (f"{HEAD}keys: [{{file: site.pub, until: 2027-01-01}}]\n", "keys[0].until", "in quotes"),
        (f'{HEAD}keys: [{{file: site.pub, until: "soon"}}]\n', "keys[0].until", "2027-12-31"),
        (
            OF_IDENTITY.format("issuer: b, roots: none.json"),
            "keys[0].roots",
            "roots of Sigstore (trusted_root.json)",
        ),
        (
            OF_IDENTITY.format("isuer: b, roots: site.pub"),
            "keys[0].isuer",
            'did you mean "issuer"?',
        ),
        (OF_IDENTITY.format("file: site.pub"), "keys[0].issuer", "missing"),
        *(  # an empty list would accept whatever there is
            (f"{HEAD}keys: [site.pub]\n{part}: {{{key}: []}}\n", f"{part}.{key}", "list is empty")
            for part, key in (("provenance", "builders"), ("provenance", "sources"))
        ),
        *(
            (
                f"{HEAD}keys: [site.pub]\nevidence: {{hosts: {{{key}: []}}}}\n",
                f"evidence.hosts.{key}",
                "list is empty",
            )
            for key in ("architectures", "capabilities", "runtimes", "launchers")
        ),
    ],
)
def test_single_faults(text: str, key: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "site.pub").touch()
    (tmp_path / "policy.yaml").write_text(text)
    with pytest.raises(BadInput) as raised:
        read_policy(tmp_path / "policy.yaml")
    faults = {fault.key: f"{fault.problem} {fault.valid}" for fault in raised.value.faults}
    assert words in faults[key]


def test_a_policy_that_is_not_there_or_no_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for argument in ("missing.yaml", "."):
        policy = tmp_path / argument
        argv = ["pull", "localhost:1/a/b:c", "--format", "oci", "--policy", str(policy)]
        assert main(argv) == 2
        assert "nothing was done" in capsys.readouterr().err


def test_one_key_under_two_names_is_no_second_signature(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pem = generate_key().public.pem
    for name in ("a.pub", "b.pub"):
        (tmp_path / name).write_bytes(pem)
    policy = tmp_path / "policy.yaml"
    policy.write_text("schema: build-images/policy/v1\nkeys: [a.pub, b.pub]\nsignatures: 2\n")
    argv = ["pull", "localhost:1/a/b:c", "--format", "oci", "--policy", str(policy)]
    assert main(argv) == 2
    assert "b.pub: the same key as a.pub" in capsys.readouterr().err


def test_an_identity_is_read_and_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = lzma.decompress((ROOT / "tests/data/sigstore/conformance.json.xz").read_bytes())
    (tmp_path / "roots.json").write_text(json.loads(suite)["roots"]["production"])
    entry = '{identity: "https://a/*", issuer: "https://b", roots: roots.json, until: "2027-12-31"}'
    path = tmp_path / "policy.yaml"
    path.write_text(f"schema: build-images/policy/v1\nkeys: [{entry}]\n")
    [result] = read_policy(path).keys
    assert result == Identity(
        name="https://a/*",
        issuer="https://b",
        roots=tmp_path / "roots.json",
        until=dt.datetime.combine(dt.date(2027, 12, 31), dt.time.max, tzinfo=dt.timezone.utc),
    )
    again = entry.replace(', until: "2027-12-31"', "")
    path.write_text(f"schema: build-images/policy/v1\nkeys: [{entry}, {again}]\n")
    argv = ["pull", "localhost:1/a/b:c", "--format", "oci", "--policy", str(path)]
    assert main(argv) == 2
    assert "identity https://a/*: the same key as https://a/*" in capsys.readouterr().err
    (tmp_path / "roots.json").write_text("{}")
    assert main(argv) == 2
    assert "roots.json: not a trusted_root.json of Sigstore" in capsys.readouterr().err


def test_policy_test_tells_what_is_not_as_expected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = (ROOT / "tests/data/policy/cases/later-failure.yaml").read_text()
    (tmp_path / "one.yaml").write_text(case.replace("checks: refused", "checks: passed"))
    (tmp_path / "two.yaml").write_text(case)
    assert main(["policy", "test", str(tmp_path)]) == 1
    wrong = "checks: expected passed, got refused: failed, 2026-11-20: mpi"
    about = read_cases(tmp_path)[0].about
    shown = f"✗ one: {about}\n    {wrong}\n✓ two: {about}\n2 cases, 1 not as expected\n"
    assert capsys.readouterr().out == shown
    assert main(["policy", "test", str(tmp_path), "--explain"]) == 1
    assert "  ✗ refused    checks" in capsys.readouterr().out
    assert main(["policy", "test", str(tmp_path), "--json"]) == 1
    first, second = json.loads(capsys.readouterr().out)
    assert {"rule", "result", "reason", "fix"} == {*first.pop("rules")[0]} == {*second["rules"][0]}
    assert first == {"case": "one", "as_expected": False, "wrong": [wrong]}
    assert (second["case"], second["as_expected"], second["wrong"]) == ("two", True, [])
    (tmp_path / "one.yaml").write_text("schema: x\n")
    (tmp_path / "two.yaml").write_text(case.replace("kind: signature", "kind: signed"))
    assert main(["policy", "test", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "one.yaml:1" in err
    assert 'unknown kind of proof: "signed"' in err
