import torch


def train(generator, critic, loader):
    opt_g = torch.optim.Adam(generator.parameters())
    opt_c = torch.optim.Adam(critic.parameters())
    for real, noise in loader:
        score = critic(generator(noise)).mean()
        opt_c.zero_grad()
        (score - critic(real).mean()).backward(retain_graph=True)
        opt_c.step()  # GCS109

        opt_g.zero_grad()
        (-score).backward()
        opt_g.step()
