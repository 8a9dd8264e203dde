from torch import nn

model = nn.Sequential(
    nn.Linear(8, 8),
    nn.Tanh(),
    nn.Dropout(0.5, inplace=True),  # GCS108
    nn.Linear(8, 1),
)
