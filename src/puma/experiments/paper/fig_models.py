"""The method at growing prune fractions, for three nets; each measures its own margins.

    puma run fig-models --preset small-real  # 21 trainings, 40 minutes on one core

Expect accuracy to rise up to a pruned fraction of 0.3 for the main net and hardly for the second, which here is half as
large; robustness falls sharply beyond 0.3 for both. The third net has not been measured at this size.
"""

from puma.experiments.spec import PRUNE_FRACTIONS, Experiment, MarginSpec, ModelSpec, NetRole, PlanSpec, RowSpec

NETS: tuple[tuple[NetRole, str], ...] = (("main", "ResNet-18"), ("second", "PreActResNet-18"), ("third", "WRN-28-10"))


def _row(net: NetRole, name: str, fraction: float) -> RowSpec:
    model = ModelSpec(PlanSpec(easy=fraction, margins=MarginSpec(ModelSpec(net=net))), net=net)
    series = f"{net} net ({name} in the paper)"
    return RowSpec(f"{net} net, PUMA {100 * fraction:g} %", model, series=series, at=fraction)


EXPERIMENT = Experiment(
    name="fig-models",
    title="PUMA by prune fraction and net",
    rows=tuple(_row(net, name, fraction) for net, name in NETS for fraction in PRUNE_FRACTIONS),
    figure="lines",
    axis="pruned fraction",
    expect="the nets behave alike; the widest is most accurate at a lower pruned fraction than the others.",
)
