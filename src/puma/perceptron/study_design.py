"""What a study consists of: its settings, the figures with the points and curves that they need, and its results."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from puma.errors import PumaError, unknown_name
from puma.perceptron.problem import TEACHERS, Array, PerceptronTask, PoolPruning, Probe, Strategy, TeacherKind
from puma.perceptron.students import STUDENTS, GradientDescent, Logistic, MaxMargin, Student, StudentName
from puma.perceptron.sweep import ResultCache, StudentOutcome, StudyPoint, run_curves, run_points
from puma.perceptron.theory import CurveKey, TheoryCurve

FigureName = Literal[
    "eps0", "eps0.001", "eps0.01", "filtered", "eps0.05", "dense", "gain", "probe", "theory", "crossover"
]
FIGURES: tuple[FigureName, ...] = get_args(FigureName)
PAPER_FIGURES: tuple[FigureName, ...] = FIGURES[:4]  # the first four are the paper's

# even on the paper's logarithmic axis, denser around the cliff
ALPHAS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
KEEPS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)  # shares kept, a line each
_PROBE_ANGLES = (0.0, 5.0, 15.0, 40.0)  # degrees between probe and teacher: perfect to poor
_GAIN_EPS = (0.001, 0.01, 0.05)  # attacks from weak to strong
_CURVE_POINTS = 22  # a line that looks smooth
_CLIFF = (1.4, 1.55, 1.65, 1.75, 1.85, 1.9, 1.95, 2.0, 2.05, 2.1, 2.2, 2.4)  # where curves are steep


@dataclass(frozen=True)
class PerceptronStudy:
    """Which figures to make, and of what."""

    figures: tuple[FigureName, ...] = FIGURES
    alphas: tuple[float, ...] = ALPHAS
    keeps: tuple[float, ...] = KEEPS
    seeds: int = 10
    dimension: int = 200
    students: tuple[StudentName, ...] = ("logistic",)
    teacher: TeacherKind = "axis"
    probe: Probe = field(default_factory=Probe)
    ridge: float = 1e-5
    descent: GradientDescent = field(default_factory=GradientDescent)

    def __post_init__(self) -> None:
        for kind, chosen, known in (
            ("figure", self.figures, FIGURES),
            ("student", self.students, STUDENTS),
            ("teacher", (self.teacher,), TEACHERS),
        ):
            for name in chosen:
                if name not in known:
                    raise unknown_name(kind, name, list(known))
        for flag, values in (("figures", self.figures), ("alphas", self.alphas), ("students", self.students)):
            if len(values) == 0:
                raise PumaError(f"a study needs at least one of --{flag}, got none.")
        if self.seeds < 1:
            raise PumaError(f"a study needs at least one seed, got {self.seeds}; change --seeds.")
        for alpha in self.alphas:
            PerceptronTask(alpha, dimension=self.dimension)
        for keep in self.keeps:
            PoolPruning("pe", keep)
        Logistic(self.ridge)

    def student(self, name: StudentName) -> Student:
        """Return a student by name, with this study's settings."""
        if name == "logistic":
            return Logistic(self.ridge)
        return MaxMargin() if name == "maxmargin" else self.descent

    def curve_alphas(self) -> tuple[float, ...]:
        """Return where theory curves are computed: a little beyond the points, densely at the cliff of PE."""
        low, high = 0.9 * min(self.alphas), 1.1 * max(self.alphas)
        ratio = (high / low) ** (1 / (_CURVE_POINTS - 1))
        even = [float(f"{low * ratio**step:.6g}") for step in range(_CURVE_POINTS)]
        return tuple(sorted({*even, *(alpha for alpha in _CLIFF if low < alpha < high)}))


@dataclass(frozen=True)
class FigureLine:
    """One line of a figure: a strategy and attack, over ``alpha`` and seeds."""

    pruning: PoolPruning
    eps: float
    teacher: TeacherKind
    student: Student
    probe: Probe = field(default_factory=Probe)

    def points(self, study: PerceptronStudy) -> list[StudyPoint]:
        """Return the points of this line."""
        tasks = [PerceptronTask(a, self.pruning, study.dimension, self.teacher, self.probe) for a in study.alphas]
        return [StudyPoint(task, self.student, self.eps, seed) for task in tasks for seed in range(study.seeds)]

    def curve(self, study: PerceptronStudy) -> CurveKey | None:
        """Return the theory of this line: of its own student, or of the hard margin for gradient descent."""
        if self.probe.angle:
            return None
        student = self.student if isinstance(self.student, Logistic) else MaxMargin()
        return CurveKey(self.pruning, self.eps, study.dimension, self.teacher, student, study.curve_alphas())


@dataclass(frozen=True)
class FigurePanel:
    """A part of a figure. ``error`` shows the lines, ``ratio`` them over the same without attack."""

    title: str
    series: tuple[FigureLine, ...]
    kind: Literal["error", "ratio"] = "error"

    def needed(self) -> Iterator[FigureLine]:
        """Yield the lines that must be computed: those shown, and for ratios those without attack."""
        for line in self.series:
            yield line
            if self.kind == "ratio":
                yield remove_attack(line)


@dataclass(frozen=True)
class StudyFigure:
    """A figure of the study; the crossover has no panels, it comes from theory alone."""

    name: str
    title: str
    panels: tuple[FigurePanel, ...]


def remove_attack(line: FigureLine) -> FigureLine:
    """Return the same line at ``eps = 0``."""
    return FigureLine(line.pruning, 0.0, line.teacher, line.student, line.probe)


def plan_figures(study: PerceptronStudy) -> list[StudyFigure]:
    """Return the figures of a study, one per student where the student matters."""
    found = []
    for name in study.figures:
        for student in study.students:
            suffix = f"-{student}" if len(study.students) > 1 else ""
            found.append(_plan_figure(name, study, study.student(student), suffix))
    return list({figure.name: figure for figure in found}.values())


def _plan_figure(name: FigureName, study: PerceptronStudy, student: Student, suffix: str) -> StudyFigure:
    if name == "crossover":
        return StudyFigure(name, "Where pruning easy samples starts to pay", ())
    if name == "theory":
        pair = (0.5, 0.2)
        panels = _strategy_panels(study, MaxMargin(), 0.0, filtered=False, keeps=pair, teacher=study.teacher)
        return StudyFigure(name, "Hard-margin student and its theory", panels)
    if name == "gain":
        sides: tuple[tuple[TeacherKind, str], ...] = (
            ("axis", "teacher on an axis"),
            ("dense", "dense teacher"),
        )
        gains = tuple(
            FigurePanel(title, tuple(FigureLine(PoolPruning(), eps, teacher, student) for eps in _GAIN_EPS), "ratio")
            for teacher, title in sides
        )
        return StudyFigure(name + suffix, "What adversarial training gains without pruning", gains)
    if name == "probe":
        return StudyFigure(name + suffix, "Margins measured by a probe", _probe_panels(study, student))
    eps = {"eps0": 0.0, "eps0.001": 0.001, "eps0.05": 0.05}.get(name, 0.01)
    teacher: TeacherKind = "dense" if name == "dense" else study.teacher
    filtered = name == "filtered"
    panels = _strategy_panels(study, student, eps, filtered=filtered, keeps=study.keeps, teacher=teacher)
    title = "Standard training" if eps == 0 else f"Adversarial training, $\\varepsilon = {eps:g}$"
    title += ", margins below $\\varepsilon$ filtered out" if filtered else ""
    title += ", dense teacher" if teacher == "dense" else ""
    return StudyFigure(name + suffix, title, panels)


def _strategy_panels(
    study: PerceptronStudy,
    student: Student,
    eps: float,
    *,
    filtered: bool,
    keeps: tuple[float, ...],
    teacher: TeacherKind,
) -> tuple[FigurePanel, ...]:
    strategies: tuple[tuple[Strategy, str], ...] = (
        ("pe", "PE: easy samples pruned"),
        ("pd", "PD: difficult samples pruned"),
    )
    none = FigureLine(PoolPruning("none", 1.0, filtered), eps, teacher, student)
    pruned = sorted({keep for keep in keeps if keep < 1}, reverse=True)
    return tuple(
        FigurePanel(
            title,
            (
                none,
                *(FigureLine(PoolPruning(s, keep, filtered), eps, teacher, student, study.probe) for keep in pruned),
            ),
        )
        for s, title in strategies
    )


def _probe_panels(study: PerceptronStudy, student: Student) -> tuple[FigurePanel, ...]:
    strategies: tuple[tuple[Strategy, str], ...] = (("pe", "PE, 20 % kept"), ("pd", "PD, 20 % kept"))
    signed = study.probe.signed
    panels = []
    for s, title in strategies:
        lines = [FigureLine(PoolPruning(), 0.0, study.teacher, student)]
        for angle in _PROBE_ANGLES:
            probe = Probe(angle, signed) if angle else Probe()
            lines.append(FigureLine(PoolPruning(s, 0.2), 0.0, study.teacher, student, probe))
        panels.append(FigurePanel(title, tuple(lines)))
    return tuple(panels)


@dataclass(frozen=True)
class StudyResults:
    """Outcomes and theory curves of a study."""

    study: PerceptronStudy
    outcomes: Mapping[StudyPoint, StudentOutcome]
    curves: Mapping[CurveKey, TheoryCurve]

    def errors(self, line: FigureLine, alpha: float) -> Array | None:
        """Return the error of every seed, None when this was not computed."""
        task = PerceptronTask(alpha, line.pruning, self.study.dimension, line.teacher, line.probe)
        points = [StudyPoint(task, line.student, line.eps, seed) for seed in range(self.study.seeds)]
        found = [self.outcomes.get(point) for point in points]
        if any(outcome is None for outcome in found):
            return None
        return np.array([outcome.error for outcome in found if outcome is not None])

    def theory(self, line: FigureLine) -> TheoryCurve | None:
        """Return the theory curve of a line, None when there is none."""
        key = line.curve(self.study)
        return None if key is None else self.curves.get(key)


def needed_points(study: PerceptronStudy) -> list[StudyPoint]:
    """Return every point that the figures of a study show, once."""
    return list(dict.fromkeys(point for line in _needed_lines(study) for point in line.points(study)))


def needed_curves(study: PerceptronStudy) -> list[CurveKey]:
    """Return every theory curve that the figures of a study show, once."""
    keys = (line.curve(study) for line in _needed_lines(study))
    return list(dict.fromkeys(key for key in keys if key is not None))


def compute_study(study: PerceptronStudy, cache: ResultCache, *, jobs: int = 1, progress: bool = True) -> StudyResults:
    """Compute the points and curves of a study, as far as the cache does not know them."""
    outcomes = run_points(needed_points(study), cache, jobs=jobs, progress=progress)
    curves = run_curves(needed_curves(study), cache, jobs=jobs, progress=progress)
    return StudyResults(study, outcomes, curves)


def _needed_lines(study: PerceptronStudy) -> list[FigureLine]:
    return [line for figure in plan_figures(study) for panel in figure.panels for line in panel.needed()]
