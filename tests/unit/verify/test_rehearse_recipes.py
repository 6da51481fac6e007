"""The shipped recipes against recorded answers of the index, and lines of sources they clone."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import pytest
from rehearse_samples import sample_rehearsal
from samples import shipped_project

from builder.compile import spec
from builder.model import Selection
from builder.plan import make_plan
from builder.verify.rehearse.trials import FAILED, PASSED, CellTrials

# What the submissions to MLPerf Training v0.6 ask for, of the commit that the recipes name.
_AT = "NVIDIA/benchmarks/{}/implementations/pytorch"
SUBMISSIONS: Mapping[str, str] = {
    f"{_AT.format('transformer')}/setup.py": "CppExtension(name='a', b=['-O2', '--std=c++14'])\n",
    f"{_AT.format('transformer')}/train.py": "import six\nfrom tqdm import tqdm\nimport torch\n",
    f"{_AT.format('ssd')}/train.py": (
        "from nvidia.dali.pipeline import Pipeline\nfrom PIL import Image\n"
        "import mlperf_compliance\n"
        "from pycocotools.coco import COCO\nCOCO(annotation_file='a', use_ext=True)\n"
    ),
    f"{_AT.format('ssd')}/setup.py": "",
    f"{_AT.format('maskrcnn')}/tools/train_net.py": (
        "import cv2\nfrom tqdm import tqdm\nfrom yacs.config import CfgNode\nimport apex\n"
        "import scipy, torchvision\n"
    ),
    f"{_AT.format('maskrcnn')}/setup.py": "",
    f"{_AT.format('gnmt')}/train.py": "import sacrebleu, torch, apex, numpy\n",
    f"{_AT.format('gnmt')}/setup.py": "",
}
REPOSITORIES = {"training_results_v0.6": SUBMISSIONS, "apex": {"setup.py": ""}, "cocoapi": {}}


@functools.cache
def rehearsed(identifier: str, *, silent: str = "://") -> CellTrials:
    """The trials of a shipped cell; `silent` is a part of URLs whose servers do not answer."""
    selection = Selection(images=(identifier,))
    planned = make_plan(shipped_project(), selection, compiler=spec.COMPILER).images[0]
    rehearsal = sample_rehearsal(silent, **REPOSITORIES)
    return rehearsal.of(spec.compile_spec(planned, run_checks="#!/bin/sh\n"))


@pytest.mark.parametrize("base", ["ubuntu18.04", "centos7", "ubi7"])
@pytest.mark.parametrize("arch", ["ppc64le", "x86_64"])
def test_what_pytorch_1_1_is_built_with_is_pinned(base: str, arch: str) -> None:
    """Before, PyYAML and NumPy were compiled on ppc64le with the newest Cython of the day."""
    cell = rehearsed(f"pytorch-source-1.0-{base}-cuda10.1-{arch}")
    python = [trial for trial in cell.trials if trial.kind == "python"]
    assert [trial.outcome for trial in python] == [PASSED] * 3
    compiled = "compiled with what is pinned: numpy 1.19.5, pyyaml 5.4.1"
    assert (compiled in python[-1].text) is (arch == "ppc64le")


@pytest.mark.parametrize("base", ["centos7", "ubi7"])
@pytest.mark.parametrize("name", ["gnmt", "transformer", "maskrcnn", "ssd"])
def test_the_submissions_of_mlperf_have_what_they_ask_for(name: str, base: str) -> None:
    """C++ that gcc 4.8 takes, NVIDIA's pycocotools, tqdm, OpenCV, DALI and six."""
    cell = rehearsed(f"mlperf-{name}-1.0-{base}-cuda10.1-x86_64")
    of_sources = [trial for trial in cell.trials if trial.kind in {"flags", "imports", "patches"}]
    assert [trial for trial in of_sources if trial.outcome == FAILED] == []
    assert any(trial.kind == "imports" and trial.outcome == PASSED for trial in of_sources)


def test_dali_comes_from_its_own_index() -> None:
    cell = rehearsed("mlperf-ssd-1.0-centos7-cuda10.1-x86_64", silent="nvidia.com")
    [dali] = [trial for trial in cell.trials if "nvidia-dali" in trial.subject]
    assert dali.outcome != FAILED
    assert "redist/cuda/10.0" in dali.text


@pytest.mark.parametrize("name", sorted(shipped_project().recipes))
def test_every_recipe_has_a_check_of_its_own(name: str) -> None:
    """A child inherits its parent's checks: they say nothing of what it adds."""
    assert shipped_project().recipes[name].checks
