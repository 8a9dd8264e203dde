import torch.nn.functional as F


def train(encoder, prior, decoder, optimizer, loader):
    for x in loader:
        code = encoder(x)
        rate = prior(code).mean()
        loss = F.mse_loss(decoder(code), x) + 0.1 * rate
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
