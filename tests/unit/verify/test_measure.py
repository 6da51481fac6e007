"""Measuring: programs are read right, compared round by round, and a collapse is found."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from measure_samples import PROGRAM_BY_NAME, measured, recorded, run, speeds
from samples import compare_with_golden, shipped_project

from builder.model.errors import StepFailed
from builder.model.measurement import GpuUse, OneRun, PlaceFacts, Sample
from builder.system.process import Completed, Processes
from builder.verify.measure.programs import (
    EMULATED,
    PROGRAMS,
    Sizes,
    Unreadable,
    programs_for_kits,
)
from builder.verify.measure.rounds import Place, Ran, against_bare, programs_in, run_rounds
from builder.verify.measure.sampling import (
    CpuTimes,
    Gpus,
    MachineLoad,
    ProcessLoad,
    Sampler,
    _Thinned,
    busy_share,
    cpu_times,
    memory_in_use,
    use_of_gpus,
)
from builder.verify.runners.sites import chroot_argv


def test_osu_tables_are_read_at_8_bytes_and_at_the_largest_size() -> None:
    text = "# OSU MPI Latency Test v7.4\n# Size  Avg Latency(us)\n1  0.9\n8  0.25\n1048576  63.1\n"
    assert PROGRAM_BY_NAME["osu_latency"].read(text) == {"osu_latency": 0.25}
    assert PROGRAM_BY_NAME["osu_bw"].read(text) == {"osu_bandwidth": 63.1}


@pytest.mark.parametrize(
    ("name", "old", "new", "output"),
    [
        ("hpcc", "Success=1", "Success=0", "Success=0"),
        ("hpcc", "CommWorldProcs=2", "CommWorldProcs=1", "ran on 1 ranks"),
        ("hpcc", "StarDGEMM_Gflops=15.4301", "StarDGEMM_Gflops=0", "StarDGEMM_Gflops is 0"),
        ("hpcc", "StarSTREAM_Triad=", "StarSTREAM_Other=", "no StarSTREAM_Triad"),
        ("hpcc", "HPL_Tflops=0.00715285", "HPL_Tflops=nan", "HPL_Tflops is nan"),
        (
            "memory-speed",
            '"triad_gb_per_s": 19.643',
            '"triad_gb_per_s": -1',
            "triad_gb_per_s is -1",
        ),
        ("memory-speed", "data: ", "daten: ", "output has no triad"),
        ("mpi-speed", '"ranks": 2', '"ranks": 1', "ran on 1 ranks"),
        ("osu_latency", "\n8 ", "\n9 ", "no value for 8 bytes"),
        ("fio", '"error" : 0', '"error" : 5', "has the error 5"),
        ("fio", '"fio_read"', '"other"', "no fio_read read bw_bytes"),
        ("fio", "{", "[", "not the JSON of its jobs"),
    ],
)
def test_what_cannot_be_right_is_refused(name: str, old: str, new: str, output: str) -> None:
    text = recorded(name)
    assert old in text
    with pytest.raises(Unreadable, match=output):
        PROGRAM_BY_NAME[name].read(text.replace(old, new, 1))


def test_speed_is_compared_within_rounds_and_more_is_always_faster() -> None:
    result = measured(
        run("bare", speeds(1.0, 1000), turn=0),
        run("oci", speeds(2.0, 500), turn=0),
        run("bare", speeds(4.0, 100), turn=1),
        run("oci", speeds(4.0, 100), turn=1),
        run("bare", speeds(1.0, 100), turn=2),
        run("oci", speeds(0.8, 90), turn=2),
        places=("bare", "oci"),
    )
    rows = {(each.quantity.name, each.place): each for each in result.rows}
    latency, bandwidth = rows["mpi_latency", "oci"].ratio, rows["mpi_bandwidth", "oci"].ratio
    assert latency is not None
    assert (latency.lowest, latency.median, latency.highest) == (0.5, 1.0, 1.25)
    assert bandwidth is not None
    assert (bandwidth.lowest, bandwidth.median, bandwidth.highest) == (0.5, 0.9, 1.0)
    assert rows["mpi_latency", "bare"].ratio is None


def test_a_round_that_one_place_lacks_is_compared_with_nothing() -> None:
    result = measured(
        run("bare", speeds(1.0), turn=0),
        run("oci", speeds(1.0), turn=0),
        run("bare", speeds(9.0), turn=1),
        places=("bare", "oci"),
    )
    row = next(each for each in result.rows if each.place == "oci")
    assert row.ratio is not None
    assert (row.ratio.count, row.ratio.median) == (1, 1.0)


def test_slower_than_half_of_bare_is_a_collapse_and_slower_alone_is_none() -> None:
    slow = measured(run("bare", speeds(1.0)), run("oci", speeds(2.0)), run("sif", speeds(2.1)))
    assert {name: each.outcome for name, each in slow.outcomes.items()} == {
        "oci": "passed",
        "sif": "failed",
    }
    assert slow.outcomes["sif"].reason == "MPI latency, 1 B: 0.48 of bare, less than 0.5"
    assert slow.outcomes["sif"].data["mpi_latency"] == 0.476
    assert slow.outcomes["oci"].reason == (
        "3 figures at 0.50 of bare or more (least: MPI latency, 1 B); 1 rounds"
    )
    assert slow.has_collapsed
    assert not measured().has_collapsed


@pytest.mark.parametrize(
    ("others", "outcome"),
    [((0.2,), "failed"), ((0.9, 0.0, 0.1), "failed"), ((0.5,), "skipped")],
)
def test_on_a_busy_machine_a_collapse_cannot_be_told(
    others: tuple[float, ...], outcome: str
) -> None:
    runs = (run("bare", speeds(1.0)), run("oci", speeds(4.0)))
    result = dataclasses.replace(measured(*runs, places=("bare", "oci")), others=others)
    assert result.outcomes["oci"].outcome == outcome
    assert ("processes kept 50%" in result.outcomes["oci"].reason) == (outcome == "skipped")
    broken = dataclasses.replace(run("oci", {}), problem="exit status 1")
    result = measured(run("bare", speeds(1.0)), broken, places=("bare", "oci"))
    assert dataclasses.replace(result, others=others).outcomes["oci"].outcome == "failed"


UNTOLD = "cannot tell: mpi-speed did not run bare: exit status 125: mount"


@pytest.mark.parametrize("problem", ["", "exit status 1: no fabric"])
def test_what_bare_cannot_run_either_accuses_no_format(problem: str) -> None:
    bare = dataclasses.replace(run("bare", {}), problem="exit status 125: mount")
    of_format = dataclasses.replace(run("oci", {} if problem else speeds(1.0)), problem=problem)
    result = measured(bare, of_format, places=("bare", "oci"))
    outcome = result.outcomes["oci"]
    assert (outcome.outcome, outcome.reason) == ("skipped", UNTOLD)
    assert not result.has_collapsed
    rows = [row for row in result.rows if row.place == "oci"]
    assert rows[0].problem == (problem or "nothing to compare with: exit status 125: mount")


@pytest.mark.parametrize(("triad", "outcome"), [(19.0, "skipped"), (4.0, "failed")])
def test_what_bare_can_run_is_judged_beside_what_it_cannot(triad: float, outcome: str) -> None:
    result = measured(
        dataclasses.replace(run("bare", {}), problem="exit status 125: mount"),
        run("oci", speeds(1.0)),
        run("bare", {"memory_triad": 20.0}, program="memory-speed"),
        run("oci", {"memory_triad": triad}, program="memory-speed"),
        places=("bare", "oci"),
    )
    output = result.outcomes["oci"]
    assert output.outcome == outcome
    assert output.reason.endswith(UNTOLD)
    assert ("0.20 of bare, less than 0.5" in output.reason) == (outcome == "failed")
    assert output.data == {"memory_triad": triad / 20}


def no_gpus() -> Gpus:
    return Gpus(Processes(), library="")


class Fake:
    """A runner that answers from a list, over and over; it keeps what it was asked."""

    def __init__(self, *answers: Completed) -> None:
        self.answers = answers
        self.asked: list[tuple[str, ...]] = []

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        del timeout_s
        self.asked.append(tuple(argv))
        return self.answers[(len(self.asked) - 1) % len(self.answers)]


def output(stdout: str = "", **changes: object) -> Completed:
    completed = Completed(argv=(), returncode=0, stdout=stdout)
    return dataclasses.replace(completed, **changes)  # type: ignore[arg-type]


def place(name: str, *answers: Completed) -> Place:
    return PlaceFacts(name=name, runner="r"), Fake(*answers)


def rounds_of(
    places: Sequence[Place],
    repeats: int,
    gpus: Gpus | None = None,
    others: Callable[[], float] = lambda: 0.0,
) -> tuple[tuple[OneRun, ...], tuple[float, ...]]:
    """Rounds of memory-speed."""
    return run_rounds(
        places,
        [PROGRAM_BY_NAME["memory-speed"]],
        Sizes(),
        launch="",
        repeats=repeats,
        gpus=gpus or Gpus(Processes(), library=""),
        others=others,
    )


def test_places_take_turns_and_each_round_begins_with_another() -> None:
    good = output(recorded("memory-speed"))
    places = [place(name, good) for name in ("bare", "oci", "sif")]
    shares = iter([0.5, 0.123456, 0.0, 0.2])
    runs, others = rounds_of(places, 4, others=lambda: next(shares))
    assert others == (0.5, 0.1235, 0.0, 0.2)
    assert [each.place for each in runs] == [
        *("bare", "oci", "sif"),
        *("oci", "sif", "bare"),
        *("sif", "bare", "oci"),
        *("bare", "oci", "sif"),
    ]
    assert [each.round for each in runs] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    script = PROGRAM_BY_NAME["memory-speed"].script(Sizes(), "")
    for _, runner in places:
        assert {*getattr(runner, "asked")} == {("sh", "-c", script)}  # noqa: B009 - of a fake
    assert all(each.use.seconds >= 0 and each.use.memory_bytes > 0 for each in runs)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (output("no MPI here\n", returncode=1), "exit status 1: no MPI here"),
        (output("", stderr="chroot: no\n", returncode=125), "exit status 125: chroot: no"),
        (output("", timed_out=True, returncode=-9), "no result after 900 s"),
        (
            output("", timed_out=True, returncode=-9, waiting=("hpcc (4): futex", "sh (3): wait")),
            "no result after 900 s; it was waiting for: hpcc (4): futex, sh (3): wait",
        ),
        (output("all well\n"), "its output has no triad_gb_per_s: 'None'"),
    ],
)
def test_a_program_that_fails_is_said_and_not_tried_again(answer: Completed, problem: str) -> None:
    places = [place("bare", output(recorded("memory-speed"))), place("oci", answer)]
    runs, _ = rounds_of(places, 3)
    failed = [each for each in runs if each.problem]
    assert [(each.place, each.problem) for each in failed] == [("oci", problem)]
    assert len(runs) == 4


def test_programs_are_those_that_the_image_holds() -> None:
    runner = Fake(output("fio\nhpcc\n"))
    assert [each.name for each in programs_in(runner, PROGRAMS, mpi=True)] == ["hpcc", "fio"]
    assert [each.name for each in programs_in(runner, PROGRAMS, mpi=False)] == ["fio"]
    assert "hpcc" not in runner.asked[1]
    looked = subprocess.run(
        [*runner.asked[0][:4], "no-such-program", "sh"], capture_output=True, text=True, check=True
    )
    assert looked.stdout == "sh\n"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (
            output("", stderr="unshare: unshare failed: Operation not permitted\n", returncode=1),
            r"exit status 1\n.*\n.*unshare failed: Operation not permitted",
        ),
        (output("fio\n", returncode=125), r"exit status 125\n.*\n.*fio"),
        (
            output("", timed_out=True, returncode=-9, waiting=("sh (3): D",)),
            r"no answer after 60 s; it was waiting for: sh \(3\): D",
        ),
    ],
)
def test_an_image_that_cannot_be_entered_is_not_one_without_programs(
    answer: Completed, problem: str
) -> None:
    with pytest.raises(StepFailed, match=problem):
        programs_in(Fake(answer), PROGRAMS, mpi=True)


def test_what_programs_are_given_to_do() -> None:
    """All scripts, and the values that are read of what the programs really printed."""
    lines: list[str] = []
    for title, chosen in [("native", Sizes()), ("emulated", EMULATED)]:
        for program in PROGRAMS:
            lines += [f"# {program.name}, {title}: {program.path}"]
            lines += [program.script(chosen, "mpirun -n 2"), ""]
    for program in PROGRAMS:
        for quantity, value in program.read(recorded(program.name)).items():
            lines += [f"{program.name}: {quantity} = {value:g}"]
        lines += map(str, program.quantities)
    compare_with_golden("\n".join(lines) + "\n", "measure/programs.txt")


def test_bare_is_a_chroot_with_the_images_variables_alone() -> None:
    root = chroot_argv("/r", {"/mnt": Path("/d")}, {"A": "b c"}, directory="/srv", is_root=True)
    assert root[:2] == ["unshare", "--mount"]
    assert "--userspec=65534:65534" in root
    start = root.index("/usr/bin/env")
    assert root[start : start + 3] == ["/usr/bin/env", "-i", "A=b c"]
    assert root[-1] == "/srv"
    ordinary = chroot_argv("/r", {}, {}, directory="/", is_root=False)
    assert ordinary[:4] == ["unshare", "--user", "--map-root-user", "--mount"]
    assert not [word for word in ordinary if word.startswith("--userspec")]


# The sampler.


def proc(folder: Path, *, busy: int, idle: int, available: int = 3) -> Path:
    """A /proc with that many ticks, and 4 GiB of memory."""
    ticks = f"cpu  {busy - 20} 0 10 {idle - 50} 50 4 6 0 77 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
    (folder / "stat").write_text(ticks)
    total, free = 4 << 20, available << 20
    (folder / "meminfo").write_text(
        f"MemTotal: {total} kB\nMemAvailable: {free} kB\nHugePages: 0\n"
    )
    return folder


def test_proc_is_read(tmp_path: Path) -> None:
    before = cpu_times(proc(tmp_path, busy=100, idle=300))
    assert before == CpuTimes(busy=100, all=400)  # 50 of them waited for disks
    assert cpu_times(proc(tmp_path, busy=130, idle=310)).share_since(before) == 0.75
    assert memory_in_use(tmp_path) == 1 << 30
    assert before.share_since(before) == 0.0
    odd = CpuTimes(busy=90, all=401), CpuTimes(busy=300, all=401)  # counters may go back
    assert [one.share_since(before) for one in odd] == [0.0, 1.0]


def test_others_are_watched_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = proc(tmp_path, busy=100, idle=300)
    monkeypatch.setattr(time, "sleep", lambda _: proc(tmp_path, busy=130, idle=310))
    assert busy_share(folder) == 0.75


class OneGpu(Gpus):
    """It says where in a measurement it is asked."""

    def __init__(self) -> None:
        super().__init__(Processes())
        self.inside: list[bool] = []
        self.begun = 0

    def __enter__(self) -> OneGpu:
        self.begun += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.begun += 100
        self.problem = "over"

    def look(self) -> tuple[GpuUse, ...]:
        self.inside.append(self.begun == 1)
        return (GpuUse(index=0, busy=0.5, memory_bytes=7, power_w=10.0),)


def test_gpus_are_asked_once_for_all_rounds() -> None:
    gpus = OneGpu()
    runs, _ = rounds_of([place("bare", output(recorded("memory-speed")))], 2, gpus)
    assert gpus.begun == 101
    assert gpus.inside
    assert all(gpus.inside)
    assert [each.use.no_gpus for each in runs] == ["", ""]


def test_a_run_is_sampled_to_its_completion(tmp_path: Path) -> None:
    gpus = OneGpu()
    sampler = Sampler(
        gpus, interval_s=0.0125, load=MachineLoad(proc=proc(tmp_path, busy=0, idle=100))
    )
    with sampler:
        proc(tmp_path, busy=60, idle=220, available=1)
        time.sleep(0.02)
    use = sampler.use
    assert (use.cpu, use.memory_bytes, use.gpus) == (0.3333, 3 << 30, gpus.look())
    assert use.no_gpus == ""
    assert 0 <= use.seconds < 5
    assert use.seconds == round(use.seconds, 3)
    for sample in use.samples:
        assert sample.at_s == round(sample.at_s, 2) >= 0
        assert (sample.cpu, sample.gpus) in ((0.3333, gpus.look()), (0.0, gpus.look()))


def test_a_long_run_keeps_a_limited_number_of_samples() -> None:
    kept = _Thinned()
    for number in range(5001):
        kept.add(Sample(at_s=number + 1, cpu=number % 2, memory_bytes=number % 1000))
    samples = kept.samples
    assert len(samples) == 1251
    assert [each.at_s for each in samples[:3]] == [4, 8, 12]
    assert samples[-1] == Sample(at_s=5001, cpu=0, memory_bytes=0)
    assert {each.cpu for each in samples[:-1]} == {0.5}
    assert max(each.memory_bytes for each in samples) == 999


def test_the_load_has_that_of_ended_children(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = ["S", "1", *["9"] * 9, "1", "20", "300", "4000", *["9"] * 6, "2", "9"]
    monkeypatch.setattr("builder.verify.measure.sampling.stat_fields", lambda _pid: fields)
    used, memory = ProcessLoad(find=lambda: [5]).look()
    assert (used.busy, memory) == (4321, 2 * os.sysconf("SC_PAGE_SIZE"))


def test_the_load_by_processes() -> None:
    nothing, none = ProcessLoad(find=lambda: [0]).look()
    before, memory = ProcessLoad(find=lambda: [os.getpid()]).look()
    twice, double = ProcessLoad(find=lambda: [os.getpid()] * 2).look()
    assert (nothing.busy, none) == (0, 0)
    assert memory > 1 << 20
    assert double == pytest.approx(2 * memory, rel=0.1)
    assert twice.busy >= 2 * before.busy > 0
    assert before.all > before.busy


def test_a_run_that_fails_is_sampled_as_well(tmp_path: Path) -> None:
    sampler = Sampler(
        no_gpus(), interval_s=0.01, load=MachineLoad(proc=proc(tmp_path, busy=0, idle=100))
    )
    with pytest.raises(KeyboardInterrupt), sampler:
        raise KeyboardInterrupt
    assert sampler.use.samples


def test_gpus_are_summed_up_and_what_they_do_not_say_is_left_open() -> None:
    looks = [
        (GpuUse(index=0, busy=0.2, memory_bytes=5, power_w=100.0), GpuUse(index=1)),
        (GpuUse(index=1), GpuUse(index=0, busy=0.4, memory_bytes=9, power_w=80.0)),
        (GpuUse(index=0, busy=0.4),),
    ]
    samples = [
        Sample(at_s=at_s, cpu=0.0, memory_bytes=0, gpus=gpus)
        for at_s, gpus in enumerate(looks, start=1)
    ]
    assert use_of_gpus(samples) == (
        GpuUse(index=0, busy=0.3333, memory_bytes=9, power_w=100.0),
        GpuUse(index=1),
    )


@pytest.mark.parametrize("most", [2000, 4, 2])
def test_means_are_weighted_by_time(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle for 2 s with many samples, then busy for 4 s with few; also where two are joined."""
    monkeypatch.setattr("builder.verify.measure.sampling._MOST_SAMPLES", most)
    kept = _Thinned()
    for at_s in (0.1, 0.2, 0.4, 1.0, 2.0, 4.0, 6.0):
        share = float(at_s > 2)
        gpus = (GpuUse(index=0, busy=share),)
        kept.add(Sample(at_s=at_s, cpu=share, memory_bytes=0, gpus=gpus))
    [gpu] = use_of_gpus(kept.samples)
    assert gpu.busy == pytest.approx(2 / 3, abs=0.001)
    times = [0.0, *(each.at_s for each in kept.samples)]
    busy = [each.cpu * (each.at_s - at_s) for each, at_s in zip(kept.samples, times, strict=False)]
    assert sum(busy) == pytest.approx(4, abs=0.001)


# ---- Kits: within 1 % of bare ----


def triads(*rounds: tuple[float, float]) -> list[Ran]:
    """Runs of memory-speed: the rate in the container and bare, by round."""
    return [
        ("memory-speed", turn, bare, output(f'data: {{"triad_gb_per_s": {rate}}}\nall right\n'))
        for turn, pair in enumerate(rounds)
        for bare, rate in zip((False, True), pair, strict=True)
    ]


@pytest.mark.parametrize(
    ("rounds", "outcome", "reason"),
    [
        ([(9.9, 10), (9.95, 10), (10.4, 10)], "passed", "at most 1 % slower than bare in every"),
        ([(9.89, 10), (9.8, 10), (5, 10)], "failed", "more than 1 % slower than bare in every"),
        ([(9.89, 10), (9.9, 10), (9.9, 10)], "skipped", "not decided, since the rounds disagree"),
        ([(10, 10), (10, 10)], "skipped", "not decided, since fewer than 3 rounds have both"),
        ([(5, 10), (5, 10)], "skipped", "not decided, since fewer than 3 rounds have both"),
    ],
)
def test_a_program_is_within_one_percent_of_bare_if_all_rounds_agree(
    rounds: list[tuple[float, float]], outcome: str, reason: str
) -> None:
    [found] = against_bare(triads(*rounds), "sif")
    assert (found.check, found.outcome) == ("memory-speed-against-bare", outcome)
    assert found.reason.startswith(reason)


def test_the_figures_of_a_comparison_are_kept() -> None:
    [found] = against_bare(triads((7.9375, 8), (7.96875, 8), (8.25, 8)), "sif")
    assert found.reason.endswith(
        ": triad from memory, all threads: 7.97 GB/s, 0.996 of bare (0.992 to 1.031)"
    )
    ratio = {"median": 0.99609375, "lowest": 0.9921875, "highest": 1.03125, "count": 3}
    assert found.data == {"memory_triad": {"value": 7.96875, "bare": 8.0, "ratio": ratio}}


@pytest.mark.parametrize(
    ("container", "bare", "outcome", "reason"),
    [
        (1, 0, "failed", "it ran bare, and not in the container: exit status 1: no GPU"),
        (0, 1, "skipped", "not compared: bare: exit status 1: no GPU"),
        (77, 77, "skipped", "not compared: bare: exit status 77: no GPU"),
    ],
)
def test_a_program_that_ends_with_an_error_is_not_compared(
    container: int, bare: int, outcome: str, reason: str
) -> None:
    ends = {
        False: output("no GPU\n", returncode=container),
        True: output("no GPU\n", returncode=bare),
    }
    right = output('data: {"triad_gb_per_s": 1}\nall right\n')
    ran: list[Ran] = [
        ("memory-speed", turn, is_bare, end if end.returncode else right)
        for turn in range(3)
        for is_bare, end in ends.items()
    ]
    [found] = against_bare(ran, "sif")
    assert (found.outcome, found.reason) == (outcome, reason)


def test_the_slowest_of_several_figures_decides() -> None:
    text = recorded("gpu-memory")
    slow = text.replace("54.125", "50.125")
    ran: list[Ran] = [
        ("gpu-memory", turn, bare, output(text if bare else slow))
        for turn in range(3)
        for bare in (True, False)
    ]
    [found] = against_bare(ran, "sif")
    assert found.outcome == "failed"
    assert "GPU: copy from the host: 50.1 GB/s, 0.926 of bare" in found.reason
    assert "copy in its memory" not in found.reason, "it did not decide"
    assert "gpu_copy" in found.data


@pytest.mark.parametrize("kept", [lambda r: r[2], lambda r: not r[2], lambda r: r[2] == (r[1] > 0)])
def test_without_a_common_round_nothing_fails(kept: Callable[[Ran], bool]) -> None:
    [found] = against_bare([run for run in triads((5, 10), (5, 10)) if kept(run)], "sif")
    assert (found.outcome, found.reason[:12]) == ("skipped", "not compared")


@pytest.mark.parametrize("rate", ["1e300", "1e-320", "NaN", "1" + "0" * 400])
def test_figures_that_are_not_credible_are_refused(rate: str) -> None:
    with pytest.raises(Unreadable):
        PROGRAM_BY_NAME["memory-speed"].read(f'data: {{"triad_gb_per_s": {rate}}}\n')


def test_kits_measure_programs_of_one_process_that_the_image_has() -> None:
    folder = "opt/build-images/bin/"
    names = ("memory-speed", "mpi-speed", "cuda-gemm", "cuda-nccl-speed", "hpcc")
    programs = programs_for_kits([f"{folder}{name}" for name in names])
    assert [(each.name, each.needs_gpu, *each.argv) for each in programs] == [
        ("memory-speed", False, f"/{folder}memory-speed", "256", "5"),
        ("gpu-gemm-double", True, f"/{folder}cuda-gemm", "double", "4096"),
        ("gpu-gemm-single", True, f"/{folder}cuda-gemm", "single", "4096"),
        ("gpu-gemm-tensor", True, f"/{folder}cuda-gemm", "tensor", "4096"),
        ("gpu-nccl-speed", True, f"/{folder}cuda-nccl-speed", f"/{folder}with-nccl"),
    ]


def test_every_program_that_kits_measure_on_gpus_is_a_check() -> None:
    """Of the same name, with the same arguments."""
    checks = shipped_project().checks
    for program in PROGRAMS:
        if program.needs_gpu:
            name, words = program.path.rpartition("/")[2], program.commands.split()[2:]
            run = checks[program.name].run.replace("$OUT/", "/opt/build-images/bin/")
            assert run.endswith(" ".join([name, *words]))
