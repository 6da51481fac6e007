"""Images and hosts held against each other: the outcomes, each with its reason and its fix."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml
from host_samples import (
    NO_GPUS,
    OPENMPI,
    RECORDS,
    contract,
    contract_like,
    cuda,
    gpu,
    known,
    recorded,
    with_gpu,
)
from samples import ROOT, compare_with_golden

from builder.facts import NO_FACTS, Facts
from builder.host.records import Host, HostGpu, HostGpus, host_of
from builder.host.rules import judge
from builder.host.verdict import NO, UNKNOWN, YES, HostVerdict, as_text
from builder.load.document import Faults, parse_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One image, one host, and the verdict on them: a row of tests/data/check-host.yaml."""

    name: str
    image: dict[str, Any]
    host: str
    answer: str
    rule: str
    says: str
    fix: str = ""
    changes: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    rule_answer: str = ""

    def host_with_changes(self) -> Host:
        """The host of the record in which something else is written."""
        document = json.loads((RECORDS / f"{self.host}.json").read_text())
        gpu = {**(document.get("gpu") or {}), **self.changes.get("gpu", {})}
        text = json.dumps({**document, **self.changes, "gpu": gpu})
        faults = Faults()
        node = parse_bytes(text.encode(), self.host, faults)
        assert node
        host = host_of(node, faults)
        assert not faults.found
        return host


OUTCOMES = [
    Outcome(**row)
    for row in yaml.safe_load((ROOT / "tests/data/check-host.yaml").read_text())["outcomes"]
]


def judged(one: Outcome, facts: Facts | None = None) -> HostVerdict:
    options: dict[str, Any] = {
        key: value is True or tuple(value) for key, value in one.options.items()
    }
    image = contract_like(**one.image)
    return judge(image, one.host_with_changes(), facts or known(), **options)


@pytest.mark.parametrize("one", OUTCOMES, ids=lambda one: one.name)
def test_outcome(one: Outcome) -> None:
    verdict = judged(one)
    assert verdict.answer == one.answer, as_text(verdict, colour=False)
    findings = (*verdict.rules, *verdict.runtimes, *verdict.launchers)
    found = next(finding for finding in findings if finding.rule == one.rule)
    assert found.answer == (one.rule_answer or one.answer), as_text(verdict, colour=False)
    assert one.says in found.reason
    assert one.fix in found.fix
    assert all(finding.reason and finding.fix for finding in verdict.decisive)
    assert one.answer == YES or one.rule in [finding.rule for finding in verdict.decisive]


def test_all_that_is_told_of_all_outcomes() -> None:
    lines = []
    for one in OUTCOMES:
        lines += [f"## {one.name}", as_text(judged(one), colour=False), ""]
    compare_with_golden("\n".join(lines), "check-host.txt")


def test_there_are_as_many_outcomes_as_were_asked_for() -> None:
    names = [one.name for one in OUTCOMES]
    assert len(names) == len({*names}) >= 26
    assert {one.answer for one in OUTCOMES} == {YES, NO, UNKNOWN}


@pytest.mark.parametrize("one", OUTCOMES, ids=lambda one: one.name)
def test_the_text_says_all_of_it(one: Outcome) -> None:
    verdict = judged(one)
    text = " ".join(as_text(verdict, colour=False).split())
    for finding in (*verdict.rules, *verdict.runtimes, *verdict.launchers):
        assert " ".join(f"{finding.answer} {finding.rule} {finding.reason}".split()) in text
        if finding.answer != YES:
            assert " ".join(finding.fix.split()) in text


@pytest.mark.parametrize("one", OUTCOMES, ids=lambda one: one.name)
def test_facts_say_what_to_take_instead_and_change_no_answer(one: Outcome) -> None:
    """So `pull`, which tells no fix, does without."""
    with_facts, without = judged(one), judged(one, NO_FACTS)
    told = [(rule.rule, rule.answer, rule.reason) for rule in with_facts.rules]
    assert [(rule.rule, rule.answer, rule.reason) for rule in without.rules] == told


def test_checks_that_are_to_be_run_are_there() -> None:
    """Under the names that `verify` and `run-checks` know them by."""
    declared = yaml.safe_load((ROOT / "tests/images/checks.yaml").read_text())["checks"]
    findings = [
        finding
        for one in OUTCOMES
        for finding in (*judged(one).rules, *judged(one).runtimes, *judged(one).launchers)
    ]
    texts = " ".join(f"{one.reason} {one.fix}" for one in findings)
    named = {*re.findall(r"(?:its|the|image's) check ([\w-]+)", texts)}
    assert {"gpu-compute", "mpi"} <= named <= declared.keys()


def test_each_sentence_is_chosen_by_a_rule() -> None:
    folder = ROOT / "builder/host"
    rows = yaml.safe_load((folder / "answers.yaml").read_text()).keys()
    modules = ("rules", "gpus", "runtimes")
    code = "".join((folder / f"{name}.py").read_text() for name in modules)
    chosen = {*re.findall(r'case\.(?:yes|no|unknown)\(\s*"([\w-]+)"', code)}
    assert chosen <= rows
    assert [name for name in rows if f'"{name}"' not in code] == []


def test_an_older_cuda_without_code_for_the_gpu_is_no_way_out() -> None:
    verdict = judge(contract(cuda=cuda("11.8")), with_gpu("dgx", driver="418.87.00"), known())
    driver = next(one for one in verdict.rules if one.rule == "driver")
    assert driver.fix.startswith("install NVIDIA's driver")  # CUDA 10.1 has none for an A100


@pytest.mark.parametrize(
    ("devices", "says"),
    [
        ((gpu("Tesla V100-SXM2-32GB", None, mig=None),), "yes: 1 x Tesla V100-SXM2-32GB"),
        ((gpu("", None, mig=None),), "cannot tell: it is not known whether GPU 0 is in MIG mode"),
        (
            (gpu("A100", 80, mig=True, mig_instances=2), gpu("", None)),
            "yes: 1 x A100, 1 x unknown model; 2 MIG instances: a process computes on one",
        ),
        (
            (gpu("A100", 80, mig=True, mig_instances=0), gpu("A100", 80, mig=True)),
            "cannot tell: it is not known whether GPU 1 is in MIG mode",
        ),
    ],
)
def test_which_gpus_a_program_sees(devices: tuple[HostGpu, ...], says: str) -> None:
    verdict = judge(contract(cuda=cuda("11.8")), with_gpu("dgx", devices=devices), known())
    [found] = [one for one in verdict.rules if one.rule == "GPUs"]
    assert f"{found.answer}: {found.reason}".startswith(says)


def test_no_cuda_has_code_for_the_newest_gpu_on_an_old_driver() -> None:
    image = contract(cuda=dataclasses.replace(cuda("10.1"), ptx=""))
    verdict = judge(image, with_gpu("dgx", driver="418.87.00", devices=(gpu("H100", 90),)), known())
    assert verdict.rules[-1].fix == (
        "another driver, or a GPU of another generation: no CUDA has code for 9.0 that this driver "
        "runs"
    )


def test_emulated_is_never_said_to_be_native() -> None:
    one = next(one for one in OUTCOMES if one.name == "emulation that is there")
    verdict = judged(one)
    assert verdict.emulated
    assert "yes: emulated, not native" in as_text(verdict, colour=False)
    native = judge(contract(), recorded("dgx"), known(), emulated=True)
    assert not native.emulated
    assert "yes: it runs here" in as_text(native, colour=False)


def test_colours_are_the_terminals() -> None:
    verdict = judged(OUTCOMES[1])
    assert "\033[31m" in as_text(verdict, colour=True)
    assert "\033" not in as_text(verdict, colour=False)


def test_a_host_of_nothing_is_no_yes() -> None:
    verdict = judge(contract(cuda=cuda("12.4"), mpi=OPENMPI), Host(), known())
    assert verdict.answer == UNKNOWN
    answers = {one.rule: one.answer for one in verdict.rules}
    assert answers.pop("processor") == YES  # the image runs on every one of its architecture
    assert {*answers.values()} == {UNKNOWN}
    assert HostGpus() == Host().gpu != NO_GPUS
