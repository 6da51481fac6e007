"""`python -m builder.system.nvml [LIBRARY]` prints a reading as JSON; `ask` starts it."""

from __future__ import annotations

import sys

from builder.system.nvml.reading import read

print(read(library=sys.argv[1]).as_json() if len(sys.argv) > 1 else read().as_json())
