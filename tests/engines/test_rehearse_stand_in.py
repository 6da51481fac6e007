"""Steps of a cell whose base no registry gives, run on a small base that stands in for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import build_images
from small_base import MATRIX, NAME

RECIPE = """\
recipe: lean
version: "1.0"
about: steps of two stages, of which some fail
development:
  - shell: {commands: ["mkdir -p /opt/lean", "seq 9 > /opt/lean/numbers"]}
  - shell: {commands: ["echo there is no 10 in it", "grep 10 /opt/lean/numbers"]}
runtime:
  - copy: {from: development, src: /opt/lean, dest: /opt/lean}
  - shell: {commands: ["test -s /opt/lean/numbers"]}
  - shell: {commands: ["test -e /opt/lean/never"]}
checks: []
"""


@pytest.mark.engines
def test_steps_run_on_the_stand_in(
    small_site: Path, small_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure is one where nothing before it was missing; nothing is kept as an image."""
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(small_home))
    for name in ("debian12", "debian13"):
        (small_site / f"base-images/{name}.yaml").unlink()
    (small_site / "recipes/lean.yaml").write_text(RECIPE)
    (small_site / "matrix.yaml").write_text(MATRIX.replace(NAME, "ubuntu24.04"))
    done = build_images("rehearse", "--all", "--steps", "--json", "--project", small_site)
    assert done.status == 1, done.stderr
    [cell] = json.loads(done.stdout)["cells"]
    trials = [trial for trial in cell["trials"] if trial["kind"] == "steps"]
    assert [(trial["subject"], trial["outcome"]) for trial in trials] == [
        ("RUN mkdir, seq", "passed"),
        ("RUN echo, grep", "failed"),
        ("RUN test", "passed"),
        ("RUN test", "not tried"),
    ]
    where = "on small in place of ubuntu24.04"
    assert trials[0]["text"] == where
    assert trials[1]["text"] == f"{where}: there is no 10 in it"
    assert trials[3]["text"].startswith("it may depend on steps that did not run (Dockerfile:")
    assert "grep 10 /opt/lean/numbers" in Path(trials[1]["hint"].partition(": ")[2]).read_text()
    assert not (small_site / "out").exists()
    assert not list((small_home / "work").glob("rehearsal-*/Dockerfile"))
    explained = build_images("explain", "--all", "--verbose", "--project", small_site).stdout
    assert "rehearsed on" in explained
    assert "none failed" in explained  # of the trials that say something of the image
