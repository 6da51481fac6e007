"""What Python projects fix: packages that are in an index of their publisher's and in no other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishersIndex:
    """An index that has some versions of a package. `url` begins its address; `example` is one."""

    package: str
    versions: str
    url: str
    example: str
    source: str


_REDIST = "https://developer.download.nvidia.com/compute/redist"
_DALI = "https://docs.nvidia.com/deeplearning/dali/archives"
PUBLISHERS_INDEXES = (
    PublishersIndex(
        package="nvidia-dali",
        versions=">=0.8,<0.23",
        url=f"{_REDIST}/cuda/",
        example=f"{_REDIST}/cuda/10.0",
        source=f"{_DALI}/dali_0110_beta/dali-developer-guide/docs/installation.html",
    ),
    PublishersIndex(
        package="nvidia-dali-cuda100",
        versions=">=0.23,<1.5",
        url=_REDIST,
        example=_REDIST,
        source=f"{_DALI}/dali_0250/user-guide/docs/installation.html",
    ),
)
