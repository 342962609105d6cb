"""Trees keep their kind, their order and their arguments."""

from typing import NamedTuple

import pytest
import torch

from dreamsim.core import tree


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


def sample() -> dict:
    return {
        "a": torch.arange(6.0).reshape(3, 2),
        "b": (Pair(torch.zeros(3), torch.ones(3)), None),
        "c": [torch.ones(3)],
    }


def test_map_keeps_names_kinds_and_nothing():
    doubled = tree.map(lambda leaf: leaf * 2, sample())
    assert isinstance(doubled["b"][0], Pair) and doubled["b"][1] is None and isinstance(doubled["c"], list)
    assert torch.equal(doubled["b"][0].right, torch.full((3,), 2.0))
    assert torch.equal(doubled["a"], sample()["a"] * 2)


def test_trees_of_different_shape_are_refused():
    with pytest.raises(ValueError, match="different names"):
        tree.map(torch.add, {"a": torch.ones(1)}, {"b": torch.ones(1)})
    with pytest.raises(ValueError, match="different lengths"):
        tree.map(torch.add, (torch.ones(1),), (torch.ones(1), torch.ones(1)))


def test_stack_select_and_cat_undo_each_other():
    rows = [tree.select(sample(), index) for index in range(3)]
    again = tree.stack(rows)
    assert all(torch.equal(one, two) for one, two in zip(tree.leaves(again), tree.leaves(sample()), strict=True))
    halves = tree.cat([tree.select(sample(), slice(0, 1)), tree.select(sample(), slice(1, 3))])
    assert torch.equal(halves["a"], sample()["a"])


def test_where_chooses_whole_rows():
    chosen = tree.where(torch.tensor([True, False, True]), sample(), tree.map(torch.zeros_like, sample()))
    assert chosen["a"].tolist() == [[0, 1], [0, 0], [4, 5]]
    assert chosen["b"][0].right.tolist() == [1, 0, 1]


def test_put_replaces_rows_of_a_copy():
    before = sample()
    changed = tree.put(before, [1], tree.map(lambda leaf: leaf[:1] * 0 - 1, before))
    assert changed["a"].tolist() == [[0, 1], [-1, -1], [4, 5]]
    assert before["a"].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_batch_size_is_the_leading_axis_and_an_empty_tree_has_none():
    assert tree.batch_size(sample()) == 3
    with pytest.raises(ValueError, match="empty tree"):
        tree.batch_size({"a": None, "b": ()})


def test_detach_cuts_the_graph():
    leaf = torch.ones(2, requires_grad=True)
    assert not tree.detach({"a": leaf * 2})["a"].requires_grad
