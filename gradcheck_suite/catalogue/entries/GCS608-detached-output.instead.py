def attention(query, key, value):
    weights = (query @ key.transpose(-2, -1)).softmax(dim=-1)
    entropy = -(weights * weights.log()).sum(dim=-1)
    return weights @ value, entropy
