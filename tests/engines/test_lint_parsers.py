"""Apptainer's own parser reads every definition among the golden files.

Apptainer has no mode that only parses. It reads the whole definition before it looks for the
base, so a definition whose base is not there ends with one message if it was read, and with
another if it was not. Nothing is unpacked or built: 0.1 to 0.3 s each.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from harness import PROJECT

from builder.build.engines import Tools, apptainer
from builder.system.process import Completed

DEFINITIONS = sorted(PROJECT.glob("tests/golden/*/*/Singularity.def"))
READ = "while performing build: conveyor failed to get: error extracting the OCI archive file"
NOT_READ = "while parsing definition"
ABSENT = "BootStrap: oci-archive\nFrom: absent.oci.tar"
REGISTRY = re.compile(r"^BootStrap: (?!oci-archive).*\nFrom: .*$", re.MULTILINE)


def parsed(text: str, folder: Path, tools: Tools) -> Completed:
    """Give a definition to Apptainer; a base from a registry is replaced by one that is absent."""
    (folder / "Singularity.def").write_text(REGISTRY.sub(ABSENT, text))
    return tools.processes.capture(
        [tools.program("apptainer"), "build", "--force", "image.sif", "Singularity.def"],
        cwd=folder,
        env=apptainer.environment(folder),
        user=tools.ordinary_user,
        timeout_s=120,
        check=False,
    )


@pytest.mark.engines
@pytest.mark.parametrize(
    "file", DEFINITIONS, ids=lambda file: f"{file.parts[-3]}/{file.parent.name}"
)
def test_apptainer_reads_the_definition(file: Path, tools: Tools, shared_folder: Path) -> None:
    done = parsed(file.read_text(), shared_folder, tools)
    assert READ in done.stderr.replace("FATAL:   While", "while"), done.stderr
    assert NOT_READ not in done.stderr


BROKEN = {
    "a section": ("%post", "%posst", f"{NOT_READ}.*invalid section"),
    "a header": ("Stage: runtime", "Stagee: runtime", f"{NOT_READ}.*invalid header keyword"),
    "before the header": ("# ", "hello ", f"{NOT_READ}.*invalid header keyword"),
    "braces": ("mkdir -p", "mkdir {{ name }}", "build var name is not defined"),
}


@pytest.mark.engines
@pytest.mark.parametrize("case", BROKEN)
def test_apptainer_refuses_what_lint_refuses(case: str, tools: Tools, shared_folder: Path) -> None:
    """The messages differ where the definition cannot be read: the test above can fail."""
    old, new, message = BROKEN[case]
    text = DEFINITIONS[0].read_text()
    assert old in text
    done = parsed(text.replace(old, new, 1), shared_folder, tools)
    assert done.returncode != 0
    assert re.search(message, done.stderr), done.stderr
    assert "conveyor" not in done.stderr


def test_there_are_definitions_to_read() -> None:
    assert DEFINITIONS
