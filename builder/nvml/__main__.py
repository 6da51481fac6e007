"""`python -m builder.nvml [LIBRARY]` prints a reading as JSON: what `builder.nvml.ask` starts."""

from __future__ import annotations

import sys

from builder.nvml.reading import read

print(read(library=sys.argv[1]).as_json() if len(sys.argv) > 1 else read().as_json())
