import torch
import torch.nn.functional as F


def resume(model, state, loader):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.load_state_dict(state, assign=True)  # GCS308
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
