#!/bin/sh
# The OSU micro-benchmarks exchange messages between 2 ranks, and find what arrives to be right.
#
# usage: osu-check.sh FOLDER LAUNCHER...
#
# FOLDER holds the installed benchmarks. Few iterations of few sizes: it proves the programs, not the
# machine.

set -u
folder=$1
shift
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

count=0
for name in osu_latency osu_bw osu_allreduce; do
    program=$(find "$folder" -name "$name" -type f -perm -100 | head -n 1)
    if [ -z "$program" ]; then
        echo "there is no $name below $folder"
        exit 1
    fi
    "$@" "$program" -c -i 10 -x 2 -m 4:4096 >"$work/out" 2>&1 || {
        status=$?
        cat "$work/out" >&2
        echo "$name ended with exit status $status"
        exit 1
    }
    # A line for each size: the size, a figure, and with -c whether the content was right.
    sizes=$(grep -cE '^[0-9]+ +[0-9.]+ .*Pass *$' "$work/out")
    if [ "$sizes" -lt 2 ] || grep -q 'Fail' "$work/out"; then
        cat "$work/out" >&2
        echo "$name found $sizes sizes right"
        exit 1
    fi
    count=$((count + 1))
done
echo "$count benchmarks exchange messages between 2 ranks, and every content is right"
