"""JUnit XML of a run, read by a reader that CI tools use."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from junitparser import JUnitXml, TestSuite
from samples import compare_with_golden

from builder.model import FAILED, PASSED, SKIPPED, Outcome
from builder.verify.evidence import junit_xml

DATA = {"ranks": 4, "hosts": 1}
OUTCOMES = [
    Outcome(check="mpi", outcome=PASSED, reason="4 ranks", duration_s=1.25, data=DATA),
    Outcome(check="gpu", outcome=SKIPPED, reason="no GPU here", duration_s=0.5),
    Outcome(check="hpcc", outcome=FAILED, reason="a residual", duration_s=2, output="a\nb"),
]


def read(tmp_path: Path, outcomes: list[Outcome]) -> TestSuite:
    path = tmp_path / "sif.xml"
    path.write_text(
        junit_xml(
            "core-1.0.sif",
            outcomes,
            started="2026-01-01T00:00:00+00:00",
            properties={"emulated": "qemu 11.1", "odd": "a\x00b"},
        )
    )
    found = JUnitXml.fromfile(str(path))
    [suite] = list(found)
    return suite


def test_a_reader_finds_every_case(tmp_path: Path) -> None:
    suite = read(tmp_path, OUTCOMES)
    compare_with_golden((tmp_path / "sif.xml").read_text(), "verify/junit.xml")
    assert (suite.name, suite.timestamp) == ("core-1.0.sif", "2026-01-01T00:00:00+00:00")
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (3, 1, 0, 1)
    assert suite.time == pytest.approx(3.75)
    properties = suite.properties()  # type: ignore[no-untyped-call]
    assert {one.name: one.value for one in properties} == {
        "emulated": "qemu 11.1",
        "odd": "a\ufffdb",
    }
    passed, skipped, failed = list(suite)
    assert [one.name for one in (passed, skipped, failed)] == ["mpi", "gpu", "hpcc"]
    assert {one.classname for one in (passed, skipped, failed)} == {"core-1.0.sif"}
    assert [one.time for one in (passed, skipped, failed)] == [1.25, 0.5, 2]


def test_skipped_is_not_passed(tmp_path: Path) -> None:
    passed, skipped, failed = list(read(tmp_path, OUTCOMES))
    assert passed.is_passed
    assert not passed.result
    assert (skipped.is_skipped, skipped.is_passed) == (True, False)
    assert skipped.result[0].message == "no GPU here"
    assert failed.is_failure
    assert (failed.result[0].message, failed.result[0].type) == ("a residual", FAILED)
    assert failed.result[0].text == "a\nb"


def test_what_was_said_is_in_system_out(tmp_path: Path) -> None:
    passed, skipped, failed = list(read(tmp_path, OUTCOMES))
    assert passed.system_out == 'data: {"hosts": 1, "ranks": 4}\n4 ranks'
    assert skipped.system_out == "no GPU here"
    assert failed.system_out == "a\nb\na residual"


RUBBISH = "a\x00\x01\x0b\x1b[31m\ud800\ufffe\uffff ]]> <b> & \"' \u00e9\U0001f600\tz"


def test_what_xml_cannot_hold_is_replaced(tmp_path: Path) -> None:
    rubbish = Outcome(check="a\x02<", outcome=FAILED, reason=RUBBISH, output=RUBBISH)
    [case] = list(read(tmp_path, [rubbish]))
    assert case.name == "a\ufffd<"
    kept = "\ufffd\ufffd\ufffd\ufffd[31m\ufffd\ufffd\ufffd ]]> <b> & \"' \u00e9\U0001f600\tz"
    assert case.result[0].text == f"a{kept}"
    assert case.result[0].message.replace(" z", "\tz") == f"a{kept}"


def test_every_character_can_be_in_a_reason(tmp_path: Path) -> None:
    text = "".join(map(chr, [*range(0x300), *range(0xD7F0, 0xE010), *range(0xFFF0, 0x10010)]))
    path = tmp_path / "x.xml"
    outcome = Outcome(check="x", outcome=FAILED, reason=text, output=text)
    path.write_text(junit_xml("x", [outcome], started="", properties={}))
    ET.parse(path)
