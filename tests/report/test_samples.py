import numpy as np
import pytest
import torch

from conftest import MakePool
from puma.planning import Plan, PruneRule, StrengthRule, build_plan
from puma.pools import Pool
from puma.report.samples import describe_plan
from puma.scores import Scores


def scores(pool: Pool, kind: str = "margin", missing: int = 0) -> Scores:
    values = np.linspace(-0.1, 0.3, len(pool)).astype(np.float32)
    values[:missing] = np.nan
    return Scores(kind, pool.sample_id, values, pool.fingerprint)


@pytest.mark.parametrize(
    ("pruning", "kind", "missing", "words"),
    [
        (PruneRule(easy=0.2), "margin", 0, "prunes 10 (the easiest 20 % of the pool by margin);"),
        (PruneRule(easy=0.1, difficult=0.12), "cd_clean", 0,
         "prunes 11 (the easiest 10 % of the pool by cd_clean and the most difficult 12 % of the pool by cd_clean);"),
        (PruneRule(difficult=0.1), "cd_clean", 10,
         "prunes 14 (10 without a score and the most difficult 10 % of the others by cd_clean);"),
        (PruneRule(easy=0.25, within="class"), "margin", 0, "(the easiest 25 % of each class by margin);"),
        (PruneRule(random=0.22), "margin", 0, "prunes 11 (a random 22 % of the pool);"),
        (PruneRule(easy=0.2, beyond=0.5), "margin", 0,
         "(the easiest 20 % of the pool by margin as far as they lie beyond 0.5 eps);"),
        (PruneRule(stratified=0.2), "margin", 0, "prunes 10 (20 % of the pool, strata by margin kept alike);"),
        (PruneRule(easy_threshold=0.2), "margin", 0, "prunes 13 (margin above 0.2);"),
        (PruneRule(difficult_threshold=-0.05), "margin", 0, "prunes 7 (margin at most -0.05);"),
        (PruneRule(easy_threshold=-0.05, difficult_threshold=0.2), "cd_clean", 0,
         "(cd_clean below -0.05 and cd_clean at least 0.2);"),
    ],
)  # fmt: skip
def test_what_a_plan_prunes_in_words(
    make_pool: MakePool, pruning: PruneRule, kind: str, missing: int, words: str
) -> None:
    pool = make_pool()
    score = scores(pool, kind, missing)
    plan = build_plan(pool, pruning, StrengthRule("constant", 0.1), score=score, drop_failed=True)
    assert plan.made_from.get("unscored") == (str(missing) if missing else None)
    said = describe_plan(plan)
    assert words in said, said
    assert said.endswith("; attacks all with 0.1.")


def test_a_plan_that_does_not_say_how_many_had_no_score() -> None:
    keep = torch.arange(100) >= 20
    made_from = {"pruning.difficult": "0.12", "score": "cd_clean"}
    plan = Plan(torch.arange(100), keep, torch.full((100,), 0.1), "pool", made_from)
    assert "prunes 20 (the most difficult 12 % of those in the pool that have a score by cd_clean)" in describe_plan(
        plan
    )
