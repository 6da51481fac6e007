"""The JSON Schema of evidence: what it always says, and what it may never say."""

from __future__ import annotations

from builder.model import FAILED, FORMATS, PASSED, SKIPPED
from builder.model.predicates import STATEMENT, TEST_RESULT
from builder.verify.evidence import IMAGES_OWN
from builder.verify.ranks import LAUNCHERS

_TEXT = {"type": "string"}
_SAID = {"type": "string", "minLength": 1}
_NAMES = {"type": "array", "items": _SAID, "uniqueItems": True}
_SOME = {"minItems": 1}
_NONE = {"maxItems": 0}
_SHA256 = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_DIGEST = {
    "type": "object",
    "description": "SHA-256, in hexadecimal",
    "properties": {"sha256": _SHA256},
    "required": ["sha256"],
    "additionalProperties": False,
}
_TIME = {
    "type": "string",
    "description": "a time in UTC, to the second, as ISO 8601",
    "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00$",
}


def evidence_schema() -> dict[str, object]:
    """Of `evidence/*.json`: an in-toto Statement v1 with the predicate test-result v0.1."""
    return _object(
        {
            "_type": {"const": STATEMENT},
            "subject": {
                "type": "array",
                "description": "all artifacts of the image, and their tree digest",
                "minItems": 1,
                "items": _object({"name": _SAID, "digest": _DIGEST}),
            },
            "predicateType": {"const": TEST_RESULT},
            "predicate": _predicate(),
        }
    )


def _predicate() -> dict[str, object]:
    shape = _object(
        {
            "result": {"enum": ["PASSED", "WARNED", "FAILED"]},
            "configuration": {
                "type": "array",
                "description": "first the run, then each check",
                "minItems": 1,
                "items": [_run()],
                "additionalItems": _check(),
            },
            "passedTests": {**_NAMES, "description": "checks that passed"},
            "warnedTests": {**_NAMES, "description": "checks that were skipped"},
            "failedTests": {**_NAMES, "description": "checks that failed"},
        }
    )
    return {
        **shape,
        "allOf": [
            _when("result", "PASSED", {"warnedTests": _NONE, "failedTests": _NONE}),
            _when("result", "WARNED", {"warnedTests": _SOME, "failedTests": _NONE}),
            _when("result", "FAILED", {"failedTests": _SOME}),
        ],
    }


def _run() -> dict[str, object]:
    about = _object(
        {
            "format": {"enum": list(FORMATS)},
            "runner": _object({"name": _SAID, "version": _TEXT}),
            "launcher": _launcher(),
            "emulated": {"type": "boolean"},
            "emulator": {
                **_TEXT,
                "description": "what ran a foreign architecture's code; empty if the processor did",
            },
            "gpu": _object(
                {
                    "handed_over": {"type": "boolean"},
                    "reason": {**_TEXT, "description": "why not"},
                }
            ),
            "started": _TIME,
            "finished": _TIME,
            "host": _host(),
            "tools": {
                "type": "object",
                "description": "versions of the programs that had a part in it",
                "additionalProperties": _TEXT,
            },
            "indices": {
                "type": "array",
                "description": "the states of package indices that the image was made with, "
                "where these are known",
                "items": _index(),
            },
        }
    )
    return _object(
        {
            "name": {"const": "run"},
            "uri": {**_SAID, "description": "the harness, as a package URL"},
            "annotations": {
                **about,
                "allOf": [
                    _when("emulated", True, {"emulator": _SAID}),
                    _when("emulated", False, {"emulator": {"const": ""}}),
                ],
            },
        }
    )


def _index() -> dict[str, object]:
    return _object(
        {
            "archive": {**_SAID, "description": "the last part of its address: debian-security"},
            "suite": _SAID,
            "taken_as": {**_SAID, "description": "the name of the suite that it came by"},
            "date": {
                "description": "of its Release file; empty if that has none",
                "anyOf": [_TIME, {"const": ""}],
            },
            "sha256": {**_SHA256, "description": "of its Release file"},
            "behind_days": {
                "type": "integer",
                "minimum": 0,
                "description": "how much older it is than what the mirror told of",
            },
        }
    )


def _launcher() -> dict[str, object]:
    count = {"type": "integer", "minimum": 0}
    shape = _object(
        {
            "name": {
                "enum": [IMAGES_OWN, *LAUNCHERS],
                "description": "what started the ranks of MPI programs",
            },
            "product": {
                **_TEXT,
                "description": "whose launcher it is; empty if it was not there, or did not say",
            },
            "version": _TEXT,
            "command": {**_TEXT, "description": "its words and those of the containers"},
            "ranks": {**count, "description": "that it was asked for"},
            "nodes": {**count, "description": "that it was asked for; 0 if it was to choose"},
            "machines": {
                "type": "array",
                "description": "those that it started ranks on; empty if they did not say",
                "items": _host(name=_SAID),
            },
        }
    )
    none = {"const": 0}
    of_the_image = {"command": {"const": ""}, "ranks": none, "nodes": none}
    return {
        **shape,
        "allOf": [
            _when(
                "name",
                IMAGES_OWN,
                {**of_the_image, "machines": {"maxItems": 0}},
            ),
            *(_when("name", name, {"ranks": {"minimum": 1}}) for name in LAUNCHERS),
        ],
    }


def _host(**more: dict[str, object]) -> dict[str, object]:
    return _object(
        {
            **more,
            "arch": {**_SAID, "description": "as uname -m says"},
            "kernel": _SAID,
            "cpu": _SAID,
            "cores": {"type": "integer", "minimum": 1},
            "os": _SAID,
            "driver": {
                **_TEXT,
                "description": "the version of NVIDIA's kernel module; empty if there is none",
            },
            "gpus": {"type": "array", "description": "models, one a GPU", "items": _SAID},
        }
    )


def _check() -> dict[str, object]:
    finding = _object(
        {
            "outcome": {"enum": [PASSED, FAILED, SKIPPED]},
            "reason": {**_SAID, "description": "the finding, or why it failed or was skipped"},
            "duration_s": {"type": "number", "minimum": 0},
            "data": {"type": "object", "description": "measured values"},
        }
    )
    shape = _object(
        {
            "name": _SAID,
            "digest": {**_DIGEST, "description": "of the check's script in the image"},
            "uri": {**_SAID, "description": "a check of the harness's own"},
            "annotations": finding,
        }
    )
    return {
        **shape,
        "required": ["name", "annotations"],
        "oneOf": [{"required": ["digest"]}, {"required": ["uri"]}],
    }


def _object(properties: dict[str, object]) -> dict[str, object]:
    """An object that has exactly these keys."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _when(key: str, value: object, then: dict[str, object]) -> dict[str, object]:
    return {
        "if": {"properties": {key: {"const": value}}, "required": [key]},
        "then": {"properties": then},
    }
