import torch


def train_critic(critic, pairs):
    optimizer = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
    for real, fake in pairs:
        optimizer.zero_grad()
        loss = critic(fake).mean() - critic(real).mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for parameter in critic.parameters():
                parameter.clamp_(-0.01, 0.01)
