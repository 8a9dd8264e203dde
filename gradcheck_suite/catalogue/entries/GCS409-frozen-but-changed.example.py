import torch


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for index, (x, y) in enumerate(batches):
        if index == 2:
            model[0].requires_grad_(False)  # GCS409
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def finetune(model, epochs, optimizer):
    for layer in model.backbone.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.requires_grad_(False)
            layer.eval()  # GCS409
    for batches in epochs:
        model.train()
        for x, y in batches:
            optimizer.zero_grad()
            (model(x) - y).pow(2).mean().backward()
            optimizer.step()
