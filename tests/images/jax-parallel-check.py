"""Data-parallel training of JAX: two devices of the host learn what one does from whole batches.

Usage: jax-parallel-check.py

XLA makes two devices of this host's processor. By `shard_map` each sees a half of each batch, and
gradients are averaged between them. After some steps, both must have the same weights to the bit,
and those of one device that saw the whole batches, and NumPy's, but for rounding.

Exit status: 0 passed, else failed. The last line of standard output is the finding; a line
`data: {JSON}` stands before it.
"""

import json
import os
import sys

DEVICES = 2
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"


class Wrong(Exception):
    """The weights are not what they have to be."""


def step_on(jax, network, count: int):
    """A compiled step of gradient descent on `count` devices, and how a batch is laid out on them.

    The step returns the weights, the loss, and the size of the part that each device saw.
    """
    from jax_network import loss_of  # noqa: PLC0415 - it imports JAX

    spec = jax.sharding.PartitionSpec
    mesh = jax.sharding.Mesh(jax.devices()[:count], ("data",))

    def mean_loss(weights, pictures, classes):
        return jax.lax.pmean(loss_of(weights, pictures, classes), "data")

    def step(weights, pictures, classes):
        loss, by_weight = jax.value_and_grad(mean_loss)(weights, pictures, classes)
        stepped = [old - network.RATE * by for old, by in zip(weights, by_weight)]  # noqa: B905
        return stepped, loss, jax.numpy.array([len(pictures)])

    sharded = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(spec(), spec("data"), spec("data")),
        out_specs=(spec(), spec(), spec("data")),
    )
    return jax.jit(sharded), jax.sharding.NamedSharding(mesh, spec("data"))


def trained(jax, np, network, count: int):
    """The weights after some steps on `count` devices, the losses, and the parts of each batch."""
    step, layout = step_on(jax, network, count)
    weights, losses, parts = network.made(np), [], set()
    for batch in network.batches(np):
        pictures, classes = (jax.device_put(one, layout) for one in batch)
        weights, loss, seen = step(weights, pictures, classes)
        losses.append(float(loss))
        parts.add(tuple(int(one) for one in seen))
    return weights, losses, parts


def compare(jax, np, network) -> "tuple[float, list[float]]":
    """The devices with each other, with one alone, and with NumPy; their difference, the losses."""
    weights, losses, parts = trained(jax, np, network, DEVICES)
    halves = (network.BATCH // DEVICES,) * DEVICES
    if parts != {halves}:
        raise Wrong(f"the devices saw {sorted(parts)} of each batch, not {halves}")
    for one in weights:
        copies = {shard.device.id: np.asarray(shard.data) for shard in one.addressable_shards}
        if len(copies) != DEVICES:
            raise Wrong(f"the weights are on {len(copies)} of {DEVICES} devices")
        first, *others = copies.values()
        unequal = sum(int((other != first).sum()) for other in others)
        if unequal:
            raise Wrong(f"the devices differ in {unequal} of {first.size} weights")
    alone, _, _ = trained(jax, np, network, 1)
    moved = network.apart(np, alone, network.made(np))
    if not moved >= network.LEAST_CHANGE:  # NaN as well
        raise Wrong(f"{network.STEPS} steps moved no weight by more than {moved:.1e}")
    by_numpy, _ = network.trained(np)
    differences = [network.apart(np, weights, other) for other in (alone, by_numpy)]
    for name, difference in zip(("one with the whole batch", "NumPy"), differences):  # noqa: B905
        if not difference <= network.TOLERANCE:
            raise Wrong(f"{DEVICES} devices differ from {name} by {difference:.1e}")
    return max(differences), losses


def check() -> str:
    import jax  # noqa: PLC0415 - a missing package is a finding, not a traceback
    import numpy as np  # noqa: PLC0415
    import numpy_network  # noqa: PLC0415

    jax.config.update("jax_enable_x64", True)
    if jax.device_count() != DEVICES:
        raise Wrong(f"XLA made {jax.device_count()} devices of the host, not {DEVICES}")
    difference, losses = compare(jax, np, numpy_network)
    data = {"devices": jax.device_count(), "difference": difference, "losses": losses}
    print("data: " + json.dumps(data))
    return (
        f"shard_map over {DEVICES} devices of the host: after {numpy_network.STEPS} steps the same"
        f" weights to the bit, and within {difference:.0e} of one device and of NumPy"
    )


def main(arguments: "list[str]") -> int:
    if arguments:
        print("usage: jax-parallel-check.py")
        return 2
    try:
        print(check())
    except ImportError as error:
        print(f"cannot import JAX and NumPy: {str(error).splitlines()[0]}")
        return 1
    except Wrong as error:
        print(f"wrong: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
