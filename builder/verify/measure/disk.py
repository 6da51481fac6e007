"""Files: fio writes one and reads it, in order and at random."""

from __future__ import annotations

import json

from builder.verify.measure.measurement import Quantity, Unreadable, number

DEPTH = 16

QUANTITIES = (
    Quantity(
        name="fio_write",
        title="fio: write in order",
        unit="MB/s",
        metric="fio_write_bytes_per_second",
        scale=1e6,
    ),
    Quantity(
        name="fio_read",
        title="fio: read in order",
        unit="MB/s",
        metric="fio_read_bytes_per_second",
        scale=1e6,
    ),
    Quantity(
        name="fio_random",
        title="fio: random 4 KiB reads, 1 at a time",
        unit="IOPS",
        metric="fio_random_reads_per_second",
        scale=1.0,
    ),
    Quantity(
        name="fio_random_deep",
        title=f"fio: random 4 KiB reads, {DEPTH} at a time",
        unit="IOPS",
        metric="fio_random_deep_reads_per_second",
        scale=1.0,
    ),
)


def script(mebibytes: int, seconds: int, folder: str) -> str:
    """Four jobs after each other on one file, past the page cache (O_DIRECT).

    psync asks nothing of the kernel that a container or an emulator could forbid (io_uring, aio);
    so reads at once are threads.
    """
    at_random = f"--rw=randread --bs=4k --time_based --runtime={seconds}"
    return f"""\
work=$(mktemp -d -p {folder}) || exit 1
trap 'rm -rf "$work"' EXIT
fio --output-format=json --directory="$work" --filename=file --size={mebibytes}m \\
    --ioengine=psync --thread --direct=1 --bs=1m --group_reporting --randseed=20 \\
    --name=fio_write --rw=write --end_fsync=1 \\
    --name=fio_read --stonewall --rw=read \\
    --name=fio_random --stonewall {at_random} \\
    --name=fio_random_deep --stonewall --numjobs={DEPTH} {at_random}
"""


def read(text: str) -> dict[str, float]:
    """The values by quantity, of fio's JSON; what stands before it are notes."""
    try:
        found = json.loads(text[text.index("{") :])
        jobs = {job["jobname"]: job for job in found["jobs"]}
        if failed := [name for name, job in jobs.items() if job["error"]]:
            raise Unreadable(f"its job {failed[0]} has the error {jobs[failed[0]]['error']}")
        return {
            "fio_write": number(jobs["fio_write"]["write"]["bw_bytes"], "write") / 1e6,
            "fio_read": number(jobs["fio_read"]["read"]["bw_bytes"], "read") / 1e6,
            **{
                name: number(jobs[name]["read"]["iops"], name)
                for name in ("fio_random", "fio_random_deep")
            },
        }
    except (ValueError, KeyError, TypeError) as error:
        raise Unreadable(f"this is not the JSON of its four jobs ({error!r})") from None
