from torch import nn


class Features:
    def __init__(self, layer: nn.Module):
        self.outputs = []
        self.handle = layer.register_forward_hook(self.store)

    def store(self, module, inputs, output):
        self.outputs.append(output)  # GCS207
