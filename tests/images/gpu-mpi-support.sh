#!/bin/sh
# Open MPI and UCX are built with CUDA. Their parts that use it are linked to the driver's library:
# they are loaded where the host has brought that in, and nowhere else.
#
# usage: gpu-mpi-support.sh LAUNCHER... gpu-mpi-support

set -u

fail() {
    echo "$1"
    exit 1
}

built=$(ompi_info --parsable --all 2>/dev/null | sed -n 's/.*mpi_built_with_cuda_support:value://p')
[ "$built" = true ] || fail "ompi_info says mpi_built_with_cuda_support ${built:-not at all}"
ucx_info -b | grep -Eq '^#define HAVE_CUDA +1' || fail "ucx_info says that UCX is built without CUDA"
devices=$(ucx_info -d) || fail "ucx_info -d ended with exit status $?"
transports=$(echo "$devices" | sed -n 's/^# *Transport: \(cuda_.*\)/\1/p' | sort -u | paste -s -d ' ')

numbers=$("$@") || fail "gpu-mpi-support ended with exit status $?"
# shellcheck disable=SC2086  # four numbers
set -- $numbers
[ $# -eq 4 ] || fail "gpu-mpi-support printed: $numbers"
compiled=$1 driver=$2 used=$3 gpus=$4
printf 'data: {"driver": %s, "gpus": %s, "transports": "%s"}\n' "$driver" "$gpus" "$transports"
[ "$compiled" = 1 ] || fail "mpi-ext.h has MPIX_CUDA_AWARE_SUPPORT $compiled"
[ "$driver" = 1 ] && library="is here" || library="is not here"
[ "$used" = "$driver" ] ||
    fail "MPIX_Query_cuda_support says $used, and libcuda.so.1 $library"
case $driver,$gpus,$transports in
    0,0,) where="without the driver's library" ;;
    1,0,) where="with the driver's library, and no GPU" ;;
    *,0,*) fail "without a GPU, UCX has the transports $transports" ;;
    *cuda_copy*) where="with $gpus GPUs" ;;
    *) fail "with $gpus GPUs, UCX has no transport cuda_copy" ;;
esac
echo "Open MPI and UCX are built with CUDA; $where: MPIX_Query_cuda_support says $used," \
    "${transports:+transports }${transports:-no transport}"
