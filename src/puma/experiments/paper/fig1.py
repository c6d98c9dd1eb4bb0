"""The perceptron in standard training: pruning easy or difficult samples.

    puma run fig1 --preset small  # half a minute on two cores

Expect both claims of the paper to hold; the exponential law is a cliff between alpha 1.5 and 3.
"""

from puma.experiments.spec import PerceptronFigure

EXPERIMENT = PerceptronFigure(
    name="fig1",
    title="Perceptron, eps 0: PE and PD by alpha",
    figure="eps0",
    expect="below alpha 2 only PD helps; above it PE turns the power law into an exponential one.",
)
