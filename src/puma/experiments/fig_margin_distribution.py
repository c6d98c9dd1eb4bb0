"""Margins of the training images, by two algorithms.

puma run fig-margin-distribution --preset small
"""

from puma.experiments.spec import TRADES, Experiment, Measured, Row

EXPERIMENT = Experiment(
    name="fig-margin-distribution",
    title="Margins by DeepFool and by the fast algorithm",
    rows=(
        Row("DeepFool", Measured(TRADES, "deepfool"), baseline=True),
        Row("DeepFool, textbook", Measured(TRADES, "deepfool-classic")),
        Row("Algorithm 1", Measured(TRADES, "fast")),
    ),
    figure="histogram",
    expect="the distributions are alike.",
)
