from torch.autograd import Variable


def predict(model, x):
    return model(Variable(x, volatile=True))  # GCS902
