"""`doctor --gpu`: hosts that are well and hosts that are not, and whose matter a failure is.

The driver's library is the one of fakes/nvml.c, found by name as the driver's would be.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_nvml import fake_nvml
from manifest_samples import CELL, record
from samples import compare_with_golden

from builder.cli import main
from builder.facts import cuda_errors
from builder.host.doctor import gpu_findings
from builder.host.doctor.gpu_findings import (
    SICK,
    SOUND,
    UNKNOWN,
    WATCH,
    GpuFinding,
    GpuHealth,
    finding_of,
    read_diagnosis,
)
from builder.host.doctor.gpus import as_json, as_text, failed_checks, judged
from builder.load.document import Faults
from builder.load.facts import read_facts
from builder.model import Layers
from builder.system.nvml import LIBRARY_NOT_FOUND, EccErrors, Gpu, NvmlFault, NvmlReading
from builder.system.process import Processes

RELEASES = read_facts(Layers(each=()), Faults()).cuda
Doctor = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return fake_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def doctor(
    library: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Doctor:
    """Runs `doctor --gpu --json` on a host whose NVML says something: exit code and document."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(Path(library).parent))
    monkeypatch.setenv("PATH", str(tmp_path))

    def run(said: str = "", *arguments: str) -> tuple[int, dict[str, Any]]:
        monkeypatch.setenv("FAKE_NVML", said)
        status = main(["doctor", "--gpu", "--json", "--project", str(tmp_path), *arguments])
        found = json.loads(capsys.readouterr().out)
        assert found["schema"] == "build-images/gpu-health/v1"
        return status, found

    return run


def said(found: dict[str, Any], *verdicts: str) -> list[str]:
    """The findings of these verdicts, a line each."""
    return [
        f"{one['subject']}: {one['text']}"
        for one in found["findings"]
        if one["verdict"] in verdicts and one["key"] != "images"
    ]


def test_a_healthy_v100(doctor: Doctor) -> None:
    status, found = doctor()
    assert (status, found["verdict"]) == (0, SOUND)
    assert said(found, SOUND) == [
        "host: driver 418.87.00, for CUDA up to 10.1",
        "GPU 0: Tesla V100-SXM2-32GB, 34 °C, no uncorrectable memory error, not slowed down",
    ]
    assert found["host"]["gpus"][0]["uuid"] == "GPU-00000000"


@pytest.mark.parametrize(
    ("answers", "verdict", "finding"),
    [
        (
            "vuncorrected=3",
            SICK,
            "3 uncorrectable memory errors since the driver was loaded: CUDA error 214",
        ),
        (
            "uncorrected=3",
            WATCH,
            "3 uncorrectable memory errors in its life, none since the driver was loaded",
        ),
        ("ecc=0", WATCH, "ECC is off: memory errors go unnoticed"),
        ("single=60,double=4", SICK, "64 pages of memory are retired, and no more can be"),
        ("double=1,pagespending=1", WATCH, "a page of memory will be retired at the next reset"),
        ("rows=1,rowsfailed=1", SICK, "a row of memory could not be replaced by a spare one"),
        (
            "rows=1,rowspending=1",
            WATCH,
            "a row of memory will be replaced by a spare one at the next reset",
        ),
        (
            "throttle=0x40,sm=900,temp=90,slowdown=-3",
            SICK,
            "slowed down: hardware thermal slowdown: much too hot; 900 of 1530 MHz; 90 °C",
        ),
        (
            "throttle=0x80",
            SICK,
            (
                "slowed down: power brake: the power supply is overloaded; "
                "135 of 1530 MHz; 34 of 87 °C"
            ),
        ),
        ("temp=87", SICK, "too hot; 87 of 87 °C"),
        ("temp=82", WATCH, "hot; 82 of 87 °C"),
        ("mode=2", SICK, "compute mode prohibited: CUDA fails with error 46"),
        ("mode=3", WATCH, "for one process at a time: a second rank on it fails with error 46"),
        ("mig=1", SICK, "MIG is on, but has no device: CUDA fails with error 100"),
        (
            "persistence=0",
            WATCH,
            "persistence is off: the first call of each program takes seconds",
        ),
        ("nvlinks=4", WATCH, "2 of 6 NVLinks are down"),
        ("width=8", WATCH, "PCIe is 8 lanes wide, not 16: copies are slow"),
        (
            "temp=-15",
            SICK,
            "it fell off the bus (NVML_ERROR_GPU_IS_LOST in nvmlDeviceGetTemperature)",
        ),
        (
            "temp=-16",
            SICK,
            "it needs a reset (NVML_ERROR_RESET_REQUIRED in nvmlDeviceGetTemperature)",
        ),
        (
            "temp=-999",
            UNKNOWN,
            "it does not answer every query (NVML_ERROR_UNKNOWN in nvmlDeviceGetTemperature)",
        ),
    ],
)
def test_a_gpu_with_a_symptom(doctor: Doctor, answers: str, verdict: str, finding: str) -> None:
    status, found = doctor(answers)
    assert said(found, WATCH, SICK, UNKNOWN) == [
        f"GPU 0: {finding} [Tesla V100-SXM2-32GB, 0004:04:00.0]"
    ]
    assert found["verdict"] == verdict
    assert status == (0 if verdict == WATCH else 1)
    [one] = [one for one in found["findings"] if one["subject"] == "GPU 0"]
    assert one["matter"] == "host"
    assert one["remedy"]


@pytest.mark.parametrize(
    "answers",
    [
        "throttle=0x4,use=100,power=299000",  # at the power limit under load, as it should be
        "temp=81",
        "mig=1,migdevices=2",
        "nvlinks=0",  # none of them is wired
        "vcorrected=1000",
        "single=63",
        "temp=-3,throttle=0",  # it does not tell its temperature
    ],
)
def test_what_is_no_symptom(doctor: Doctor, answers: str) -> None:
    status, found = doctor(answers)
    assert (status, found["verdict"], said(found, WATCH, SICK, UNKNOWN)) == (0, SOUND, [])


def test_a_gpu_fallen_off_the_bus_among_others(doctor: Doctor) -> None:
    status, found = doctor("count=2,handle1=15")
    assert status == 1
    assert said(found, SOUND)[1].startswith("GPU 0: Tesla V100")
    assert said(found, SICK) == [
        "GPU 1: it fell off the bus (NVML_ERROR_GPU_IS_LOST in nvmlDeviceGetHandleByIndex)"
    ]


@pytest.mark.parametrize(
    ("answers", "verdict", "finding"),
    [
        (
            "init=18",
            SICK,
            (
                "the driver's library and kernel module differ in version: CUDA error 803 "
                "(NVML_ERROR_LIB_RM_VERSION_MISMATCH)"
            ),
        ),
        (
            "init=9",
            SICK,
            (
                "the driver's library is installed, but its kernel module is not loaded "
                "(NVML_ERROR_DRIVER_NOT_LOADED)"
            ),
        ),
        (
            "init=15",
            SICK,
            ("the driver does not answer: nvmlInit: NVML_ERROR_GPU_IS_LOST, GPU is lost"),
        ),
        (
            "init=4",
            UNKNOWN,
            "this user has no permission to query the driver (NVML_ERROR_NO_PERMISSION)",
        ),
        ("count=0", SICK, "the driver answers, but shows no GPU"),
        (
            "crash=1",
            SICK,
            (
                "the driver does not answer: libnvidia-ml.so.1: NO_ANSWER, "
                "the process that queried NVML ended with signal 11"
            ),
        ),
    ],
)
def test_a_driver_that_does_not_answer(
    doctor: Doctor, answers: str, verdict: str, finding: str
) -> None:
    status, found = doctor(answers)
    assert (status, found["verdict"]) == (1, verdict)
    assert said(found, SICK, UNKNOWN) == [f"host: {finding}"]


def test_a_host_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if Path("/proc/driver/nvidia").exists() or judged(reading_here(), RELEASES)[0].verdict == SICK:
        pytest.skip("this machine has a GPU")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert main(["doctor", "--gpu", "--project", str(tmp_path)]) == 4
    told = capsys.readouterr().out
    assert "no NVIDIA GPU and no NVIDIA driver" in told
    assert told.splitlines()[-1].startswith("No GPU to examine")


def reading_here() -> NvmlReading:
    from builder.system.nvml_reader import read  # noqa: PLC0415

    return read()


NO_LIBRARY = NvmlFault(
    call="dlopen", number=12, name=LIBRARY_NOT_FOUND, text="cannot open shared object file"
)
V100 = Gpu(index=0, name="Tesla V100", pci="0004:04:00.0", compute_capability="7.0")
HOST = NvmlReading(driver="418.87.00", kernel_driver="418.87.00", cuda="10.1", gpus=(V100,))


@pytest.mark.parametrize(
    ("changes", "verdict", "text"),
    [
        (
            {"gpus": (), "fault": NO_LIBRARY},
            SICK,
            "driver 418.87.00 is loaded, but its library is not: cannot open shared object file",
        ),
        (
            {"gpus": (), "fault": NO_LIBRARY, "kernel_driver": "", "pci_gpus": ("a", "b")},
            SICK,
            "no driver for the 2 NVIDIA GPUs on the PCI bus",
        ),
        (
            {"driver": "535.104.05"},
            SICK,
            (
                "the driver's library has version 535.104.05, the kernel module 418.87.00: "
                "CUDA fails with error 803"
            ),
        ),
        (
            {"pci_gpus": ("0004:06:00.0", "0004:04:00.0", "0004:05:00.0")},
            WATCH,
            "on the PCI bus, but not shown by the driver: 0004:05:00.0 0004:06:00.0",
        ),
        ({"kernel_driver": ""}, SOUND, "driver 418.87.00, for CUDA up to 10.1"),
    ],
)
def test_a_host_as_it_was_read(changes: dict[str, Any], verdict: str, text: str) -> None:
    found = judged(dataclasses.replace(HOST, **changes), RELEASES)
    assert (verdict, text) in [(one.verdict, one.text) for one in found]


def test_a_lost_gpu_is_the_one_that_is_missing() -> None:
    lost = NvmlFault(call="nvmlDeviceGetHandleByIndex", number=15, name="NVML_ERROR_GPU_IS_LOST")
    reading = dataclasses.replace(
        HOST, gpus=(V100, Gpu(index=1, fault=lost)), pci_gpus=("0004:04:00.0", "0004:05:00.0")
    )
    texts = [one.text for one in judged(reading, RELEASES)]
    assert any(text.endswith("HandleByIndex) [0004:05:00.0]") for text in texts)
    assert not any("not shown" in text for text in texts)


@pytest.mark.parametrize(
    ("driver", "cuda", "capability", "first", "last", "missing"),
    [
        ("418.87.00", "10.1", "7.0", "9.2", "10.1", "10.2"),
        ("580.65.06", "13.0", "7.0", "9.2", "12.9", "13.0"),  # 13.0 has no code for a V100
        ("450.80.02", "11.0", "8.0", "9.2", "11.8", "12.0"),  # minor-version compatibility
        ("525.60.13", "12.0", "8.9", "9.2", "12.9", "13.0"),
    ],
)
def test_which_images_run_here(
    driver: str, cuda: str, capability: str, first: str, last: str, missing: str
) -> None:
    gpu = dataclasses.replace(V100, compute_capability=capability)
    reading = NvmlReading(driver=driver, kernel_driver=driver, cuda=cuda, gpus=(gpu,))
    [found] = [one for one in judged(reading, RELEASES) if one.key == "images"]
    assert not found.remedy
    versions = found.text.removeprefix("images with CUDA ").partition(" run")[0].split(", ")
    assert (versions[0], versions[-1], missing in versions) == (first, last, False)


def test_a_driver_whose_version_is_not_known_promises_no_image() -> None:
    gpu = dataclasses.replace(V100, compute_capability="7.0")
    [found] = [each for each in judged(NvmlReading(gpus=(gpu,)), RELEASES) if each.key == "images"]
    assert "no known CUDA release fits" in found.text
    assert (found.verdict, found.remedy[:22]) == (WATCH, "install another driver")


def test_ptx_that_is_newer_than_the_driver_does_not_run() -> None:
    """11.4 has code for 8.7 at most, and a driver of 11.0 cannot compile its PTX for an H100."""
    gpu = dataclasses.replace(V100, compute_capability="9.0")
    reading = NvmlReading(driver="450.80.02", kernel_driver="450.80.02", cuda="11.0", gpus=(gpu,))
    [found] = [one for one in judged(reading, RELEASES) if one.key == "images"]
    assert "11.0" in found.text
    assert "11.4" not in found.text


def test_every_finding_has_a_verdict_and_a_text_that_can_be_filled_in() -> None:
    rows = yaml.safe_load(Path(gpu_findings.__file__).with_name("gpu-findings.yaml").read_text())
    fault = NvmlFault(call="nvmlInit", number=999, name="NVML_ERROR_UNKNOWN", text="unknown")
    gpu = dataclasses.replace(V100, fault=fault)
    parts = dict.fromkeys(["module", "count", "cuda", "missing", "pages", "clock", "degrees"], "1")
    for section, names in rows.items():
        for name in names:
            found = finding_of(section, name, host=HOST, error=fault, gpu=gpu, nvlinks=6, **parts)
            assert found.verdict in {SOUND, WATCH, SICK, UNKNOWN}
            assert found.text
            assert found.key


# ---- DCGM ----

PASSED_3 = {
    "DCGM GPU Diagnostic": {
        "test_categories": [
            {
                "category": "Deployment",
                "tests": [
                    {"name": "Denylist", "results": [{"gpu_ids": "0,1", "status": "Pass"}]},
                    None,
                    {"name": "NVML Library", "results": [{"gpu_ids": "0,1", "status": "Pass"}]},
                ],
            }
        ]
    }
}


def failed_4(severity: int) -> dict[str, Any]:
    warning = {"warning": "Persistence mode is disabled.", "error_severity": severity}
    result = {"entity_group": "GPU", "entity_id": 0, "status": "Fail", "warnings": [warning]}
    test = {"name": "software", "results": [result], "test_summary": {"status": "Fail"}}
    return {"DCGM Diagnostic": {"test_categories": [{"category": "Deployment", "tests": [test]}]}}


def dcgm(subject: str, verdict: str, text: str) -> GpuFinding:
    """A finding of DCGM as it should be."""
    remedy = "to look closer, drain the node and run dcgmi diag -r 3 (15 minutes)"
    remedy = remedy if verdict in {SICK, WATCH} else ""
    text = f"DCGM: {text}"
    return GpuFinding(subject=subject, key="dcgm", verdict=verdict, text=text, remedy=remedy)


def test_dcgm_that_passes() -> None:
    found = read_diagnosis("WARNING: something\n" + json.dumps(PASSED_3))
    assert found == [dcgm("host", SOUND, "its quick diagnosis passed, 2 results")]


@pytest.mark.parametrize(("severity", "verdict"), [(2, SICK), (5, WATCH)])
def test_dcgm_4_that_fails(severity: int, verdict: str) -> None:
    found = read_diagnosis(json.dumps(failed_4(severity)))
    assert found == [dcgm("GPU 0", verdict, "software: Persistence mode is disabled.")]


@pytest.mark.parametrize(
    ("result", "found"),
    [
        (
            {"gpu_ids": "1", "status": "FAIL", "warnings": ["row remap failed ", "twice"]},
            dcgm("GPU 1", SICK, "NVML Library: row remap failed twice"),
        ),
        (
            {"gpu_ids": "0,1", "status": "Warn", "info": "slow"},
            dcgm("GPU 0,1", WATCH, "NVML Library: slow"),
        ),
        (
            {"entity_group": "CPU", "entity_id": 7, "status": "fail"},
            dcgm("host", SICK, "NVML Library: fail"),
        ),
    ],
)
def test_dcgm_3_that_fails(result: dict[str, Any], found: GpuFinding) -> None:
    document: Any = json.loads(json.dumps(PASSED_3))
    document["DCGM GPU Diagnostic"]["test_categories"][0]["tests"][2]["results"] = [result]
    assert read_diagnosis(json.dumps(document)) == [found]


@pytest.mark.parametrize(
    ("stdout", "stderr", "text"),
    [
        ("", "Error: unable to establish a connection", "Error: unable to establish a connection"),
        ("{ broken", "", "{ broken"),
        (json.dumps({"DCGM Diagnostic": {"runtime_error": "no GPUs"}}), "", "no GPUs"),
        ("", "", "nothing"),
    ],
)
def test_dcgm_that_cannot_look(stdout: str, stderr: str, text: str) -> None:
    [found] = read_diagnosis(stdout, stderr)
    assert (found.verdict, found.text) == (UNKNOWN, f"DCGM: did not run: {text}")


def test_dcgm_that_skips_everything_is_no_pass() -> None:
    skipped = json.dumps(PASSED_3).replace('"Pass"', '"Skip"')
    [found] = read_diagnosis(skipped)
    assert (found.verdict, found.text) == (UNKNOWN, "DCGM: ran no test")


def test_dcgm_is_asked_where_it_is(doctor: Doctor, tmp_path: Path) -> None:
    program = tmp_path / "dcgmi"
    begin = '#!/bin/sh\ntest "$*" = "diag -r 1 -j" || exit 1\n'
    program.write_text(f"{begin}echo '{json.dumps(failed_4(2))}'\nexit 226\n")
    program.chmod(0o755)
    status, found = doctor()
    assert status == 1
    assert said(found, SICK) == ["GPU 0: DCGM: software: Persistence mode is disabled."]


def test_dcgm_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_findings, "_TIMEOUT_S", 0.6)
    (tmp_path / "dcgmi").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "dcgmi").chmod(0o755)
    found = gpu_findings.diagnose(Processes(), search_path=str(tmp_path))
    assert found == [dcgm("host", UNKNOWN, "no answer within 1 s")]


# ---- A bad image, or a sick GPU? ----

ECC = GpuFinding(
    subject="GPU 0", key="ecc", verdict=SICK, text="3 uncorrectable", matter="host", remedy="reset"
)


def failing(reason: str, name: str = "gpu-compute") -> dict[str, Any]:
    one = {"check": name, "outcome": "failed", "reason": reason}
    other = {"check": "mpi", "outcome": "failed", "reason": "1 rank of 4"}
    passed = {"check": "gpu-blas", "outcome": "passed", "reason": "all right"}
    return {"checks": {"oci": [one, other, passed], "sif": [one]}}


@pytest.mark.parametrize(
    ("reason", "name", "sick", "matter", "verdict"),
    [
        ("cuInit: CUDA error 34 (x)", "gpu-library", False, "image", SICK),
        ("cuInit: CUDA error 34 (x)", "gpu-library", True, "image", SICK),
        ("x: CUDA error 100 (x)", "gpu-compute", True, "start", SICK),
        ("x: CUDA error 214 (x)", "gpu-compute", False, "host", SICK),
        ("x: CUDA error 719 (x)", "gpu-compute", True, "host", SICK),
        ("x: CUDA error 719 (x)", "gpu-compute", False, "image", SICK),
        ("x: CUDA error 4711 (x)", "gpu-compute", True, "host", SICK),
        ("sum 3 is 4, not 5", "gpu-compute", True, "host", SICK),
        ("sum 3 is 4, not 5", "gpu-compute", False, "image", UNKNOWN),
        ("of the driver: libcuda.so.1", "cuda-clean", True, "image", UNKNOWN),
        ("without a GPU cuda-compute passes", "gpu-control", True, "image", UNKNOWN),
        ("without a GPU cuda-compute passes", "gpu-withheld", True, "image", UNKNOWN),
    ],
)
def test_whose_matter_a_failed_check_is(
    reason: str, name: str, sick: bool, matter: str, verdict: str
) -> None:
    [found] = failed_checks(record(failing(reason, name)), [ECC] if sick else [])
    assert (found.subject, found.matter, found.verdict) == (f"check {name}", matter, verdict)
    assert found.text.endswith(f"{reason} (in oci, sif)")
    if matter == "host" and sick:
        assert found.remedy == "repair the host first: GPU 0: 3 uncorrectable"
    assert found.remedy


def test_an_image_beside_the_hosts_health(doctor: Doctor, tmp_path: Path) -> None:
    """The exit code is the host's: an image that is at fault does not make GPUs sick."""
    folder = tmp_path / "image"
    folder.mkdir()
    manifest = {
        "schema": "build-images/manifest/v1",
        "image": "x",
        "cell": CELL,
        "content_key": "",
        "engine": "buildah",
        "artifacts": {"oci": {"format": "oci", "path": "x", "digest": "x", "size": 1}},
        "outcome": "failed",
        "in_image_checks": [],
        **failing("cuInit: CUDA error 34 (CUDA_ERROR_STUB_LIBRARY)", "gpu-library"),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    status, found = doctor("", str(folder))
    assert (status, found["verdict"]) == (0, SOUND)
    assert said(found, SICK)[0].startswith("check gpu-library: caused by the image: cuInit")


def test_what_is_no_image(
    tmp_path: Path, doctor: Doctor, capsys: pytest.CaptureFixture[str]
) -> None:
    del doctor
    assert main(["doctor", "--gpu", str(tmp_path)]) == 2
    assert "no manifest.json" in capsys.readouterr().err
    assert main(["doctor", str(tmp_path)]) == 2
    assert "doctor --gpu IMAGE" in capsys.readouterr().err


def test_the_text_of_it(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor()
    errors = "handle1=15,vuncorrected2=3,slowdown3=-3,temp0=-3"
    monkeypatch.setenv("FAKE_NVML", f"count=4,{errors}")
    assert main(["doctor", "--gpu"]) == 1
    told = capsys.readouterr().out
    v100, end = ["Tesla V100-SXM2-32GB", "7.0", "32 GiB"], ["3 x16", "6 of 6"]
    same = ["38 of 300", "135 of 1530"]
    assert [re.split(" {2,}", line.strip()) for line in told.splitlines()[:5]] == [
        ["GPU", "model", "sm", "memory", "°C", "W", "MHz", "ECC", "PCIe", "NVLinks", "MIG"],
        ["0", *v100, *same, "on 0/0", *end],
        ["1"],
        ["2", *v100, "34 of 87", *same, "on 3/0", *end],
        ["3", *v100, "34", *same, "on 0/0", *end],
    ]
    assert "caused by the host: drain the node, look for Xid 79" in told
    assert told.splitlines()[-1].startswith("A fault was found")


def test_all_that_is_told_of_gpus_word_for_word() -> None:
    """Of a host with all that can be read, and of GPUs that tell some of it or nothing."""
    sound = Gpu(
        index=0,
        name="NVIDIA A100-SXM4-40GB",
        uuid="GPU-0",
        pci="0000:07:00.0",
        compute_capability="8.0",
        memory_bytes=42_949_672_960,
        memory_used_bytes=0,
        temperature_c=40,
        slowdown_c=92,
        power_w=61.4,
        power_limit_w=400.0,
        sm_clock_mhz=210,
        sm_clock_max_mhz=1410,
        throttling=0,
        ecc_enabled=True,
        ecc=EccErrors(volatile_uncorrected=0),
        mig_enabled=False,
        pcie_generation=4,
        pcie_width=16,
        nvlinks=12,
    )
    fault = NvmlFault(call="nvmlDeviceGetName", number=999, name="NVML_ERROR_UNKNOWN", text="?")
    gpus = (
        sound,
        dataclasses.replace(
            sound, index=1, pci="0000:0f:00.0", mig_enabled=True, mig_devices=2, nvlinks_down=1
        ),
        Gpu(index=2, name="Tesla V100", pci="0004:04:00.0", ecc_enabled=False, power_w=38.0),
        Gpu(index=3, compute_capability="9.0", fault=fault),
    )
    reading = NvmlReading(
        library="/usr/lib/libnvidia-ml.so.1",
        driver="450.80.02",
        kernel_driver="450.80.02",
        cuda="11.0",
        gpus=gpus,
        pci_gpus=(*(gpu.pci for gpu in gpus[:3]), "0009:01:00.0"),
        fault=fault,
    )
    findings = judged(reading, RELEASES)
    findings += failed_checks(record(failing("x: CUDA error 719 (x)")), findings)
    health = GpuHealth(reading=reading, findings=tuple(findings))
    told = f"{as_text(health, colour=True)}\n{as_json(health)}\n"
    compare_with_golden(told, "doctor/gpus.txt")


def test_what_the_findings_come_to_and_why_a_check_failed() -> None:
    some = NvmlReading(gpus=(Gpu(index=0),))
    lines = []
    for verdict in (SOUND, WATCH, SICK, UNKNOWN):
        finding = GpuFinding(key="x", verdict=verdict, text="it")
        health = GpuHealth(reading=some, findings=(finding,))
        lines.append(f"{verdict}: {as_text(health, colour=False).splitlines()[-1]}\n")
    none = GpuHealth(reading=NvmlReading(), findings=())
    lines.append(f"none: {as_text(none, colour=False).splitlines()[-1]}\n")
    for reason in ("no error", "CUDA error 100 (x)", "CUDA error 209", "CUDA error 4711"):
        for host in ([], [ECC]):
            [failed] = failed_checks(record(failing(reason)), host)
            lines.append(f"{reason}, {len(host)} sick: {dataclasses.asdict(failed)}\n")
    compare_with_golden("".join(lines), "doctor/failed-gpu-checks.txt")


@pytest.mark.parametrize(
    ("reading", "verdict", "code"),
    [
        (NvmlReading(fault=NO_LIBRARY), SOUND, 4),
        (NvmlReading(fault=NO_LIBRARY, pci_gpus=("x",)), SICK, 1),
        (NvmlReading(fault=NO_LIBRARY, kernel_driver="1.2"), UNKNOWN, 1),
        (NvmlReading(fault=dataclasses.replace(NO_LIBRARY, name="x")), WATCH, 0),
        (HOST, SOUND, 0),
        (HOST, WATCH, 0),
    ],
)
def test_the_exit_code_of_a_host(reading: NvmlReading, verdict: str, code: int) -> None:
    finding = GpuFinding(key="driver", verdict=verdict, text="")
    check = GpuFinding(key="check", verdict=SICK, text="")
    health = GpuHealth(reading=reading, findings=(check, finding))
    assert (health.verdict, health.exit_code) == (verdict, code)


def test_each_cuda_error_says_whose_matter_it_is_and_what_to_do() -> None:
    for error in cuda_errors().values():
        assert error.matter in {"host", "image", "start", "unclear"}
        assert error.meaning
        assert error.remedy
