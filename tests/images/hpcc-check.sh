#!/bin/sh
# HPC Challenge at a tiny size on RANKS ranks: all of its tests run, and their residuals pass.
#
# usage: hpcc-check.sh RANKS LAUNCHER...
#
# It proves the program, not the machine: the figures of so small a run say nothing.

set -u
ranks=$1
shift
command -v hpcc >/dev/null || {
    echo "there is no hpcc in the image"
    exit 1
}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

# Lines of HPL.dat as HPL reads them; 3 ranks and more would need P x Q to be found.
cat >hpccinf.txt <<INPUT
HPLinpack benchmark input file
made by hpcc-check.sh
HPL.out      output file name (if any)
8            device out (6=stdout,7=stderr,file)
1            # of problems sizes (N)
256          Ns
1            # of NBs
32           NBs
0            PMAP process mapping (0=Row-,1=Column-major)
1            # of process grids (P x Q)
1            Ps
$ranks            Qs
16.0         threshold
1            # of panel fact
2            PFACTs (0=left, 1=Crout, 2=Right)
1            # of recursive stopping criterium
4            NBMINs (>= 1)
1            # of panels in recursion
2            NDIVs
1            # of recursive panel fact.
1            RFACTs (0=left, 1=Crout, 2=Right)
1            # of broadcast
1            BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)
1            # of lookahead depth
1            DEPTHs (>=0)
2            SWAP (0=bin-exch,1=long,2=mix)
64           swapping threshold
0            L1 in (0=transposed,1=no-transposed) form
0            U  in (0=transposed,1=no-transposed) form
1            Equilibration (0=no,1=yes)
8            memory alignment in double (> 0)
0            Number of additional problem sizes for PTRANS
0            values of N
0            number of additional blocking sizes for PTRANS
0            values of NB
INPUT

OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
export OMP_NUM_THREADS OPENBLAS_NUM_THREADS
"$@" hpcc || {
    echo "hpcc ended with exit status $?"
    exit 1
}

# NAME=VALUE lines of the summary at the end of the output.
value() {
    sed -n "s/^$1=//p" hpccoutf.txt | tail -n 1
}

fail() {
    grep -a -n -i -E 'FAILED|error|residual' hpccoutf.txt | tail -n 20 >&2
    echo "$1"
    exit 1
}

[ -f hpccoutf.txt ] || {
    echo "hpcc wrote no hpccoutf.txt: it ran as singletons, or not at all"
    exit 1
}
[ "$(value Success)" = 1 ] || fail "hpcc says that a test failed (Success=$(value Success))"
[ "$(value CommWorldProcs)" = "$ranks" ] ||
    fail "hpcc ran on $(value CommWorldProcs) ranks, expected $ranks"
grep -q 'PASSED' hpccoutf.txt || fail "no residual of HPL passed"
! grep -q 'FAILED' hpccoutf.txt || fail "a residual failed"

# |Ax-b|_oo / (eps * (|A|_oo*|x|_oo+|b|_oo) * N) has to be below the threshold; a share of
# wrong updates of RandomAccess up to 1 % is allowed by its rules; the FFT's error is of the
# order of the machine's precision.
awk -v hpl="$(value HPL_Tflops)" -v gups="$(value MPIRandomAccess_ErrorsFraction)" \
    -v fft="$(value MPIFFT_maxErr)" -v ptrans="$(value PTRANS_residual)" '
    function is_number(text) { return text ~ /^[-+0-9.eE]+$/ }  # not nan: awks differ on it
    BEGIN {
        if (!is_number(hpl) || hpl + 0 <= 0) bad = "HPL has no rate"
        else if (!is_number(gups) || gups + 0 > 0.01) bad = "RandomAccess: wrong updates: " gups
        else if (!is_number(fft) || fft + 0 > 1e-10) bad = "FFT: largest error: " fft
        else if (!is_number(ptrans) || ptrans + 0 > 16) bad = "PTRANS: residual: " ptrans
        if (bad) { print bad; exit 1 }
    }' || exit 1

echo "data: {\"ranks\": $ranks, \"hpl_tflops\": $(value HPL_Tflops)," \
    "\"star_stream_triad_gb_per_s\": $(value StarSTREAM_Triad)," \
    "\"max_ping_pong_latency_us\": $(value MaxPingPongLatency_usec)}"
echo "$(grep -c PASSED hpccoutf.txt) residuals passed on $ranks ranks: HPL, PTRANS, DGEMM, STREAM," \
    "RandomAccess, FFT, latency and bandwidth ran (HPC Challenge $(value VersionMajor).$(value VersionMinor).$(value VersionMicro))"
