"""The command lines by which a shell is opened in an image or a stage; engine tests run them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from manifest_samples import document
from recorded import Commands
from test_image_contract import layout

from builder.artifacts.oci import read_layout
from builder.host.doctor.diagnosis import Item
from builder.model.digests import digest_of_file
from builder.model.errors import BadInput, MissingPrerequisite
from builder.system.process import Processes
from builder.verify import user_commands
from builder.verify.user_commands import SHELLS, shell_in_image, shell_in_stage

PROGRAMS = ("buildah", "apptainer", "ch-run", "pigz")


@pytest.fixture(name="machine")
def machine_with_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """A machine without programs; what runs on its terminal ends with 7."""
    commands = Commands(tmp_path, monkeypatch)
    commands.output.update({" from ": "Getting image\nworking-container-3"})

    def interactive(_processes: Processes, argv: Sequence[Any], **options: Any) -> int:
        commands.note("# on the terminal:")
        commands._started(argv, options)
        return 7

    monkeypatch.setattr(Processes, "interactive", interactive)
    monkeypatch.setenv("TERM", "xterm")
    return commands


@pytest.fixture(name="folder")
def image_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An image in three formats, of a user with sub-ids."""
    monkeypatch.setattr(user_commands, "lacking_ids", lambda *_: None)
    folder = tmp_path / "image-1"
    folder.mkdir()
    digests = {"oci": read_layout(layout(folder, {})).digest}
    for name, file in (("sif", "image.sif"), ("charliecloud", "image.tar.gz")):
        (folder / file).write_text(name)
        digests[name] = digest_of_file(folder / file)
    artifacts = {name: {"digest": digest} for name, digest in digests.items()}
    manifest = document({"image": "image-1", "artifacts": artifacts})
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_commands_of_a_shell(
    folder: Path, machine: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.install(*PROGRAMS)
    with machine.user(is_root=True):
        for runner in SHELLS:
            machine.note(f"## {runner}")
            assert shell_in_image(folder, machine.tools, [], runner=runner) == 7
        assert shell_in_image(folder, machine.tools, ["ls", "-l"], runner=runner) == 7
        machine.note("## a stage")
        assert shell_in_stage(machine.tools, "stage:1", ["ls", "-l"]) == 7
        monkeypatch.delenv("TERM")
        machine.failing.add("rm")  # the container is gone already
        assert shell_in_stage(machine.tools, "stage:1", []) == 7
    machine.compare("runners/shell")


@pytest.mark.parametrize(
    ("installed", "formats", "program"),
    [
        (PROGRAMS, ["oci", "sif", "charliecloud"], "buildah"),
        (PROGRAMS[1:], ["oci", "sif", "charliecloud"], "apptainer"),
        (PROGRAMS, ["charliecloud", "oci"], "buildah"),
        (PROGRAMS[1:], ["oci", "charliecloud"], "ch-run"),
    ],
)
def test_the_first_runner_that_can_open_the_image(
    installed: Sequence[str],
    formats: Sequence[str],
    program: str,
    folder: Path,
    machine: Commands,
) -> None:
    machine.install("pigz", *installed)
    keep_formats(folder, formats)
    assert shell_in_image(folder, machine.tools, ["true"]) == 7
    [line] = [line for line in machine.lines if line.startswith("$ ") and "true" in line]
    assert line.split()[1] == f"FOLDER/bin/{program}"


def test_without_sub_ids_the_image_is_opened_by_another_runner(
    folder: Path, machine: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = Item("subuid", "", "sub-user ids", "no line for me in /etc/subuid", "sudo usermod")
    monkeypatch.setattr(
        user_commands, "lacking_ids", lambda name, _: item if name == "buildah" else None
    )
    machine.install(*PROGRAMS)
    assert shell_in_image(folder, machine.tools, ["true"]) == 7
    [line] = [line for line in machine.lines if line.startswith("$ ") and "true" in line]
    assert line.split()[1] == "FOLDER/bin/apptainer"
    with pytest.raises(MissingPrerequisite, match=r"^sub-user ids: no line for me") as lacking:
        shell_in_image(folder, machine.tools, ["true"], runner="buildah")
    assert lacking.value.hint == "sudo usermod"


def keep_formats(folder: Path, formats: Sequence[str]) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["artifacts"] = {name: manifest["artifacts"][name] for name in formats}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_what_no_shell_can_open(folder: Path, machine: Commands) -> None:
    with pytest.raises(MissingPrerequisite) as lacking:
        shell_in_image(folder, machine.tools, [])
    assert str(lacking.value) == (
        "this machine has none of buildah, apptainer, ch-run\n"
        "  hint: 'build-images doctor' says how to get them"
    )
    keep_formats(folder, ["oci", "charliecloud"])
    with pytest.raises(MissingPrerequisite, match=r"^this machine has none of buildah, ch-run\n"):
        shell_in_image(folder, machine.tools, [])
    with pytest.raises(BadInput, match=r"^apptainer: image-1 has only oci, charliecloud$"):
        shell_in_image(folder, machine.tools, [], runner="apptainer")
    machine.install("buildah")
    machine.failing.add("inspect")
    with pytest.raises(BadInput, match="storage does not have this stage any more") as gone:
        shell_in_stage(machine.tools, "stage:1", [])
    assert "'build-images gc' may have removed it" in gone.value.hint
