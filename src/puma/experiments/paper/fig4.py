"""The perceptron under a strong attack, samples closer to the boundary than eps filtered out.

    puma run fig4 --preset small  # half a minute on two cores

Expect PE to be better than in standard training at every kept share, and PD to be as it was without the filter.
"""

from puma.experiments.spec import PerceptronFigure

EXPERIMENT = PerceptronFigure(
    name="fig4",
    title="Perceptron, eps 0.01, margins below eps filtered out",
    figure="filtered",
    expect="without mislabelled samples PE has its exponential law back.",
)
