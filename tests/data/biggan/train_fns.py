"""A training step."""

import losses


def GAN_training_function(G, D, GD, z_, y_, ema, state, config):  # noqa: N802, N803 - BigGAN's names
    def train(x, y):
        for part in range(config["num_D_steps"]):
            share = slice(part * config["batch_size"], (part + 1) * config["batch_size"])
            D.optim.zero_grad()
            made, _ = GD(z_(), y_())
            real, fake = losses.discriminator_loss(made, D(x[share], y[share]))
            (real + fake).backward()
            D.optim.step()
        G.optim.zero_grad()
        loss = losses.generator_loss(GD(z_(), y_())[0])
        loss.backward()
        G.optim.step()
        ema.update(state["itr"])
        return {
            "G_loss": loss.item(),
            "D_loss_real": real.item(),
            "D_loss_fake": fake.item(),
        }

    return train
