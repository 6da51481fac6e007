"""HPC Challenge: HPL, DGEMM, STREAM and ping-pong in one run.

Its input and its output: https://hpcchallenge.org/hpcc/faq/ and README.txt of its sources.
"""

from __future__ import annotations

from builder.verify.measure.measurement import Quantity, Unreadable, number

RANKS = 2

QUANTITIES = (
    Quantity(
        name="hpcc_dgemm",
        title="hpcc: DGEMM, on each core at once",
        unit="GFlop/s",
        metric="hpcc_dgemm_flops_per_second",
        scale=1e9,
    ),
    Quantity(
        name="hpcc_hpl",
        title="hpcc: HPL, 2 ranks",
        unit="GFlop/s",
        metric="hpcc_hpl_flops_per_second",
        scale=1e9,
    ),
    Quantity(
        name="hpcc_triad",
        title="hpcc: STREAM triad, on each core at once",
        unit="GB/s",
        metric="hpcc_stream_triad_bytes_per_second",
        scale=1e9,
    ),
    Quantity(
        name="hpcc_latency",
        title="hpcc: ping-pong latency, 8 B",
        unit="µs",
        metric="hpcc_ping_pong_latency_seconds",
        scale=1e-6,
        more_is_better=False,
    ),
    Quantity(
        name="hpcc_bandwidth",
        title="hpcc: ping-pong bandwidth, 2 MB",
        unit="GB/s",
        metric="hpcc_ping_pong_bandwidth_bytes_per_second",
        scale=1e9,
    ),
)
# Lines of the summary; HPL's is in TFlop/s.
_NAMES = {
    "hpcc_dgemm": ("StarDGEMM_Gflops", 1.0),
    "hpcc_hpl": ("HPL_Tflops", 1000.0),
    "hpcc_triad": ("StarSTREAM_Triad", 1.0),
    "hpcc_latency": ("AvgPingPongLatency_usec", 1.0),
    "hpcc_bandwidth": ("AvgPingPongBandwidth_GBytes", 1.0),
}
# As HPL reads it, line by line: https://www.netlib.org/benchmark/hpl/tuning.html
_INPUT = """\
HPLinpack benchmark input file
made by build-images
HPL.out  output file name
8        device out (a file)
1        number of problem sizes
{order}  N
1        number of block sizes
{block}  NB
0        process mapping, row-major
1        number of process grids
1        P
{ranks}  Q
16.0     threshold
1        number of panel factorisations
2        PFACT, right
1        number of stopping criteria
4        NBMIN
1        number of panels in recursion
2        NDIV
1        number of recursive factorisations
1        RFACT, Crout
1        number of broadcasts
1        BCAST, 1rM
1        number of lookahead depths
1        DEPTH
2        SWAP, mix
64       swapping threshold
0        L1, transposed
0        U, transposed
1        equilibration
8        alignment of memory
0        number of further sizes for PTRANS
0        its sizes
0        number of further block sizes for PTRANS
0        its block sizes
"""


def script(order: int, launch: str, folder: str) -> str:
    """One thread a rank; the summary is printed."""
    block = min(128, order // 2)
    text = _INPUT.format(order=order, block=block, ranks=RANKS)
    return f"""\
work=$(mktemp -d -p {folder}) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
cat >hpccinf.txt <<'INPUT'
{text}INPUT
OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
export OMP_NUM_THREADS OPENBLAS_NUM_THREADS
{launch} hpcc || exit
sed -n '/^Begin of Summary/,$p' hpccoutf.txt
"""


def read(text: str) -> dict[str, float]:
    """The values by quantity; raises `Unreadable`, also where its own checks failed."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    found = {name.strip(): value.strip() for name, _, value in pairs}
    if found.get("Success") != "1":
        raise Unreadable(f"it says Success={found.get('Success', 'nothing')}")
    if found.get("CommWorldProcs") != str(RANKS):
        raise Unreadable(f"it ran on {found.get('CommWorldProcs')} ranks, not on {RANKS}")
    return {
        quantity: number(found.get(name, ""), name) * scale
        for quantity, (name, scale) in _NAMES.items()
    }
