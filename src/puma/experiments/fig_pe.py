"""Pruning easy samples, over training.

puma run fig-pe --preset small --seeds 3
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
