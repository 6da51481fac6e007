"""`build-images schema`: print the JSON Schema of a kind of file, or of a command's JSON.

Schemas are made from the readers and the records of the files. A file that a schema accepts can
still be refused, because a schema does not see other files. docs/schema has the output of this
command.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from builder.build.listings import plan_schema
from builder.cli.options import Options, Parser
from builder.host.contracts import contract_of_node
from builder.host.records import host_of
from builder.load.document import Faults, Node, learnt
from builder.load.project import KINDS, file_schema, when_schema
from builder.load.recipes import TOOLKIT_ARGUMENTS
from builder.model.errors import ErrorDocument
from builder.model.manifest import Manifest
from builder.model.measurement import ProgramRun
from builder.model.records import schema_of_record
from builder.trust.policy.cases import case_of
from builder.trust.policy.site_policy import policy_of

DIALECT = "http://json-schema.org/draft-07/schema#"  # for the YAML language server of editors
_TITLES = {
    "recipe": "A recipe of build-images: recipes/NAME.yaml",
    "base": "A base image of build-images: base-images/NAME.yaml",
    "matrix": "The matrix of build-images: matrix.yaml",
    "checks": "The checks of build-images: tests/images/checks.yaml",
    "site": "The settings of a site of build-images: site.yaml",
    "host": "A recorded host: build-images check-host --record",
    "host-contract": "The host contract of an image: /opt/build-images/host-contract.json",
    "policy": "A site's requirements for images before a pull: policy.yaml",
    "policy-case": "A recorded case for build-images policy test",
    "evidence": "Results of checks of an image: evidence/*.json",
    "manifest": "An image's cell, inputs and results: out/IDENTIFIER/manifest.json, verify --json",
    "report": "A run's images: out/report.json, build-images --json",
    "plan": "The selected images in build order: build-images plan --json",
    "run": "A program that was run in an image: out/IDENTIFIER/runs/*.json, run --json",
    "error": "An error of a command with --json",
}
_RECORDS: Mapping[str, Callable[[Node, Faults], object]] = {
    "host": host_of,
    "host-contract": contract_of_node,
    "policy": policy_of,
    "policy-case": case_of,
}
FILE_KINDS = (*KINDS, *_RECORDS)
RESULT_KINDS = ("evidence", "manifest", "report", "plan", "run", "error")


class SchemaOptions(Options):
    kind: str


def declare(parser: Parser) -> None:
    kinds = (*FILE_KINDS, *RESULT_KINDS)
    parser.add_argument(
        "kind", metavar="KIND", choices=kinds, help=f"{', '.join(kinds[:-1])} or {kinds[-1]}"
    )


def run(options: SchemaOptions) -> int:
    """Print the schema of the requested kind."""
    print(schema_text(options.kind), end="")
    return 0


def schema_of(kind: str) -> dict[str, object]:
    """Return the JSON Schema of one of `FILE_KINDS` or `RESULT_KINDS`."""
    return {"$schema": DIALECT, "title": _TITLES[kind], **_shape(kind)}


def schema_text(kind: str) -> str:
    """Return the schema as it is printed, and written to docs/schema/KIND.json."""
    return json.dumps(schema_of(kind), indent=1, ensure_ascii=False) + "\n"


def _shape(kind: str) -> dict[str, object]:
    if kind in RESULT_KINDS:
        return _of_result(kind)
    if kind in _RECORDS:
        return learnt(_RECORDS[kind])
    shape = file_schema(kind)
    if kind == "recipe":
        from builder.compile.spec.schema import block_schemas  # noqa: PLC0415 - it imports hpccm

        shape["definitions"] = block_schemas(when_schema(), TOOLKIT_ARGUMENTS)
    return shape


def _of_result(kind: str) -> dict[str, object]:
    from builder.reports.report import ReportDocument  # noqa: PLC0415 - slow, for results alone
    from builder.verify.evidence import evidence_schema  # noqa: PLC0415 - the same

    if kind == "evidence":
        return evidence_schema()
    records = {"manifest": Manifest, "report": ReportDocument, "run": ProgramRun}
    records["error"] = ErrorDocument
    return schema_of_record(records[kind]) if kind in records else plan_schema()
