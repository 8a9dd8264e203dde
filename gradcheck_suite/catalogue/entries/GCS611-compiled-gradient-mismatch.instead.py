def normalize(x):
    return x / x.norm(dim=-1, keepdim=True)
