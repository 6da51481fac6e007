"""Models of BigGAN's shape and names, small: what biggan-check.py is tried on without the network.

The names and arguments are those of https://github.com/ajbrock/BigGAN-PyTorch, no line is.
"""

import torch


class Generator(torch.nn.Module):
    def __init__(self, dim_z, shared_dim, n_classes, resolution, no_optim=False, **options):
        super().__init__()
        self.dim_z, self.resolution = dim_z, resolution
        self.shared = torch.nn.Embedding(n_classes, shared_dim)
        self.paint = torch.nn.Linear(dim_z + shared_dim, 3 * resolution**2)
        if not no_optim:
            self.optim = torch.optim.Adam(self.parameters(), lr=options["G_lr"])

    def forward(self, z, y):
        flat = self.paint(torch.cat([z, y], 1))
        return torch.tanh(flat).reshape(-1, 3, self.resolution, self.resolution)


class Discriminator(torch.nn.Module):
    def __init__(self, n_classes, resolution, **options):
        super().__init__()
        self.look = torch.nn.Linear(3 * resolution**2, 32)
        self.embed = torch.nn.Embedding(n_classes, 32)
        self.linear = torch.nn.Linear(32, 1)
        self.optim = torch.optim.Adam(self.parameters(), lr=options["D_lr"])

    def forward(self, x, y):
        seen = torch.relu(self.look(x.flatten(1)))
        return self.linear(seen) + (self.embed(y) * seen).sum(1, keepdim=True)


class G_D(torch.nn.Module):  # noqa: N801 - BigGAN's name
    def __init__(self, generator, discriminator):
        super().__init__()
        self.generator, self.discriminator = generator, discriminator

    def forward(self, z, y):
        made = self.generator(z, self.generator.shared(y))
        return self.discriminator(made, y), made
