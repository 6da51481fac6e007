"""The scripts of the SIFs that are packed here: what `apptainer run` and `apptainer test` start."""

from __future__ import annotations

RUNSCRIPT = 'if [ $# -gt 0 ]; then exec "$@"; else exec /bin/bash; fi'
TEST = "/opt/build-images/run-checks"
OWN = "/opt/build-images/run"  # of an image whose recipe says what it runs
OWN_RUNSCRIPT = f'exec {OWN} "$@"'
