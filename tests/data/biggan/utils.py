"""Options, noise and the moving average."""

import argparse

import torch

activation_dict = {"inplace_relu": torch.nn.ReLU(inplace=True)}


def prepare_parser():
    parser = argparse.ArgumentParser()
    for name in ["model", "G_attn", "D_attn", "G_nl", "D_nl", "G_init", "D_init"]:
        parser.add_argument(f"--{name}")
    for name in [
        "SN_eps",
        "BN_eps",
        "adam_eps",
        "G_ortho",
        "ema_decay",
        "G_B1",
        "D_B1",
        "G_lr",
        "D_lr",
    ]:
        parser.add_argument(f"--{name}", type=float)
    for name in [
        "ema_start",
        "num_D_steps",
        "G_ch",
        "D_ch",
        "dim_z",
        "shared_dim",
        "batch_size",
        "seed",
    ]:
        parser.add_argument(f"--{name}", type=int)
    for name in ["G_shared", "hier", "ema", "use_ema"]:
        parser.add_argument(f"--{name}", action="store_true")
    return parser


class ema:  # noqa: N801 - BigGAN's name
    def __init__(self, source, target, decay, start_itr):
        self.source, self.target, self.decay, self.start = source, target, decay, start_itr
        target.load_state_dict(source.state_dict())

    def update(self, itr):
        decay = self.decay if itr >= self.start else 0.0
        kept = self.target.state_dict()
        with torch.no_grad():
            for name, one in self.source.state_dict().items():
                kept[name].copy_(kept[name] * decay + one * (1 - decay))


def prepare_z_y(batch, dim_z, classes, device, fp16):
    del fp16
    return (
        lambda: torch.randn(batch, dim_z, device=device),
        lambda: torch.randint(classes, (batch,), device=device),
    )
