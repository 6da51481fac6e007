"""Outcomes as JUnit XML, which CI systems read.

The elements are those that Jenkins and GitLab document:
https://github.com/testmoapp/junitxml
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree as ET

from builder.model import FAILED, SKIPPED, Outcome

# Everything but https://www.w3.org/TR/xml/#NT-Char
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def junit_xml(
    suite: str, outcomes: Sequence[Outcome], *, started: str, properties: Mapping[str, str]
) -> bytes:
    """The file's bytes: one test suite with a test case for each check.

    `suite` is also the class of its cases. Times are in seconds, `started` is in ISO 8601. What
    XML cannot hold is replaced.
    """
    numbers = {
        "tests": str(len(outcomes)),
        "failures": str(sum(one.outcome == FAILED for one in outcomes)),
        "errors": "0",
        "skipped": str(sum(one.outcome == SKIPPED for one in outcomes)),
        "time": _seconds(sum(one.duration_s for one in outcomes)),
    }
    root = ET.Element("testsuites", {"name": "build-images", **numbers})
    element = ET.SubElement(
        root, "testsuite", {"name": _safe(suite), "timestamp": started, **numbers}
    )
    listed = ET.SubElement(element, "properties")
    for name, value in properties.items():
        ET.SubElement(listed, "property", {"name": name, "value": _safe(value)})
    for one in outcomes:
        element.append(_case(suite, one))
    ET.indent(root, " ")
    data: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return data + b"\n"


def _case(suite: str, outcome: Outcome) -> ET.Element:
    case = ET.Element(
        "testcase",
        {
            "classname": _safe(suite),
            "name": _safe(outcome.check),
            "time": _seconds(outcome.duration_s),
        },
    )
    if outcome.outcome == SKIPPED:
        ET.SubElement(case, "skipped", {"message": _safe(outcome.reason)})
    elif outcome.outcome == FAILED:
        attributes = {"message": _safe(outcome.reason), "type": FAILED}
        ET.SubElement(case, "failure", attributes).text = _safe(outcome.output)
    ET.SubElement(case, "system-out").text = _safe("\n".join(_said(outcome)))
    return case


def _said(outcome: Outcome) -> list[str]:
    data = [f"data: {json.dumps(dict(outcome.data), sort_keys=True)}"] if outcome.data else []
    return [*([outcome.output] if outcome.output else []), *data, outcome.reason]


def _seconds(duration: float) -> str:
    return f"{duration:.3f}"


def _safe(text: str) -> str:
    return _NO_XML.sub(_REPLACEMENT, text)
