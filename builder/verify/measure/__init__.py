"""The stage that measures an image: how fast its programs are in each format, and bare.

Nothing is gated by it but a collapse: see `Measured.collapse_in`.
"""

from __future__ import annotations

from builder.verify.measure.measurement import BARE, FLOOR, Measured, PlaceFacts
from builder.verify.measure.programs import EMULATED, PROGRAMS, Program, Sizes, bare_kind, how
from builder.verify.measure.programs import FORMAT as BARE_FORMAT
from builder.verify.measure.prometheus import exposition
from builder.verify.measure.rounds import Place, Rounds, programs_in, rows_of, run_rounds
from builder.verify.measure.sampling import Sampler, gpu_look
from builder.verify.measure.text import as_text

__all__ = [
    "BARE",
    "BARE_FORMAT",
    "EMULATED",
    "FLOOR",
    "PROGRAMS",
    "Measured",
    "Place",
    "PlaceFacts",
    "Program",
    "Rounds",
    "Sampler",
    "Sizes",
    "as_text",
    "bare_kind",
    "exposition",
    "gpu_look",
    "how",
    "programs_in",
    "rows_of",
    "run_rounds",
]
