"""What is read from NVML: of a library that answers as a driver would, made from fakes/nvml.c."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import fake_nvml

from builder.system import nvml
from builder.system.nvml import (
    EccErrors,
    NvmlFault,
    RemappedRows,
    RetiredPages,
    reading_of,
)
from builder.system.nvml_reader import read
from builder.system.process import Completed, Processes

KERNEL = (
    "NVRM version: NVIDIA UNIX ppc64le Kernel Module  418.87.00  Thu Aug  8\nGCC version:  gcc\n"
)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return fake_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(KERNEL)
    return tmp_path / "proc"


def asked(
    library: str, monkeypatch: pytest.MonkeyPatch, said: str = "", *, timeout_s: float = 20
) -> nvml.NvmlReading:
    """A reading by a process of its own, with answers changed: the C library's getenv sees them."""
    monkeypatch.setenv("FAKE_NVML", said)
    return nvml.ask(Processes(), library=library, timeout_s=timeout_s)


def test_a_healthy_v100(library: str, proc: Path) -> None:
    found = read(library=library, proc=proc, sys=proc)
    assert found.fault is None
    assert (found.driver, found.kernel_driver, found.cuda) == ("418.87.00", "418.87.00", "10.1")
    [gpu] = found.gpus
    assert gpu == nvml.Gpu(
        index=0,
        name="Tesla V100-SXM2-32GB",
        uuid="GPU-00000000",
        pci="0004:04:00.0",
        compute_capability="7.0",
        memory_bytes=34089730048,
        memory_used_bytes=1048576,
        temperature_c=34,
        slowdown_c=87,
        power_w=37.5,
        power_limit_w=300.0,
        sm_clock_mhz=135,
        sm_clock_max_mhz=1530,
        memory_clock_mhz=877,
        performance_state=0,
        throttling=1,
        persistence=True,
        compute_mode=0,
        utilization_percent=0,
        ecc_enabled=True,
        ecc=EccErrors(
            volatile_corrected=0,
            volatile_uncorrected=0,
            aggregate_corrected=0,
            aggregate_uncorrected=0,
        ),
        retired_pages=RetiredPages(single_bit=0, double_bit=0, pending=False),
        pcie_generation=3,
        pcie_width=16,
        pcie_width_max=16,
        nvlinks=6,
    )


def test_what_a_gpu_cannot_be_asked_is_none_and_no_fault(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "temp=-3,persistence=-4,ecc=-3,vuncorrected=-3,single=-3"
    [gpu] = asked(library, monkeypatch, said).gpus
    assert (gpu.temperature_c, gpu.persistence, gpu.ecc_enabled) == (None, None, None)
    assert (gpu.retired_pages, gpu.remapped_rows, gpu.mig_enabled) == (None, None, None)
    assert gpu.ecc.volatile_uncorrected is None
    assert gpu.fault is None


def test_memory_in_use_is_without_what_the_driver_keeps_for_itself(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An H200 with nothing on it: nvidia-smi says 0 MiB, and the first version of the call 615."""
    [gpu] = asked(library, monkeypatch, "reserved=1048000").gpus
    assert (gpu.memory_bytes, gpu.memory_used_bytes) == (34089730048, 576)


def test_errors_of_memory(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "vcorrected=9,vuncorrected=4000000000000,uncorrected=5,single=3,double=2,pagespending=1"
    [gpu] = asked(library, monkeypatch, said).gpus
    assert gpu.ecc == EccErrors(
        volatile_corrected=9,
        volatile_uncorrected=4000000000000,
        aggregate_corrected=0,
        aggregate_uncorrected=5,
    )
    assert gpu.retired_pages == RetiredPages(single_bit=3, double_bit=2, pending=True)


def test_rows_of_newer_gpus(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    [gpu] = asked(library, monkeypatch, "rows=2,rowspending=1,rowsfailed=1").gpus
    assert gpu.remapped_rows == RemappedRows(
        correctable=0, uncorrectable=2, pending=True, failed=True
    )


@pytest.mark.parametrize(("said", "devices"), [("mig=1", 0), ("mig=1,migdevices=3", 3)])
def test_mig(library: str, monkeypatch: pytest.MonkeyPatch, said: str, devices: int) -> None:
    [gpu] = asked(library, monkeypatch, said).gpus
    assert (gpu.mig_enabled, gpu.mig_devices) == (True, devices)


def test_mig_devices_that_cannot_be_counted(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not known: none at all would be an accusation."""
    [gpu] = asked(library, monkeypatch, "mig=1,migdevices=-999").gpus
    assert gpu.fault is not None
    assert (gpu.fault.call, gpu.mig_devices) == ("nvmlDeviceGetMigDeviceHandleByIndex", None)


def test_mig_that_is_off(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    [gpu] = asked(library, monkeypatch, "mig=0,migdevices=3").gpus
    assert (gpu.mig_enabled, gpu.mig_devices) == (False, None)


def test_a_lost_gpu_among_others(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = asked(library, monkeypatch, "count=3,handle1=15")
    assert [gpu.name for gpu in found.gpus] == ["Tesla V100-SXM2-32GB", "", "Tesla V100-SXM2-32GB"]
    assert [gpu.fault for gpu in found.gpus] == [
        None,
        NvmlFault(
            call="nvmlDeviceGetHandleByIndex",
            number=15,
            name="NVML_ERROR_GPU_IS_LOST",
            text="GPU is lost",
        ),
        None,
    ]


def test_a_gpu_that_is_lost_while_it_is_asked(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [gpu] = asked(library, monkeypatch, "temp=-15,sm=-15").gpus
    assert gpu.fault is not None
    assert (gpu.fault.call, gpu.fault.name) == (
        "nvmlDeviceGetTemperature",
        "NVML_ERROR_GPU_IS_LOST",
    )
    assert (gpu.name, gpu.temperature_c, gpu.power_w) == ("Tesla V100-SXM2-32GB", None, 37.5)


def test_nvlinks_that_are_down_are_counted(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = asked(library, monkeypatch, "count=3,nvlinks2=4")
    assert [(gpu.nvlinks, gpu.nvlinks_down) for gpu in found.gpus] == [(6, 0), (6, 0), (4, 2)]


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (9, "NVML_ERROR_DRIVER_NOT_LOADED"),
        (18, "NVML_ERROR_LIB_RM_VERSION_MISMATCH"),
        (77, "NVML error 77"),
    ],
)
def test_a_library_that_does_not_begin(
    library: str, monkeypatch: pytest.MonkeyPatch, number: int, name: str
) -> None:
    found = asked(library, monkeypatch, f"init={number}")
    assert found.fault == NvmlFault(call="nvmlInit", number=number, name=name, text="it says so")
    assert (found.library, found.gpus) == (library, ())


def test_a_host_without_a_driver(tmp_path: Path) -> None:
    found = read(library="libnvidia-ml-of-nobody.so.1", proc=tmp_path, sys=tmp_path)
    assert found.fault is not None
    assert (found.fault.name, found.kernel_driver) == ("NVML_ERROR_LIBRARY_NOT_FOUND", "")


def test_gpus_on_the_pci_bus(tmp_path: Path) -> None:
    """A GPU, the sound beside it, another maker's, and one whose folder is gone meanwhile."""
    for address, vendor, kind in (
        ("0004:04:00.0", "0x10de", "0x030200"),
        ("0004:04:00.1", "0x10de", "0x040300"),
        ("0000:01:00.0", "0x1002", "0x030000"),
    ):
        folder = tmp_path / "bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")
    (tmp_path / "bus/pci/devices/0009:01:00.0").mkdir()
    found = read(library="libnvidia-ml-of-nobody.so.1", proc=tmp_path, sys=tmp_path)
    assert found.pci_gpus == ("0004:04:00.0",)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Rel", "570.86.15"),
        ("no driver's words", ""),
    ],
)
def test_the_kernel_modules_version(proc: Path, text: str, version: str) -> None:
    (proc / "driver/nvidia/version").write_text(text)
    assert nvml.kernel_driver(proc) == version


def test_where_proc_tells_no_version_the_librarys_counts(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = dataclasses.replace(asked(library, monkeypatch), kernel_driver="")
    assert found.driver_version == "418.87.00"


def test_a_library_that_hangs(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = time.monotonic()
    found = asked(library, monkeypatch, "sleep=60", timeout_s=1)
    assert found.fault is not None
    assert (found.fault.name, found.fault.text) == ("NO_ANSWER", "no answer within 1 s")
    assert time.monotonic() - begin < 15


def test_a_library_that_ends_who_asks(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = asked(library, monkeypatch, "crash=1")
    assert found.fault is not None
    assert found.fault.text == "the process that queried NVML ended with signal 11"


def test_one_who_asks_and_fails() -> None:
    class Failing(Processes):
        def capture(self, argv: Any, **_: object) -> Completed:
            said = "Traceback:\n  in read\nMemoryError: no more\n"
            return Completed(argv=argv, returncode=1, stderr=said)

    found = nvml.ask(Failing())
    assert found.fault is not None
    text = "the process that queried NVML ended with status 1: MemoryError: no more"
    assert found.fault.text == text


def test_one_who_asks_and_cannot_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in a call of the kernel that never returns outlives SIGKILL."""

    class Stuck(Processes):
        def capture(self, *_: object, **__: object) -> None:  # type: ignore[override]
            time.sleep(60)

    monkeypatch.setattr("builder.system.nvml._ABANDONED_S", 0.1)
    found = nvml.ask(Stuck(), timeout_s=0.1)
    assert found.fault is not None
    assert found.fault.text == "hangs, and cannot be killed: no answer within 0 s"


def test_a_reading_goes_through_json(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = asked(library, monkeypatch, "count=2,handle1=15,rows0=1")
    assert reading_of(found.as_json()) == found


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"gpus": [3], "links": [], "pci_gpus": []}'])
def test_what_is_no_reading(text: str) -> None:
    with pytest.raises(ValueError, match=r"reading|Expecting"):
        reading_of(text)
