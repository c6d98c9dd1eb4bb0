import numpy as np
import pytest

from puma.errors import PumaError
from puma.report.choice import choose


def test_the_telling_samples_are_always_among_the_chosen() -> None:
    margin = np.random.default_rng(0).permutation(np.linspace(-0.2, 0.6, 10_000)).astype(np.float32)
    choice = choose(margin, 160, eps=0.1, thresholds={"easy": 0.4})
    shown = margin[choice.rows]
    assert len(np.unique(choice.rows)) == 160
    assert (np.diff(shown) >= 0).all()
    ordered = np.sort(margin)
    for name, expected in {
        "lowest": ordered[:20],
        "highest": ordered[::-1][:20],
        "zero": ordered[np.argsort(np.abs(ordered), kind="stable")[:20]],
        "eps": ordered[np.argsort(np.abs(ordered - np.float32(0.1)), kind="stable")[:20]],
        "easy": ordered[np.argsort(np.abs(ordered - np.float32(0.4)), kind="stable")[:20]],
    }.items():
        assert sorted(shown[choice.groups[name]]) == sorted(expected), name
    assert shown[choice.groups["lowest"]][0] == ordered[0]  # the most telling comes first
    assert shown[choice.groups["highest"]][0] == ordered[-1]
    assert len(choice.groups["random"]) == 160 - 5 * 20
    again = choose(margin, 160, eps=0.1, thresholds={"easy": 0.4})
    assert np.array_equal(again.rows, choice.rows)


def test_with_room_for_all_all_are_chosen() -> None:
    margin = np.linspace(-0.1, 0.3, 40).astype(np.float32)
    choice = choose(margin, 40, eps=None, thresholds={})
    assert choice.rows.tolist() == list(range(40))
    assert set(choice.groups) == {"lowest", "zero", "highest", "random"}


def test_right_samples_are_not_called_negative_and_failed_searches_stand_apart() -> None:
    margin = np.array([0.3, np.nan, 0.1, -0.2, np.inf, 0.2, -np.inf, *np.linspace(0.4, 0.5, 33)], dtype=np.float32)
    choice = choose(margin, 40, eps=0.1, thresholds={})
    assert choice.rows[choice.groups["lowest"]].tolist() == [3]
    assert choice.rows[choice.groups["failed"]].tolist() == [1, 4, 6]
    assert choice.rows[choice.groups["highest"]][0] == 39
    assert choose(np.full(20, np.nan, dtype=np.float32), 20, eps=0.1, thresholds={}).groups.keys() == {
        "failed",
        "random",
    }


def test_too_few() -> None:
    with pytest.raises(PumaError, match="--max-samples must be at least 16, got 3"):
        choose(np.zeros(5, dtype=np.float32), 3, eps=None, thresholds={})
