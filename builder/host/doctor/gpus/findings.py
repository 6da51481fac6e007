"""What was found of the GPUs, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass

from builder.model.errors import MissingPrerequisite, StepFailed
from builder.system.nvml import LIBRARY_NOT_FOUND, NvmlReading

# Sound: nothing to do. Watch: it works, and somebody should look at it. Sick: results are not to be
# relied on, or there are none. Unknown: this could not be told.
SOUND, WATCH, SICK, UNKNOWN = "sound", "watch", "sick", "unknown"
THE_HOST = "host"
CHECK = "check"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that was looked at.

    `subject` is `host`, a GPU (`GPU 0`) or an image's check; `key` names what was looked at.
    `matter` says whose it is: host, image, start (how containers are started) or unclear, as
    builder.facts has them. `remedy` is what to do, and empty where there is nothing to.
    """

    subject: str
    key: str
    verdict: str
    text: str
    matter: str
    remedy: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuHealth:
    """Everything that was read, and what was found in it."""

    reading: NvmlReading
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> str:
        """The worst of what was found of the host: an image's failed check is none of it."""
        found = {one.verdict for one in self.findings if one.key != CHECK}
        return next((one for one in (SICK, UNKNOWN, WATCH) if one in found), SOUND)

    @property
    def has_gpus(self) -> bool:
        """True if anything says that this host has a GPU, or should have one."""
        reading = self.reading
        broken = reading.fault is not None and reading.fault.name != LIBRARY_NOT_FOUND
        return bool(broken or reading.gpus or reading.pci_gpus or reading.driver_version)

    @property
    def exit_code(self) -> int:
        """0 for GPUs to rely on, 1 if anything is sick or not known, 4 if there is no GPU."""
        if not self.has_gpus:
            return MissingPrerequisite.exit_code
        return StepFailed.exit_code if self.verdict in {SICK, UNKNOWN} else 0
