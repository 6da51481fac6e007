"""The checks of an image, each as one test in each format: by the code of `build-images verify`."""

from __future__ import annotations

import pytest

from builder.verify.formats import compared, read_formats


def test_formats_hold_the_same_tree(image, tools, expect):
    paths = {name: one.path for name, one in image.artifacts.items()}
    target = image.target
    formats = read_formats(paths, arch=target.arch, work=image.work, tools=tools)
    expect(compared(formats, has_checks=bool(target.checks)))


def test_environment(inside, expect):
    expect(inside.environment())


def test_gpu_withheld(inside, expect):
    found = inside.withheld()
    if not found:
        pytest.skip("no GPU was handed over that could be withheld, or there is no gpu-control")
    for outcome in found:
        expect(outcome)


def test_check(inside, check, expect):
    expect(inside.check(check))
