#!/bin/sh
# fio writes a file with checksums, reads it back and finds all of them right.
#
# usage: fio-check.sh [MEBIBYTES]

set -u
size=${1:-16}
command -v fio >/dev/null || {
    echo "there is no fio in the image"
    exit 1
}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# psync asks nothing of the kernel that a container or an emulator could forbid (io_uring, aio).
# thread: without System V shared memory between processes.
fio --name=check --directory="$work" --size="${size}m" --bs=64k --ioengine=psync --thread \
    --rw=randwrite --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed=20 \
    --output-format=json --output="$work/out" >"$work/said" 2>&1 || {
    cat "$work/said" "$work/out" >&2
    echo "fio ended with exit status $?"
    exit 1
}

python3 - "$work/out" "$size" <<'PYTHON'
import json
import sys

text = open(sys.argv[1], encoding="utf-8").read()
found = json.loads(text[text.index("{") :])
job, wanted = found["jobs"][0], int(sys.argv[2]) << 20
written, read = job["write"]["io_bytes"], job["read"]["io_bytes"]
if job["error"] or written != wanted or read != wanted:
    print(f"fio wrote {written} and verified {read} of {wanted} bytes, error {job['error']}")
    sys.exit(1)
data = {
    "bytes": wanted,
    "write_mb_per_s": round(job["write"]["bw_bytes"] / 1e6, 3),
    "read_mb_per_s": round(job["read"]["bw_bytes"] / 1e6, 3),
}
print("data: " + json.dumps(data))
print(f"{wanted >> 20} MiB written at random and verified by checksum ({found['fio version']})")
PYTHON
