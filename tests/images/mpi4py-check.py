"""mpi4py and NumPy with the MPI of the image: RANKS processes reduce objects and arrays.

Usage: mpi4py-check.py RANKS [LIBRARY]. LIBRARY is how the MPI library has to begin its name, for
example "Open MPI v5.0".

Exit status: 0 on every rank passed, else failed, on every rank. The last line of standard output
is the finding, printed by rank 0; a line `data: {JSON}` stands before it.

Python 3.6 has to run it: Ubuntu 18.04 and CentOS 7 have no other.
"""

import json
import sys

COUNTS = (1, 7, 1000, 65536)


def library_name(text: str) -> str:
    """`Open MPI v4.1.4, package: …` → `Open MPI v4.1.4`; `MPICH Version:  4.2.1` → `MPICH 4.2.1`"""
    first = text.replace("\0", "").strip().splitlines()[0]
    return " ".join(first.split(",")[0].replace(" Version:", " ").split())


def begins(name: str, wanted: str) -> bool:
    """`Open MPI v5.0` begins `Open MPI v5.0.7`, not `Open MPI v5.01`."""
    return name.startswith(wanted) and not name[len(wanted) :][:1].isdigit()


def check_objects(world) -> str:
    """Pickled objects: each rank once, and a reduction of Python integers beyond 64 bits."""
    rank, size = world.Get_rank(), world.Get_size()
    ranks = world.allgather({"rank": rank})
    total = world.allreduce((rank + 1) << 80)
    expected = (size * (size + 1) // 2) << 80
    if ranks != [{"rank": i} for i in range(size)]:
        return f"pickled allgather gave {ranks}"
    return "" if total == expected else f"pickled allreduce gave {total}, expected {expected}"


def check_arrays(world, np, operation) -> str:
    """NumPy buffers: the sum of (rank + 1)(i + 1) over the ranks, at several lengths.

    A rank that finds a fault goes on: the others wait for it in the next reduction.
    """
    rank, size = world.Get_rank(), world.Get_size()
    fault = ""
    for dtype in ("float64", "int64"):
        for count in COUNTS:
            index = np.arange(1, count + 1, dtype=dtype)
            result = np.full(count, -1, dtype=dtype)
            world.Allreduce(index * (rank + 1), result, op=operation)
            expected = index * (size * (size + 1) // 2)
            wrong = np.flatnonzero(result != expected)
            if len(wrong) and not fault:
                i = int(wrong[0])
                fault = (
                    f"Allreduce of {count} {dtype} values: value {i} is {result[i]}, "
                    f"expected {expected[i]}"
                )
    return fault


def check_messages(world, np) -> str:
    """A NumPy array and a pickled object from each rank to the next."""
    rank, size = world.Get_rank(), world.Get_size()
    left, right = (rank - 1) % size, (rank + 1) % size
    got = np.full(COUNTS[-1], -1.0)
    world.Sendrecv(np.arange(COUNTS[-1]) + rank * 0.5, right, recvbuf=got, source=left)
    said = world.sendrecv({"from": rank, "text": "é" * 5000}, right, source=left)
    if not np.array_equal(got, np.arange(COUNTS[-1]) + left * 0.5):
        return f"the array from rank {left} to rank {rank} arrived changed"
    if said != {"from": left, "text": "é" * 5000}:
        return f"the object from rank {left} to rank {rank} arrived changed"
    return ""


def verdict(world, fault: str) -> str:
    """The first fault of any rank, the same on all ranks."""
    for rank, said in enumerate(world.allgather(fault)):
        if said:
            return f"rank {rank}: {said}"
    return ""


def check(world, np, operation) -> str:
    """The first fault that this rank found. All ranks run all checks: none is left waiting."""
    faults = [
        check_objects(world),
        check_messages(world, np),
        check_arrays(world, np, operation),
    ]
    return next(filter(None, faults), "")


def report(size: int, fault: str, versions: "dict[str, str]") -> None:
    print("data: " + json.dumps({"ranks": size, **versions}))
    print(
        fault
        or f"{size} ranks: pickled and array messages and allreduce (mpi4py {versions['mpi4py']}, "
        f"NumPy {versions['numpy']}, {versions['library']})"
    )
    sys.stdout.flush()


def main(arguments: "list[str]") -> int:
    if len(arguments) not in (1, 2) or not arguments[0].isdigit():
        print("usage: mpi4py-check.py RANKS [LIBRARY]")
        return 2
    try:
        import mpi4py  # noqa: PLC0415 - a missing package is a finding, not a traceback
        import numpy as np  # noqa: PLC0415
        from mpi4py import MPI  # noqa: PLC0415
    except (ImportError, RuntimeError) as error:
        print(f"cannot import mpi4py and NumPy: {str(error).splitlines()[0]}")
        return 1

    world, expected, wanted = MPI.COMM_WORLD, int(arguments[0]), "".join(arguments[1:])
    size = world.Get_size()
    library = library_name(MPI.Get_library_version())
    if size == 1 and expected != 1:
        print(
            f"MPI started singletons: this process is rank 0 of 1, expected {expected} ranks; "
            f"launcher and mpi4py's library do not belong together ({library})"
        )
        return 1
    if size != expected:
        fault = f"MPI started {size} ranks, expected {expected}"
    elif not begins(library, wanted):
        fault = f"mpi4py uses {library}, expected {wanted}"
    else:
        fault = verdict(world, check(world, np, MPI.SUM))
    if world.Get_rank() == 0:
        versions = {"library": library, "mpi4py": mpi4py.__version__, "numpy": np.__version__}
        report(size, fault, versions)
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
