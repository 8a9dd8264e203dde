import torch


def train(generator, critic, loader):
    opt_g = torch.optim.SGD(generator.parameters(), lr=0.01)
    opt_c = torch.optim.SGD(critic.parameters(), lr=0.01)
    for real, noise in loader:
        opt_g.zero_grad()
        opt_c.zero_grad()
        fake = generator(noise)
        (-critic(fake).mean()).backward()
        opt_g.step()

        loss_c = critic(fake.detach()).mean() - critic(real).mean()
        loss_c.backward()
        opt_c.step()  # GCS309
