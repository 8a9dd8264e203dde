import torch


def freeze_first_layers(model):
    for name, parameter in model.named_parameters():
        if name.startswith(("layers.0.", "layers.1.")):
            parameter.requires_grad_(False)
    trainable = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(trainable, lr=1e-4)
