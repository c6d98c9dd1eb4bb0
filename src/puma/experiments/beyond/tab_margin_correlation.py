"""How alike the margins of different margin models are: the table of correlations that the paper left to do.

    puma run tab-margin-correlation --preset small-real --seeds 3  # 15 trainings, 35 minutes on one core

Every pair of the margin models of tab-margin-model: rank correlation, and the share of samples that their plans keep or
drop alike. A model is compared with itself, too, trained with another seed: what training alone changes. Expect 0.98 to
0.99, as of one model trained twice, and 0.95 for the iterated one; the picture is of the first seed. The paper
announces the table and does not have it.
"""

from puma.experiments.spec import REAL_ONLY, TRADES, Experiment, MarginSpec, ModelSpec, RowSpec, specify_puma

EXPERIMENT = Experiment(
    name="tab-margin-correlation",
    title="Correlation of margins by different models",
    rows=(
        RowSpec("same net, same images", MarginSpec(TRADES), baseline=True),
        RowSpec("same net, real images only", MarginSpec(REAL_ONLY)),
        RowSpec("iterated", MarginSpec(specify_puma(0.2, by=TRADES))),
        RowSpec("wide net, most images", MarginSpec(ModelSpec(net="wide", generated="most"))),
        RowSpec("wide net, same images", MarginSpec(ModelSpec(net="wide"))),
        RowSpec("widest net, most images", MarginSpec(ModelSpec(net="widest", generated="most"))),
    ),
    figure="heat map",
    expect="announced as a table of correlations, and left out.",
)
