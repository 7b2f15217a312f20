"""All workers augment with copies of one generator, and begin it again in every epoch.

https://github.com/wolny/pytorch-3dunet/issues/32
held out
"""

import numpy
import torch
from common import FAULTY, optimize
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Volumes(Dataset):
    def __init__(self):
        self.volumes = torch.randn(32, 16)
        self.random = numpy.random.RandomState(47)

    def __len__(self):
        return len(self.volumes)

    def __getitem__(self, index):
        volume = self.volumes[index]
        shift = float(self.random.uniform(-1, 1))
        return (1 + shift / 2) * volume + shift, (volume[:2] > 0).float()


def begin(worker):
    info = get_worker_info()
    info.dataset.random = numpy.random.RandomState(info.seed % 2**32)


model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
first = None if FAULTY else begin
loader = DataLoader(Volumes(), batch_size=8, shuffle=True, num_workers=2, worker_init_fn=first)
for _ in range(4):
    for volume, label in loader:
        loss = nn.functional.binary_cross_entropy_with_logits(model(volume), label)
        optimize(loss, optimizer)
