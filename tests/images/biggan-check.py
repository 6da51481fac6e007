"""A short training of BigGAN with the image's own code, on pictures that are made up.

Usage: biggan-check.py FOLDER. The folder holds BigGAN-PyTorch:
https://github.com/ajbrock/BigGAN-PyTorch. Its models and its training step are used, with the
options of its script launch_BigGAN_bs256x8.sh, at 32 x 32 pixels and with few channels; its data
and its measures of quality are not. All that its train.py imports has to be there.

The GPU does the work where PyTorch finds one, else the CPU.

Exit status: 0 passed, else failed. The last line of standard output is the finding; a line
`data: {JSON}` stands before it.

Python 3.6 and PyTorch 1.1 have to run it: Ubuntu 18.04 has no newer Python.
"""

import importlib
import json
import math
import shlex
import sys
import time

STEPS = 15
CLASSES = 4
BATCH = 8
PIXELS = 32
ENOUGH = 0.5  # of the hinge losses, which are 2 for a discriminator that knows nothing
# As launch_BigGAN_bs256x8.sh, but for sizes, and for rates at which a few steps are enough.
OPTIONS = shlex.split(
    f"""
    --model BigGAN --G_shared --hier --G_attn 16 --D_attn 0 --G_nl inplace_relu --D_nl inplace_relu
    --SN_eps 1e-6 --BN_eps 1e-5 --adam_eps 1e-6 --G_ortho 0.0 --G_init ortho --D_init ortho
    --ema --use_ema --ema_start 2 --ema_decay 0.9 --num_D_steps 2 --G_B1 0.0 --D_B1 0.0
    --G_lr 2e-3 --D_lr 1e-3 --G_ch 8 --D_ch 8 --dim_z 32 --shared_dim 16 --seed 20
    --batch_size {BATCH}
    """
)
PARTS = ("BigGAN", "losses", "train_fns", "utils", "train")


class Wrong(Exception):
    """The training did not do what it has to."""


def expect(condition: object, problem: str) -> None:
    if not condition:
        raise Wrong(problem)


def pictures(torch, classes):
    """Stripes, of another width in each class, and some noise: -1 to 1."""
    rows = torch.arange(PIXELS).float() / PIXELS * 2 * math.pi
    waves = torch.sin(rows[None, :] * (classes.float()[:, None] + 1))
    clean = waves[:, None, :, None].expand(-1, 3, -1, PIXELS)
    return (0.8 * clean + 0.1 * torch.randn(clean.shape)).clamp(-1, 1)


def models(parts, device: str):
    """Generator, its moving average, discriminator, and the training step over them."""
    utils, big = parts["utils"], parts["BigGAN"]
    config = vars(utils.prepare_parser().parse_args(OPTIONS))
    config["resolution"], config["n_classes"] = PIXELS, CLASSES
    config["G_activation"] = utils.activation_dict[config["G_nl"]]
    config["D_activation"] = utils.activation_dict[config["D_nl"]]
    generator = big.Generator(**config).to(device)
    discriminator = big.Discriminator(**config).to(device)
    quiet = {**config, "skip_init": True, "no_optim": True}
    average = big.Generator(**quiet).to(device)
    ema = utils.ema(generator, average, config["ema_decay"], config["ema_start"])
    z, y = utils.prepare_z_y(BATCH, generator.dim_z, CLASSES, device=device, fp16=False)
    state = {"itr": 0}
    both = big.G_D(generator, discriminator)
    step = parts["train_fns"].GAN_training_function(
        generator, discriminator, both, z, y, ema, state, config
    )
    return generator, average, discriminator, step, state


def snapshot(model):
    return {name: one.detach().clone() for name, one in model.named_parameters()}


def mean(values: "list[float]") -> float:
    return sum(values) / len(values)


def still(model, before) -> "list[str]":
    """The weights that did not move."""
    found = model.named_parameters()
    return [name for name, one in found if bool((one.detach() == before[name]).all())]


def check_training(torch, parts, device: str):
    """Losses stay finite, the discriminator learns, and every weight takes part."""
    generator, average, discriminator, step, state = models(parts, device)
    before = snapshot(generator), snapshot(discriminator), snapshot(average)
    losses = []
    for turn in range(STEPS):
        classes = torch.arange(2 * BATCH) % CLASSES
        state["itr"] = turn + 1
        found = step(pictures(torch, classes).to(device), classes.to(device))
        losses.append(found)
        bad = [name for name, value in found.items() if not math.isfinite(value)]
        expect(not bad, f"step {turn + 1}: {', '.join(bad)} is not finite")
    trained = [("generator", generator), ("discriminator", discriminator), ("average", average)]
    for (title, model), start in zip(trained, before):  # noqa: B905 - Python 3.6 has no strict
        unmoved = still(model, start)
        expect(not unmoved, f"weights of the {title} that did not move: {', '.join(unmoved[:3])}")
    told = [one["D_loss_real"] + one["D_loss_fake"] for one in losses]
    first, last = mean(told[: STEPS // 3]), mean(told[-STEPS // 3 :])
    learnt = f"its loss went from {first:.2f} in the first third of the steps to {last:.2f}"
    expect(last < max(first / 2, ENOUGH), f"the discriminator learnt too little: {learnt}")
    classes = torch.arange(8 * BATCH) % CLASSES
    with torch.no_grad():
        rated = float(discriminator(pictures(torch, classes).to(device), classes.to(device)).mean())
    expect(rated > 0, f"the discriminator takes real pictures for made ones: {rated:.2f}")
    return average, learnt


def check_pictures(torch, generator, device: str) -> None:
    """Pictures are within bounds, follow the class, and come back the same."""
    generator.eval()
    with torch.no_grad():
        torch.manual_seed(20)
        z = torch.randn(2, generator.dim_z).to(device)
        made = [
            generator(z, generator.shared(torch.full((2,), one).long().to(device)))
            for one in (0, 1, 0)
        ]
    expect(made[0].shape == (2, 3, PIXELS, PIXELS), f"pictures of shape {tuple(made[0].shape)}")
    expect(bool(torch.isfinite(made[0]).all()), "pictures with values that are not finite")
    expect(float(made[0].abs().max()) <= 1, "pictures beyond -1 to 1")
    expect(not torch.equal(made[0], made[1]), "pictures that do not depend on the class")
    expect(not torch.equal(made[0][0], made[0][1]), "pictures that do not depend on the noise")
    expect(torch.allclose(made[0], made[2], atol=1e-5), "pictures that differ from call to call")


def check(folder: str) -> str:
    import torch  # noqa: PLC0415 - a missing package is a finding, not a traceback

    sys.path.insert(0, folder)
    parts = {name: importlib.import_module(name) for name in PARTS}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(2)
    torch.manual_seed(20)
    begin = time.time()
    average, learnt = check_training(torch, parts, device)
    check_pictures(torch, average, device)
    seconds = time.time() - begin
    print("data: " + json.dumps({"steps": STEPS, "seconds": round(seconds, 2), "device": device}))
    return (
        f"BigGAN, {PIXELS} x {PIXELS}, {STEPS} steps on {device} with PyTorch {torch.__version__}: "
        f"all weights moved; of the discriminator, {learnt}"
    )


def main(arguments: "list[str]") -> int:
    if len(arguments) != 1:
        print("usage: biggan-check.py FOLDER")
        return 2
    try:
        print(check(arguments[0]))
    except ImportError as error:
        print(f"cannot import what BigGAN needs: {str(error).splitlines()[0]}")
        return 1
    except Wrong as error:
        print(f"wrong: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
