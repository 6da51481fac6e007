"""What hpccm logs, as faults: it says of a mistake in a recipe that it warns, and goes on.

All of its warnings and errors were read (grep logging. in its source). Every one is taken for a
fault of the block that it is about, but for those in `EXPLAINED`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

# Beginnings of messages that say nothing about the text that hpccm makes, each with the reason.
EXPLAINED = {
    'unrecognized CPU target "None"': "none is meant: the text is for any processor",
}


class Complaints(logging.Handler):
    """Gathers what hpccm logs; it uses the root logger for all of it."""

    def __init__(self) -> None:
        super().__init__(level=logging.WARNING)
        self._messages: list[str] = []

    @property
    def messages(self) -> list[str]:
        """Each message once, in order."""
        return list(dict.fromkeys(self._messages))

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if not message.startswith(tuple(EXPLAINED)):
            self._messages.append(" ".join(message.split()))


@contextlib.contextmanager
def complaints() -> Iterator[Complaints]:
    """Gather hpccm's warnings and errors within the block."""
    root = logging.getLogger()
    handler = Complaints()
    root.addHandler(handler)
    try:
        yield handler
    finally:
        root.removeHandler(handler)
