import torch.nn.functional as F


def train(model, optimizer, batches, accumulation_steps):
    for index, (x, y) in enumerate(batches):
        loss = F.mse_loss(model(x), y)
        loss.backward()  # GCS311
        if (index + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
