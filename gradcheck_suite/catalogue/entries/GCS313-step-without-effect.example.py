import torch


def train(model, batches, epochs_of_warm_up):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index, (x, y) in enumerate(batches):
        share = index // len(batches) // epochs_of_warm_up
        optimizer.param_groups[0]["lr"] = 0.1 * share  # GCS313
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
