"""`build-images setup`: what images are built with, brought to this machine.

It is the set-up of the clone (`ci/setup`) without the virtual environment: the program is there.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import builder
from builder.cli.options import Options
from builder.model.errors import StepFailed
from builder.system.process import Processes

_SCRIPT = Path(builder.__file__).parent / "host/setup/main.sh"


def set_up(options: Options) -> int:
    """Run the set-up; its exit code."""
    found = shutil.which(sys.argv[0])
    command = str(Path(found).absolute()) if found else "build-images"
    own = {"BUILD_IMAGES_SETUP": f"{command} setup", "BUILD_IMAGES_PYTHON": sys.executable}
    with tempfile.TemporaryDirectory() as folder:
        try:
            Processes().logged(
                ["bash", str(_SCRIPT), *options.words],
                log=Path(folder) / "log",  # the script keeps one of its own
                env={**own, "BUILD_IMAGES_CLONE": ""},
                what="setup",
                on_line=lambda line: print(line, file=sys.stderr, flush=True),
            )
        except StepFailed as error:
            return error.status if error.status > 0 else 1
    return 0
