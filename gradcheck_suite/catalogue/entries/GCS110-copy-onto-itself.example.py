import torch


def fit(model, batches, validate):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    best, lowest = None, float("inf")
    for x, y in batches:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        loss = validate(model)
        if loss < lowest:
            best, lowest = model.state_dict(), loss  # GCS110
    model.load_state_dict(best)
    return lowest
