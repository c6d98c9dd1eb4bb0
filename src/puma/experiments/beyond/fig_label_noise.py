"""What do wrong labels of generated images do to TRADES and to PUMA, and does it help to filter them?

    puma run fig-label-noise --preset small-real --seeds 3  # 39 trainings, an hour on one core

A share of the generated images gets a random wrong label. The filter drops generated images that a model of the real
ones alone calls something else. Margins are measured with the model that was trained on the very same images.
Expect wrong labels to cost both methods accuracy, and the filter to give most of it back.
"""

from puma.experiments.spec import Experiment, ModelSpec, RowSpec, specify_puma

SHARES = (0.0, 0.2, 0.4)


def _list_rows(noise: float, *, filtered: bool) -> tuple[RowSpec, RowSpec]:
    """Return TRADES and PUMA 20 % on the same images."""
    trades = ModelSpec(noise=noise, filtered=filtered)
    puma = ModelSpec(specify_puma(0.2, by=trades).plan, noise=noise, filtered=filtered)
    words = ", filtered" if filtered else ""
    told = f"{words} at {100 * noise:g} % wrong"
    return (
        RowSpec(f"TRADES{told}", trades, series=f"TRADES{words}", at=noise),
        RowSpec(f"PUMA 20 %{told}", puma, series=f"PUMA 20 %{words}", at=noise),
    )


EXPERIMENT = Experiment(
    name="fig-label-noise",
    title="TRADES and PUMA 20 % by the share of wrong labels among generated images",
    rows=tuple(row for filtered in (False, True) for noise in SHARES for row in _list_rows(noise, filtered=filtered)),
    figure="lines",
    axis="share of generated images with a wrong label",
    expect="nothing is reported about it; the public generated images were chosen by a classifier.",
)
