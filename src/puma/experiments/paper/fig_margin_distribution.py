"""Margins of the training images, by two algorithms.

    puma run fig-margin-distribution --preset small-real  # one training, 5 minutes on one core

Expect much the same distribution: the same fifth is negative, medians agree within 4 %. Textbook DeepFool reads
longest; where margins are large, Algorithm 1 reads shortest.
"""

from puma.experiments.spec import TRADES, Experiment, MarginSpec, RowSpec

EXPERIMENT = Experiment(
    name="fig-margin-distribution",
    title="Margins by DeepFool and by the fast algorithm",
    rows=(
        RowSpec("DeepFool", MarginSpec(TRADES, "deepfool"), baseline=True),
        RowSpec("DeepFool, textbook", MarginSpec(TRADES, "deepfool-classic")),
        RowSpec("Algorithm 1", MarginSpec(TRADES, "fast")),
    ),
    figure="histogram",
    expect="the distributions are alike.",
)
