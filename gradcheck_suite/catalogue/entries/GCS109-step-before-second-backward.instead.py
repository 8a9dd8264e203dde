import torch


def train(generator, critic, loader):
    opt_g = torch.optim.Adam(generator.parameters())
    opt_c = torch.optim.Adam(critic.parameters())
    for real, noise in loader:
        fake = generator(noise)
        opt_c.zero_grad()
        (critic(fake.detach()).mean() - critic(real).mean()).backward()
        opt_c.step()

        opt_g.zero_grad()
        (-critic(fake).mean()).backward()
        opt_g.step()
