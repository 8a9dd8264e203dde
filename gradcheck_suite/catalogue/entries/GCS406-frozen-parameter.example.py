import torch


def freeze_first_layers(model):
    for name, parameter in model.named_parameters():
        if name.startswith(("layers.0", "layers.1")):  # GCS406
            parameter.requires_grad_(False)
    return torch.optim.AdamW(model.parameters(), lr=1e-4)
