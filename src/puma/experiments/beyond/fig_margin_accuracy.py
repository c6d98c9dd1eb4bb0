"""How good must the margin model be? Margin models that were trained for a part of the time, or longer.

    puma run fig-margin-accuracy --preset small-real --seeds 3  # 33 trainings, an hour on one core

The line of the margin model itself tells how accurate and how robust it is at every length.
Expect little to gain from a margin model that is better than half trained.
"""

from puma.experiments.spec import TRADES, Experiment, ModelSpec, RowSpec, specify_puma

LENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0)

EXPERIMENT = Experiment(
    name="fig-margin-accuracy",
    title="PUMA 20 % by the training of its margin model",
    rows=(
        RowSpec("TRADES", TRADES, baseline=True),
        *(
            RowSpec(f"margin model of length {length:g}", ModelSpec(length=length), series="margin model", at=length)
            for length in LENGTHS
        ),
        *(
            RowSpec(
                f"PUMA 20 %, margin model of length {length:g}",
                specify_puma(0.2, by=ModelSpec(length=length)),
                series="PUMA 20 %",
                at=length,
            )
            for length in LENGTHS
        ),
    ),
    figure="lines",
    axis="training of the margin model, in multiples of the usual",
    expect="a pretrained or fine-tuned margin model will do; how accurate it must be is not reported.",
)
