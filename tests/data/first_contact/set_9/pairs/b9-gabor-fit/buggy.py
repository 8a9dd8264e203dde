import math

import torch
from torch import nn, optim


class GaborGenerator(nn.Module):
    def __init__(self, image_size):
        super().__init__()
        self.theta = nn.Parameter(torch.rand(1) * math.pi)
        self.sigma = nn.Parameter(torch.tensor([3.0]))
        self.wavelength = nn.Parameter(torch.tensor([7.0]))
        self.psi = nn.Parameter(torch.zeros(1))
        self.center = nn.Parameter(torch.zeros(2))
        axis = torch.arange(image_size, dtype=torch.float32) - (image_size - 1) / 2
        y, x = torch.meshgrid(axis, axis, indexing="ij")
        self.register_buffer("x", x)
        self.register_buffer("y", y)

    def forward(self):
        x = self.x - self.center[0]
        y = self.y - self.center[1]
        x_rot = x * torch.cos(self.theta) + y * torch.sin(self.theta)
        y_rot = -x * torch.sin(self.theta) + y * torch.cos(self.theta)
        envelope = torch.exp(-0.5 * (x_rot**2 + y_rot**2) / self.sigma**2)
        carrier = torch.cos(2 * math.pi * x_rot / self.wavelength + self.psi)
        return (envelope * carrier)[None, None]

    def extra_repr(self):
        return ", ".join(f"{n}={p.detach().tolist()}" for n, p in self.named_parameters())


class SimpleCell(nn.Module):
    def __init__(self, receptive_field):
        super().__init__()
        self.register_buffer("receptive_field", receptive_field)

    def forward(self, image):
        drive = (self.receptive_field * image).sum(dim=(1, 2, 3))
        return nn.functional.softplus(drive).mean()


def make_population(n, image_size):
    cells = []
    for _ in range(n):
        source = GaborGenerator(image_size)
        with torch.no_grad():
            source.sigma.uniform_(2.5, 4.0)
            source.wavelength.uniform_(6.0, 9.0)
            source.center.uniform_(-1.5, 1.5)
            source.psi.uniform_(-0.6, 0.6)
            field = source()
            field = field / field.norm() + 0.02 * torch.randn_like(field)
        cells.append(SimpleCell(field))
    return cells


def get_optimizer(name, params, lr):
    if name == "lbfgs":
        return optim.LBFGS(params, lr=lr, max_iter=10, line_search_fn="strong_wolfe")
    return getattr(optim, name)(params, lr=lr)


def trainer_fn(gabor_generator, model_neuron, epochs=20, lr=1.0, fixed_std=0.1, optimizer="lbfgs"):
    optimizer = get_optimizer(optimizer, gabor_generator.parameters(), lr)
    history = []

    for epoch in range(epochs):
        optimizer.zero_grad()

        gabor = gabor_generator()
        if fixed_std is not None:
            gabor = fixed_std * gabor / gabor.std()
        loss = -model_neuron(gabor)
        loss.backward()

        def closure():
            return loss

        optimizer.step(closure)
        history.append(-loss.item())

    return history


@torch.no_grad()
def response_of(generator, cell, fixed_std=0.1):
    gabor = generator()
    return cell(fixed_std * gabor / gabor.std()).item()


def main():
    torch.manual_seed(3)
    image_size = 20
    population = make_population(6, image_size)
    best = []
    for index, cell in enumerate(population):
        generator = GaborGenerator(image_size)
        start = response_of(generator, cell)
        trainer_fn(generator, cell)
        end = response_of(generator, cell)
        best.append(end)
        print(f"cell {index} response {start:.4f} -> {end:.4f} {generator.extra_repr()}")
    print(f"mean optimal response {sum(best) / len(best):.4f}")


if __name__ == "__main__":
    main()
