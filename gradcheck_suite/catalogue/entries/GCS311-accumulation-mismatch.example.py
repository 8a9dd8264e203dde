def train(model, optimizer, batches, accumulation_steps):
    for index, (x, y) in enumerate(batches):
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        if (index + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
