"""Pruning difficult samples, over training.

    puma run fig-pd --preset small-real  # 7 trainings, 10 minutes on one core

Expect PD to be less accurate throughout, as in the paper, and more robust throughout. The paper's PD is more robust in
the first 100 to 150 epochs only; by then it has visited generated images as often as all of this training does.
"""

from puma.experiments.spec import TRADES, Experiment, RowSpec, specify_pruning

EXPERIMENT = Experiment(
    name="fig-pd",
    title="Pruning difficult samples (PD), over training",
    rows=(
        RowSpec("no pruning", TRADES, baseline=True),
        RowSpec("random 22 %", specify_pruning(random=0.22)),
        RowSpec("random 40 %", specify_pruning(random=0.4)),
        RowSpec("PD 12 %", specify_pruning(difficult=0.12)),
        RowSpec("PD 22 %", specify_pruning(difficult=0.22)),
        RowSpec("PD 40 %", specify_pruning(difficult=0.4)),
    ),
    figure="curves",
    axis="samples seen",
    expect="PD helps robustness only in the first quarter or third of training and costs accuracy throughout.",
)
