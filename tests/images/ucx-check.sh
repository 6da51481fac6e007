#!/bin/sh
# Open MPI and the UCX below it are the built ones, and ranks exchange messages over UCX.
#
# usage: ucx-check.sh OPEN_MPI_VERSION UCX_VERSION LAUNCHER... PROGRAM...

set -u
wanted=$1 wanted_ucx=$2
shift 2

fail() {
    echo "$1"
    exit 1
}

version=$(ompi_info --version 2>/dev/null | sed -n 's/^Open MPI v//p' | head -n 1)
[ "$version" = "$wanted" ] || fail "ompi_info says Open MPI ${version:-nothing}, expected $wanted"
ompi_info --parsable 2>/dev/null | grep -q '^mca:pml:ucx:' || fail "this Open MPI has no pml ucx"
ucx=$(ucx_info -v | sed -n 's/^# Library version: //p;s/^# UCT version=\([0-9.]*\).*/\1/p;s/^# Version //p' | head -n 1)
[ "$ucx" = "$wanted_ucx" ] || fail "ucx_info says UCX ${ucx:-nothing}, expected $wanted_ucx"

# Without InfiniBand Open MPI does not choose UCX by itself: it is told that any transport will do.
# Ranks in containers of their own may not read each other's memory, which UCX's cma does.
OMPI_MCA_pml=ucx OMPI_MCA_osc=ucx OMPI_MCA_pml_base_verbose=10
OMPI_MCA_opal_common_ucx_tls=any OMPI_MCA_opal_common_ucx_devices=any
UCX_TLS=self,sm,tcp UCX_POSIX_USE_PROC_LINK=n
export OMPI_MCA_pml OMPI_MCA_osc OMPI_MCA_pml_base_verbose
export OMPI_MCA_opal_common_ucx_tls OMPI_MCA_opal_common_ucx_devices
export UCX_TLS UCX_POSIX_USE_PROC_LINK

said=$(mktemp) || exit 1
trap 'rm -f "$said"' EXIT
found=$("$@" 2>"$said") || {
    tail -n 20 "$said" >&2
    fail "over UCX: $(echo "$found" | tail -n 1)"
}
grep -a -q 'select: component ucx selected' "$said" || {
    tail -n 20 "$said" >&2
    fail "the ranks did not choose UCX"
}
echo "UCX $ucx below Open MPI $version: $(echo "$found" | grep -v '^data: ' | tail -n 1)"
