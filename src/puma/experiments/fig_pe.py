"""Pruning easy samples, over training.

    puma run fig-pe --preset small  # 7 trainings, 10 minutes on one core

Expect the paper's picture: from a fifth of training on PE is more accurate than no pruning, the more so the more is
pruned, and less robust than random pruning of the same share.
"""

from puma.experiments.spec import TRADES, Experiment, Row, pruned

EXPERIMENT = Experiment(
    name="fig-pe",
    title="Pruning easy samples (PE), over training",
    rows=(
        Row("no pruning", TRADES, baseline=True),
        Row("random 22 %", pruned(random=0.22)),
        Row("random 40 %", pruned(random=0.4)),
        Row("PE 12 %", pruned(easy=0.12)),
        Row("PE 22 %", pruned(easy=0.22)),
        Row("PE 40 %", pruned(easy=0.4)),
    ),
    figure="curves",
    axis="samples seen",
    expect="PE is more accurate than no pruning throughout, and less robust than random pruning of the same share.",
)
