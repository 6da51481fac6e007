"""YAML as people write it: keys in our order, commands of several lines as a block."""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from builder.reports.pipelines.jobs import Pipeline

HEADER = """\
# Made by: {command}
# Change recipes or matrix.yaml, not this file, and print it again. docs/ci.md tells of it.
"""


class _Dumper(yaml.SafeDumper):
    """Without anchors and aliases, and with lists indented."""

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        del indentless
        super().increase_indent(flow, indentless=False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(pipeline: Pipeline, document: Mapping[str, object]) -> str:
    """The text of a pipeline, with a head that says where it comes from."""
    body = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)
    return HEADER.format(command=pipeline.command) + body
