"""The audit of data sets: those that change their samples, and workers that share one generator."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, get_worker_info

from transformer_core.audit.data import read_again
from transformer_core.audit.relations import Notes


class Samples(Dataset):
    def __init__(self):
        self.images = np.arange(1.0, 41.0).reshape(8, 5)
        self.random = np.random.RandomState(7)
        self.made, self.buffer = {}, np.zeros(5)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return {"image": self.images[index] / 255}


class InPlace(Samples):
    def __getitem__(self, index):
        image = self.images[index]
        image /= 255
        return {"image": image}


class InDict(Samples):
    """Each sample is a dictionary that the data set keeps."""

    def __getitem__(self, index):
        sample = self.made.setdefault(index, {"image": self.images[index]})
        sample["image"] *= 2
        return sample


class Cached(Samples):
    """Random numbers are drawn once for each sample."""

    def __getitem__(self, index):
        if index not in self.made:
            self.made[index] = self.images[index] + np.random.rand(5)
        return self.made[index]


class Augmented(Samples):
    def __getitem__(self, index):
        return torch.from_numpy(self.images[index] + self.random.rand(5))


class Buffer(Samples):
    """All samples are written into the same memory."""

    def __getitem__(self, index):
        self.buffer[:] = self.images[index] + self.random.rand(5)
        return self.buffer


class SeededLater(Augmented):
    def __getitem__(self, index):
        if get_worker_info() and not self.made:
            self.made = {"random": True}
            self.random = np.random.RandomState(get_worker_info().seed % 2**32)
        return super().__getitem__(index)


class OfTorch(Samples):
    def __getitem__(self, index):
        return torch.from_numpy(self.images[index] + np.random.rand(5)) * torch.rand(5)


def seed(worker):
    get_worker_info().dataset.random = np.random.RandomState(worker)


def found(loader):
    notes = Notes()
    read_again(loader, notes)
    return [(each.relation, each.sure) for each in notes.findings]


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        *((InPlace, True), (InDict, True)),
        *((kind, False) for kind in (Samples, Cached, Augmented, Buffer)),
    ],
)
def test_a_data_set_that_changes_its_samples_is_wrong(data, wrong):
    before = torch.get_rng_state()
    assert found(DataLoader(data(), batch_size=2)) == [("data", True)] * wrong
    assert torch.equal(torch.get_rng_state(), before)


def test_a_batch_is_no_place_to_change_samples_either():
    def scaled(samples):
        return torch.stack([image.div_(255) for (image,) in samples])

    data = TensorDataset(torch.rand(8, 5))
    assert found(DataLoader(data, batch_size=2, collate_fn=scaled)) == [("data", True)]
    assert found(DataLoader(data, batch_size=2)) == []


@pytest.mark.parametrize(
    ("data", "begin", "same"),
    [
        (Augmented, None, True),
        *((Augmented, seed, False), (SeededLater, None, False), (OfTorch, None, False)),
        (Samples, None, False),
    ],
)
def test_workers_with_copies_of_one_generator_are_worth_a_look(data, begin, same):
    loader = DataLoader(data(), batch_size=2, num_workers=2, worker_init_fn=begin)
    assert found(loader) == [("data", False)] * same


def test_data_that_cannot_be_read_alone_is_not_tested():
    notes = Notes()
    read_again(DataLoader({"one": 1, "two": 2}, batch_size=2), notes)
    assert "KeyError" in notes.untested["data"]
    assert not notes.findings


def test_a_data_set_of_one_sample_reads_it_by_its_number():
    notes = Notes()
    read_again(DataLoader(TensorDataset(torch.rand(1, 5))), notes)
    assert notes.untested["data"] == "the data set has one sample"
