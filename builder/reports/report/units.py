"""Sizes, times and moments as people read them."""

from __future__ import annotations

from datetime import datetime, timezone

_SIZES = ("B", "kB", "MB", "GB", "TB")


def human_size(size: float) -> str:
    """Bytes in decimal units, as `ls --si` and registries show them: `63.1 MB`."""
    value = float(size)
    for unit in _SIZES:
        if value < 999.5 or unit == _SIZES[-1]:  # noqa: PLR2004 - would round to 1000
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"


def human_time(seconds: float) -> str:
    """Seconds as `0.4 s`, `41 s`, `5 min 01 s` or `1 h 02 min`."""
    if seconds < 0.05:  # noqa: PLR2004 - nothing to see
        return "<0.1 s" if seconds > 0 else "0 s"
    if seconds < 9.95:  # noqa: PLR2004 - below that, tenths matter
        return f"{seconds:.1f} s"
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def human_moment(text: str) -> str:
    """An ISO 8601 moment as `2026-01-31 14:05 UTC`; other text is shown as it is."""
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return text
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
