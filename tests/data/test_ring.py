"""Runs of rows are the same however they are read."""

import pytest
import torch

from dreamsim.data.ring import Reader, _runs_in_memory, _runs_on_device

START = torch.tensor([0, 5, 5, 16, 3])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (3,), (2, 4, 4)])
def test_memory_and_device_read_the_same_runs(dtype, shape):
    field = (torch.rand(20, *shape, generator=torch.Generator().manual_seed(0)) * 9).to(dtype)
    expected = torch.stack([field[start : start + 4] for start in START.tolist()])
    for make in (_runs_in_memory, _runs_on_device):
        assert torch.equal(make(field, 4)(START), expected)


def test_a_reader_does_not_confuse_fields_or_widths():
    reader = Reader()
    for number in range(20):  # fields that may come to lie where an earlier one was
        field = torch.full((20, 2), float(number))
        for width in (1, 3):
            assert torch.equal(reader.read(field, START, width), torch.full((5, width, 2), float(number)))


def test_fields_without_content_are_read_too():
    assert Reader().read(torch.empty(20, 0), START, 3).shape == (5, 3, 0)
