"""Other ways to choose samples, a fifth of them pruned each, for as many samples seen.

    puma run tab-rivals --preset small-real --seeds 3  # 30 trainings, 45 minutes on one core

EasyCore keeps the samples of low input gradient, that is the easy ones, which PUMA and PE prune; CCS drops the hardest
twentieth and covers the rest evenly; dynamic uncertainty keeps what the training is undecided about; InfoBatch leaves
out samples of low loss for a while and weighs the others. docs/plans.md names the sources. All but PUMA attack at eps.
Expect, on
Fashion-MNIST (with --samples-seen 50000), pruning easy samples (PUMA, PE) to gain accuracy, pruning difficult ones (PD)
to trade it for robustness, and EasyCore to lose it.
"""

from puma.experiments.spec import TRADES, Experiment, MarginSpec, ModelSpec, PlanSpec, RowSpec, ScoreName, specify_puma


def _prune_by(
    score: ScoreName = "margin", *, easy: float = 0.0, difficult: float = 0.0, even: float = 0.0
) -> ModelSpec:
    return ModelSpec(
        PlanSpec(easy, difficult, score=score, strength="constant", margins=MarginSpec(TRADES), stratified=even)
    )


EXPERIMENT = Experiment(
    name="tab-rivals",
    title="PUMA and other ways to prune a fifth",
    rows=(
        RowSpec("TRADES", TRADES, baseline=True),
        RowSpec("PUMA 20 %", specify_puma(0.2, by=TRADES)),
        RowSpec("PE 20 %, eps for all", _prune_by(easy=0.2)),
        RowSpec("PD 20 %, eps for all", _prune_by(difficult=0.2)),
        RowSpec("random 20 %", ModelSpec(PlanSpec(random=0.2, score="cd_clean", strength="constant"))),
        RowSpec("EasyCore 20 %", _prune_by("input_gradient", difficult=0.2)),
        RowSpec("CCS 20 %", _prune_by(difficult=0.05, even=0.15)),
        RowSpec("dynamic uncertainty 20 %", _prune_by("uncertainty", easy=0.2)),
        RowSpec("InfoBatch", ModelSpec(soft=0.5)),
    ),
    expect="nothing is reported about them.",
)
