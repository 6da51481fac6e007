"""Whether a pulled image runs on a host, by its labels, and what is known of that host's GPUs."""

from __future__ import annotations

import pytest
from host_samples import contract, gpu, host, with_gpu

from builder.distribute.pull.remote_image import contract_of, pulled_for
from builder.host.records import Host
from builder.model.contract import as_labels
from builder.trust.policy.records import NO, UNKNOWN, YES, Contract

V100 = gpu("Tesla V100-SXM2-32GB", 70)
K80 = gpu("Tesla K80", 37)
ODD = gpu("NVIDIA of nobody", None)
HOST = host("satori")


def test_an_image_that_fits_needs_no_reason() -> None:
    found = contract_of(as_labels(contract("ppc64le")), "image", HOST, emulated=False)
    assert found is not None
    assert (found.answer, found.reasons) == (YES, ())


def test_an_image_for_another_architecture_says_so() -> None:
    found = contract_of(as_labels(contract("x86_64")), "image", HOST, emulated=False)
    reason = "architecture: the image is for x86_64, and the host is ppc64le: its programs do not"
    assert found == Contract(answer=NO, reasons=(f'{reason} start ("Exec format error")',))


def test_labels_without_a_contract_and_labels_that_are_none() -> None:
    assert contract_of({"title": "x"}, "image", HOST, emulated=False) is None
    odd = contract_of({"build-images.host.schema": "x" * 100_000}, "image", HOST, emulated=False)
    reason = "image: a label of its host contract is too long or nested too deeply"
    assert odd == Contract(answer=UNKNOWN, reasons=(reason,))


@pytest.mark.parametrize(
    ("of", "capabilities", "driver"),
    [
        (with_gpu("satori", devices=(V100, K80), driver="418.87"), (70, 37), "418.87"),
        (with_gpu("satori", devices=(V100, ODD), driver="none"), None, None),
        (with_gpu("satori", devices=None, driver=None), None, None),
        (with_gpu("satori", devices=(), driver="none"), (), None),
    ],
)
def test_what_is_known_of_a_hosts_gpus(
    of: Host, capabilities: tuple[int, ...] | None, driver: str | None
) -> None:
    found = pulled_for(of)
    assert (found.capabilities, found.driver) == (capabilities, driver)
