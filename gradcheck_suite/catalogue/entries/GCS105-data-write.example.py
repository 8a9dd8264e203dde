import torch


def train_critic(critic, pairs):
    optimizer = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
    for real, fake in pairs:
        optimizer.zero_grad()
        loss = critic(fake).mean() - critic(real).mean()
        for parameter in critic.parameters():
            parameter.data.clamp_(-0.01, 0.01)  # GCS105
        loss.backward()
        optimizer.step()
