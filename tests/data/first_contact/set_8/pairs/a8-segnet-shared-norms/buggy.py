import torch
import torch.nn.functional as F
from torch import nn


def vgg_features(c_in=3, plan=(16, 16, "M", 32, 32, "M")):
    layers = []
    for item in plan:
        if item == "M":
            layers.append(nn.MaxPool2d(2, 2, return_indices=True))
        else:
            layers += [nn.Conv2d(c_in, item, 3, padding=1), nn.BatchNorm2d(item), nn.ReLU()]
            c_in = item
    return layers


class BaseModel(nn.Module):
    def summary(self):
        n = sum(p.numel() for p in self.parameters() if p.requires_grad)
        return f"{type(self).__name__}: {n} trainable parameters"


class SegNet(BaseModel):
    def __init__(self, num_classes, in_channels=3):
        super().__init__()
        encoder = vgg_features(in_channels)
        self.stage1 = nn.Sequential(*encoder[:6])
        self.pool1 = encoder[6]
        self.stage2 = nn.Sequential(*encoder[7:13])
        self.pool2 = encoder[13]

        decoder = [m for m in encoder if not isinstance(m, nn.MaxPool2d)]
        decoder = [m for m in reversed(decoder)]
        layers = []
        for index in range(0, len(decoder), 3):
            relu, norm, conv = decoder[index : index + 3]
            layers.append(nn.ConvTranspose2d(conv.out_channels, conv.in_channels, 3, padding=1))
            if index + 3 < len(decoder):
                following = decoder[index + 4]
                layers += [following, relu]
        self.up2 = nn.Sequential(*layers[:6])
        self.up1 = nn.Sequential(*layers[6:9])
        self.classifier = nn.Conv2d(16, num_classes, 3, padding=1)
        self.unpool = nn.MaxUnpool2d(2, 2)
        self._initialize(self.up2, self.up1, self.classifier)

    @staticmethod
    def _initialize(*parts):
        for part in parts:
            for module in part.modules():
                if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
                    nn.init.kaiming_normal_(module.weight)
                    nn.init.zeros_(module.bias)

    def forward(self, x):
        x = self.stage1(x)
        size1 = x.size()
        x, index1 = self.pool1(x)
        x = self.stage2(x)
        size2 = x.size()
        x, index2 = self.pool2(x)
        x = self.up2(self.unpool(x, index2, output_size=size2))
        x = self.up1(self.unpool(x, index1, output_size=size1))
        return self.classifier(x)


class PolyLR(torch.optim.lr_scheduler.LambdaLR):
    def __init__(self, optimizer, total, power=0.9):
        super().__init__(optimizer, lambda step: (1 - min(step, total - 1) / total) ** power)


def make_scenes(n, size=24, num_classes=4):
    images = 0.3 * torch.randn(n, 3, size, size)
    labels = torch.zeros(n, size, size, dtype=torch.long)
    colours = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 1.0], [1.0, 0.0, 2.0]])
    for i in range(n):
        for kind in torch.randperm(num_classes - 1).tolist():
            h, w = torch.randint(5, 11, (2,)).tolist()
            y, x = torch.randint(0, size - 11, (2,)).tolist()
            images[i, :, y : y + h, x : x + w] += colours[kind].view(3, 1, 1)
            labels[i, y : y + h, x : x + w] = kind + 1
    return images, labels


class Trainer:
    def __init__(self, model, config):
        self.model = model
        self.config = config
        groups = [
            {"params": [p for n, p in model.named_parameters() if n.startswith("stage")]},
            {"params": [p for n, p in model.named_parameters() if not n.startswith("stage")]},
        ]
        self.optimizer = torch.optim.SGD(groups, lr=config["lr"], momentum=0.9)
        self.scheduler = PolyLR(self.optimizer, config["steps"])

    def train(self, images, labels):
        self.model.train()
        for step in range(self.config["steps"]):
            pick = torch.randint(0, len(images), (self.config["batch_size"],))
            loss = F.cross_entropy(self.model(images[pick]), labels[pick])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            if step % 20 == 0:
                print(f"step {step:3d} loss {loss.item():.4f}")

    @torch.no_grad()
    def evaluate(self, images, labels):
        self.model.eval()
        logits = self.model(images)
        correct = (logits.argmax(1) == labels).float().mean().item()
        return F.cross_entropy(logits, labels).item(), correct


def main():
    torch.manual_seed(0)
    images, labels = make_scenes(96)
    valid_images, valid_labels = make_scenes(48)
    model = SegNet(num_classes=4)
    print(model.summary())
    trainer = Trainer(model, {"lr": 0.05, "steps": 80, "batch_size": 8})
    trainer.train(images, labels)
    loss, accuracy = trainer.evaluate(valid_images, valid_labels)
    print(f"validation loss {loss:.4f} pixel accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
