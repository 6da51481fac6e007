#!/bin/sh
# The negative control: a program that computes on a GPU, without one given to it, must fail, and
# in the way that it has to. A program that passes then does not look at a GPU at all.
#
# usage: gpu-control.sh hidden|start LEAST_DRIVER CUDA
#
# hidden  the GPUs are taken from the program by an empty CUDA_VISIBLE_DEVICES. Where there are some,
#         it must end with error 100; on a host without any, it must say so.
# start   no GPU was given to this container: who starts it so sees to that.
#
# The program is cuda-compute where nvcc made it, else `gpu none`. Exit status: 0 passed, 77 skipped,
# else failed. The last line is the finding; `data: {JSON}` stands before it.

how=$1 least=$2 cuda=$3
bin=${OUT:-/opt/build-images/bin}

program="$bin/cuda-compute"
[ -x "$program" ] || program="$bin/gpu none"

no_device='CUDA error 100 (cudaErrorNoDevice)|CUDA error 100 (CUDA_ERROR_NO_DEVICE)'
no_driver='CUDA error 35 (cudaErrorInsufficientDriver)|libcuda.so.1: cannot open shared object'
expected="$no_device|$no_driver"
here=false
if [ "$how" = hidden ]; then
    ready=$("$bin/gpu" ready "$least" "$cuda" 2>&1)
    status=$?
    last=$(printf '%s\n' "$ready" | tail -n 1)
    case $status,$last in
        0,*) here=true expected=$no_device ;;
        77,'no GPU'*) ;;
        *)
            echo "$last"
            exit 77
            ;;
    esac
    CUDA_VISIBLE_DEVICES=
    export CUDA_VISIBLE_DEVICES
fi

# shellcheck disable=SC2086  # a program and its argument
said=$($program 2>&1)
status=$?
last=$(printf '%s\n' "$said" | tail -n 1)
printf 'data: {"gpu_here": %s, "control": "%s"}\n' "$here" "$how"
if [ "$status" -eq 0 ]; then
    echo "without a GPU ${program##*/} passes: it does not look at one ($last)"
    exit 1
fi
if printf '%s\n' "$last" | grep -qF "$(printf '%s\n' "$expected" | tr '|' '\n')"; then
    echo "without a GPU ${program##*/} fails as it has to: $last"
    exit 0
fi
echo "without a GPU ${program##*/} ends otherwise than it has to (status $status): $last"
exit 1
