"""Hinge losses."""

import torch


def discriminator_loss(made, real):
    return torch.relu(1.0 - real).mean(), torch.relu(1.0 + made).mean()


def generator_loss(made):
    return -made.mean()
