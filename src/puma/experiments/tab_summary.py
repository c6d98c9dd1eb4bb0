"""What the method gains over its baseline.

puma run tab-summary --preset small --seeds 3
"""

from puma.experiments.spec import TRADES, Experiment, Paper, Row, puma

EXPERIMENT = Experiment(
    name="tab-summary",
    title="The baseline and PUMA",
    rows=(
        Row("TRADES", TRADES, Paper(87.87, 58.57, 0.10, 0.08), baseline=True),
        Row("PUMA 20 %", puma(0.2, by=TRADES), Paper(91.37, 58.53, 0.21, 0.36)),
    ),
    expect="3.5 points more accuracy at the same robustness.",
)
