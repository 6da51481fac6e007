"""Tasks and workers of a large site, as `scale.py` simulates them.

Images are made of recipes that build on each other: each combination of architecture, base and MPI
has the same tree of recipes, and the stages of a recipe serve all recipes above it.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from builder.build.tasks import Task, longest_paths
from builder.build.workers import Pool, Worker, requirement_of

X86 = Pool(name="x86", architectures=("x86_64", "ppc64le", "aarch64"))
POWER = Pool(name="power", architectures=("ppc64le",))
GPU = Pool(name="gpu", architectures=("x86_64",), gpus=1)
_SHARES = {X86: 80, POWER: 15, GPU: 5}  # of 100 workers
_MACHINES = {X86: 4, POWER: 3, GPU: 1}  # workers of each

# Parents of recipes, by number: a root, and chains of up to four recipes.
_PARENTS = (None, 0, 0, 0, 1, 1, 1, 4, 4, 7, 2, 2)
# Seconds of a native task; the builder's estimates for what was never measured are alike.
_SECONDS = {"base": 60.0, "stage": 90.0, "image": 60.0, "pack": 25.0, "verify": 30.0}
_GPU_CHECKS_S = 30.0
# Native tools make an emulated build 1.05 to 1.4 times as long (docs/performance.md); checks are
# run by plain QEMU.
EMULATED = {"base": 1.4, "stage": 1.4, "image": 1.4, "pack": 1.0, "verify": 2.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Tasks and workers, and the seconds that each task takes on a native worker."""

    tasks: Sequence[Task]
    workers: Sequence[Worker]
    seconds: Mapping[str, float]

    def seconds_on(self, task: Task, pool: Pool) -> float:
        """The seconds of a task on a worker of a pool."""
        slower = 1.0 if pool.is_native(task.requires.arch) else EMULATED[task.kind]
        return self.seconds[task.name] * slower

    def pools_of(self, task: Task) -> list[Pool]:
        """The pools that may run a task by the rules of placement."""
        arch = task.requires.arch
        if task.kind == "verify" and task.requires.gpus:
            return [GPU]
        if task.kind == "verify":
            return {"x86_64": [X86, GPU], "ppc64le": [POWER], "aarch64": [X86]}[arch]
        return [pool for pool in (X86, POWER, GPU) if arch in pool.architectures]

    def bounds(self) -> dict[str, float]:
        """Seconds that no schedule can go below: by the longest path, and by the work.

        The work of all tasks is priced at the cheapest worker of each, for several prices of a
        worker's second; a price of zero leaves a pool out.
        """
        fastest = {
            task.name: min(self.seconds_on(task, pool) for pool in self.pools_of(task))
            for task in self.tasks
        }
        path = longest_paths({task.name: _with_seconds(task, fastest) for task in self.tasks})
        return {"path": max(path.values()), "work": max(self._by_work())}

    def _by_work(self) -> Iterable[float]:
        work: dict[tuple[str, tuple[Pool, ...], str], float] = defaultdict(float)
        for task in self.tasks:
            key = (task.kind, tuple(self.pools_of(task)), task.requires.arch)
            work[key] += self.seconds[task.name]
        count = {pool: sum(worker.pool == pool for worker in self.workers) for pool in _SHARES}
        for prices in itertools.product((0.0, 1.0, 1.2, 1.4), repeat=len(_SHARES)):
            price = dict(zip(_SHARES, prices, strict=True))
            if total := sum(price[pool] * count[pool] for pool in count):
                yield (
                    sum(
                        seconds * min(price[pool] * _slower(kind, arch, pool) for pool in pools)
                        for (kind, pools, arch), seconds in work.items()
                    )
                    / total
                )


def _slower(kind: str, arch: str, pool: Pool) -> float:
    return 1.0 if pool.is_native(arch) else EMULATED[kind]


def _with_seconds(task: Task, seconds: Mapping[str, float]) -> Task:
    return Task(
        name=task.name, kind=task.kind, work=task.work, needs=task.needs, seconds=seconds[task.name]
    )


def make_site(cells: int, workers: int, chance: random.Random) -> Site:
    """A site with so many cells; shares of architectures and GPUs are the seed's."""
    shares = (chance.uniform(0.3, 0.6), chance.uniform(0.15, 0.4), chance.uniform(0.05, 0.2))
    with_gpus = chance.uniform(0.05, 0.2)  # of the combinations for x86_64
    tasks: dict[str, Task] = {}
    images = 0
    for number in itertools.count():
        arch = chance.choices(("x86_64", "ppc64le", "aarch64"), shares)[0]
        gpus = int(arch == "x86_64" and chance.random() < with_gpus)
        for recipe in range(len(_PARENTS)):
            if images == cells:
                return _site(tasks, workers, chance)
            images += 1
            _add_image(tasks, recipe, f"{number}-{arch}", arch, gpus)
    raise AssertionError


def _add_image(tasks: dict[str, Task], recipe: int, combination: str, arch: str, gpus: int) -> None:
    def add(kind: str, about: str, *needs: str, group: str = "") -> str:
        name = f"{kind} {about}"
        tasks.setdefault(
            name,
            Task(
                name=name,
                kind=kind,
                work=lambda: None,
                needs=needs,
                group=group,
                requires=requirement_of(kind, arch, gpus=gpus),
                seconds=_SECONDS[kind] + (_GPU_CHECKS_S if gpus and kind == "verify" else 0.0),
            ),
        )
        return name

    *ancestors, own = _chain(recipe)
    needs = add("base", f"{int(combination.partition('-')[0]) % 10} {arch}")
    for ancestor in ancestors:
        needs = add("stage", f"{ancestor} {combination}", needs)
    image = f"{own} {combination}"
    needs = add("image", image, needs, group=image)
    needs = add("pack", image, needs, group=image)
    add("verify", image, needs, group=image)


def _chain(recipe: int) -> list[int]:
    parent = _PARENTS[recipe]
    return [*([] if parent is None else _chain(parent)), recipe]


def _site(tasks: Mapping[str, Task], workers: int, chance: random.Random) -> Site:
    return Site(
        tasks=[*tasks.values()],
        workers=_workers(workers),
        # The estimates are wrong as those of an earlier run are.
        seconds={
            name: task.seconds * chance.lognormvariate(0, 0.3) for name, task in tasks.items()
        },
    )


def _workers(number: int) -> list[Worker]:
    counts = {pool: max(1, round(number * share / 100)) for pool, share in _SHARES.items()}
    return [
        Worker(name=f"{pool.name}-{index}", machine=machine, pool=pool)
        for pool, count in counts.items()
        for index in range(count)
        for machine in [f"{pool.name}{index // _MACHINES[pool]}"]
    ]
