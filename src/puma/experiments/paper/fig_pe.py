"""Pruning easy samples, over training.

    puma run fig-pe --preset small-real  # 7 trainings, 10 minutes on one core

Expect the paper's picture: from a fifth of training on PE is more accurate than no pruning, the more so the more is
pruned, and less robust than random pruning of the same share.
"""

from puma.experiments.spec import TRADES, Experiment, RowSpec, specify_pruning

EXPERIMENT = Experiment(
    name="fig-pe",
    title="Pruning easy samples (PE), over training",
    rows=(
        RowSpec("no pruning", TRADES, baseline=True),
        RowSpec("random 22 %", specify_pruning(random=0.22)),
        RowSpec("random 40 %", specify_pruning(random=0.4)),
        RowSpec("PE 12 %", specify_pruning(easy=0.12)),
        RowSpec("PE 22 %", specify_pruning(easy=0.22)),
        RowSpec("PE 40 %", specify_pruning(easy=0.4)),
    ),
    figure="curves",
    axis="samples seen",
    expect="PE is more accurate than no pruning throughout, and less robust than random pruning of the same share.",
)
