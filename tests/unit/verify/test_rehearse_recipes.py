"""The shipped recipes against recorded answers of the index, and lines of sources they clone."""

from __future__ import annotations

import functools

import pytest
import yaml
from rehearse_samples import sample_rehearsal, shipped
from samples import ROOT, shipped_project

from builder.compile import spec
from builder.verify.rehearse.trials import FAILED, PASSED, CellTrials

SUBMISSIONS = yaml.safe_load((ROOT / "tests/data/rehearsal/mlperf.yaml").read_text())
REPOSITORIES = {"training_results_v0.6": SUBMISSIONS, "apex": {"setup.py": ""}, "cocoapi": {}}


@functools.cache
def rehearsed(identifier: str, *, silent: str = "://") -> CellTrials:
    """The trials of a shipped cell; `silent` is a part of URLs whose servers do not answer."""
    compiled = spec.compile_spec(shipped(identifier), run_checks="#!/bin/sh\n")
    return sample_rehearsal(silent, **REPOSITORIES).of(compiled)


@pytest.mark.parametrize("base", ["ubuntu18.04", "centos7", "ubi7"])
@pytest.mark.parametrize("arch", ["ppc64le", "x86_64"])
def test_what_pytorch_1_1_is_built_with_is_pinned(base: str, arch: str) -> None:
    """Before, PyYAML and NumPy were compiled on ppc64le with the newest Cython of the day."""
    cell = rehearsed(f"pytorch-source-1.0-{base}-cuda10.1-{arch}")
    python = [trial for trial in cell.trials if trial.kind == "python"]
    first = arch == "ppc64le" and base != "ubuntu18.04"  # NumPy alone, with an option for gcc 4.8
    assert [trial.outcome for trial in python] == [PASSED] * (3 + first)
    compiled = "compiled with pinned requirements: numpy 1.19.5, pyyaml 5.4.1"
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
