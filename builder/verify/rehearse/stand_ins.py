"""Which base stands in for one of a registry: Debian's of the same time, which is made here."""

from __future__ import annotations

from collections.abc import Iterable

from builder.facts.versions import version_order
from builder.model import BaseImage, PlannedImage
from builder.verify.rehearse.lists import STAND_INS

_FAMILY = frozenset({"debian", "ubuntu"})


def stand_in_for(image: PlannedImage, bases: Iterable[BaseImage]) -> BaseImage | str:
    """The base among a project's `bases` that stands in for an image's; else why none does.

    It is the Debian release that the Ubuntu release was made from, or the oldest that is made here:
    the nearest one.
    """
    base, arch = image.base, image.cell.arch
    if image.is_bootstrapped:
        return f"{base.name} is made here, so the image can be built"
    if base.distribution not in _FAMILY:
        return f"no base of the family of {base.name} is made here"
    near = STAND_INS.get(base.version, ())
    made = [
        (one.bootstrap.suite not in near, version_order(one.version), one.name, one)
        for one in bases
        if one.bootstrap and one.distribution in _FAMILY and arch in one.architectures
    ]
    if not made:
        return f"no base of Debian's family is made here for {arch}"
    return min(made, key=lambda entry: entry[:3])[3]
