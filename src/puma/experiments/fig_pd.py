"""Pruning difficult samples, over training.

    puma run fig-pd --preset small  # 7 trainings, 10 minutes on one core

Expect PD to be less accurate throughout, as in the paper, and more robust throughout. The paper's PD is more robust in
the first 100 to 150 epochs only; by then it has visited generated images as often as all of this training does.
"""

from puma.experiments.spec import TRADES, Experiment, Row, pruned

EXPERIMENT = Experiment(
    name="fig-pd",
    title="Pruning difficult samples (PD), over training",
    rows=(
        Row("no pruning", TRADES, baseline=True),
        Row("random 22 %", pruned(random=0.22)),
        Row("random 40 %", pruned(random=0.4)),
        Row("PD 12 %", pruned(difficult=0.12)),
        Row("PD 22 %", pruned(difficult=0.22)),
        Row("PD 40 %", pruned(difficult=0.4)),
    ),
    figure="curves",
    axis="samples seen",
    expect="PD helps robustness only in the first quarter or third of training and costs accuracy throughout.",
)
