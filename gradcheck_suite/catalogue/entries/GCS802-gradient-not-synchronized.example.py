from torch.nn.parallel import DistributedDataParallel as DDP


def train(ddp: DDP, optimizer, loader, window=2):
    for i, (x, y) in enumerate(loader):
        with ddp.no_sync():
            loss = (ddp(x) - y).pow(2).mean() / window  # GCS802
            loss.backward()
        if (i + 1) % window == 0:
            optimizer.step()
            optimizer.zero_grad()
