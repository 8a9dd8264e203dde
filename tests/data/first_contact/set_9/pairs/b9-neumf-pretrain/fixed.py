import torch
from torch import nn
from torch.nn.init import normal_, xavier_normal_


class MLPLayers(nn.Module):
    def __init__(self, layers):
        super().__init__()
        modules = []
        for in_size, out_size in zip(layers[:-1], layers[1:]):
            modules += [nn.Linear(in_size, out_size), nn.ReLU()]
        self.mlp_layers = nn.Sequential(*modules)

    def forward(self, x):
        return self.mlp_layers(x)


class GeneralRecommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.loss = nn.BCEWithLogitsLoss()

    def _init_weights(self, module):
        if isinstance(module, nn.Embedding):
            normal_(module.weight.data, mean=0.0, std=0.1)
        elif isinstance(module, nn.Linear):
            xavier_normal_(module.weight.data)

    def calculate_loss(self, user, item, label):
        return self.loss(self.forward(user, item), label)


class GMF(GeneralRecommender):
    def __init__(self, n_users, n_items, size):
        super().__init__()
        self.user_mf_embedding = nn.Embedding(n_users, size)
        self.item_mf_embedding = nn.Embedding(n_items, size)
        self.predict_layer = nn.Linear(size, 1)
        self.apply(self._init_weights)

    def forward(self, user, item):
        h = self.user_mf_embedding(user) * self.item_mf_embedding(item)
        return self.predict_layer(h).squeeze(-1)


class MLP(GeneralRecommender):
    def __init__(self, n_users, n_items, size, hidden):
        super().__init__()
        self.user_mlp_embedding = nn.Embedding(n_users, size)
        self.item_mlp_embedding = nn.Embedding(n_items, size)
        self.mlp_layers = MLPLayers([2 * size] + hidden)
        self.predict_layer = nn.Linear(hidden[-1], 1)
        self.apply(self._init_weights)

    def forward(self, user, item):
        h = torch.cat([self.user_mlp_embedding(user), self.item_mlp_embedding(item)], -1)
        return self.predict_layer(self.mlp_layers(h)).squeeze(-1)


class NeuMF(GeneralRecommender):
    def __init__(self, n_users, n_items, size, hidden, mf=None, mlp=None):
        super().__init__()
        self.user_mf_embedding = nn.Embedding(n_users, size)
        self.item_mf_embedding = nn.Embedding(n_items, size)
        self.user_mlp_embedding = nn.Embedding(n_users, size)
        self.item_mlp_embedding = nn.Embedding(n_items, size)
        self.mlp_layers = MLPLayers([2 * size] + hidden)
        self.predict_layer = nn.Linear(size + hidden[-1], 1)
        if mf is not None and mlp is not None:
            self.load_pretrain(mf, mlp)
        else:
            self.apply(self._init_weights)

    def load_pretrain(self, mf, mlp):
        self.user_mf_embedding.weight.data.copy_(mf.user_mf_embedding.weight)
        self.item_mf_embedding.weight.data.copy_(mf.item_mf_embedding.weight)
        self.user_mlp_embedding.weight.data.copy_(mlp.user_mlp_embedding.weight)
        self.item_mlp_embedding.weight.data.copy_(mlp.item_mlp_embedding.weight)

        for m1, m2 in zip(self.mlp_layers.mlp_layers, mlp.mlp_layers.mlp_layers):
            if isinstance(m1, nn.Linear) and isinstance(m2, nn.Linear):
                m1.weight.data.copy_(m2.weight)
                m1.bias.data.copy_(m2.bias)

        predict_weight = torch.cat([mf.predict_layer.weight, mlp.predict_layer.weight], dim=1)
        predict_bias = mf.predict_layer.bias + mlp.predict_layer.bias
        self.predict_layer.weight.data.copy_(0.5 * predict_weight)
        self.predict_layer.bias.data.copy_(0.5 * predict_bias)

    def forward(self, user, item):
        mf = self.user_mf_embedding(user) * self.item_mf_embedding(item)
        h = torch.cat([self.user_mlp_embedding(user), self.item_mlp_embedding(item)], -1)
        return self.predict_layer(torch.cat([mf, self.mlp_layers(h)], -1)).squeeze(-1)


def make_interactions(n_users, n_items, n, rank=4):
    u, v = torch.randn(n_users, rank), torch.randn(n_items, rank)
    user = torch.randint(n_users, (n,))
    item = torch.randint(n_items, (n,))
    score = (u[user] * v[item]).sum(-1) + 0.3 * torch.randn(n)
    return user, item, (score > 0).float()


class Trainer:
    def __init__(self, model, optimizer_cls, lr, batch_size=256):
        self.model = model
        self.optimizer = optimizer_cls(model.parameters(), lr=lr)
        self.batch_size = batch_size

    def fit(self, data, epochs):
        total = 0.0
        for _ in range(epochs):
            self.model.train()
            for index in torch.randperm(len(data[0])).split(self.batch_size):
                self.optimizer.zero_grad()
                loss = self.model.calculate_loss(*[t[index] for t in data])
                loss.backward()
                self.optimizer.step()
                total = loss.item()
        return total

    @torch.no_grad()
    def evaluate(self, data):
        self.model.eval()
        user, item, label = data
        score = self.model(user, item)
        return self.model.loss(score, label).item(), ((score > 0) == (label > 0.5)).float().mean().item()


def main():
    torch.manual_seed(2020)
    n_users, n_items, size, hidden = 80, 120, 8, [16, 8]
    data = make_interactions(n_users, n_items, 7000)
    train, valid = [t[:6000] for t in data], [t[6000:] for t in data]

    mf = GMF(n_users, n_items, size)
    Trainer(mf, torch.optim.Adam, lr=0.02).fit(train, epochs=12)
    mlp = MLP(n_users, n_items, size, hidden)
    Trainer(mlp, torch.optim.Adam, lr=0.01).fit(train, epochs=12)

    model = NeuMF(n_users, n_items, size, hidden, mf, mlp)
    trainer = Trainer(model, torch.optim.SGD, lr=0.05)
    for epoch in range(6):
        loss = trainer.fit(train, epochs=1)
        valid_loss, acc = trainer.evaluate(valid)
        print(f"epoch {epoch} train {loss:.4f} valid {valid_loss:.4f} acc {acc:.3f}")


if __name__ == "__main__":
    main()
