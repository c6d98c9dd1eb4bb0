"""The nine checks of the study on fewer seeds and alphas; `make perceptron` runs them at full size."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from puma.perceptron.claims import CLAIM_RULES, ClaimRule, Evidence, StudyClaim, format_claims, judge_study
from puma.perceptron.problem import Array
from puma.perceptron.students import Logistic
from puma.perceptron.study_design import FigureLine, PerceptronStudy, StudyResults
from puma.perceptron.sweep import StudentOutcome, StudyPoint, compute_points
from puma.perceptron.theory import CurveKey, TheoryCurve

NO_OUTCOMES: dict[StudyPoint, StudentOutcome] = {}
NO_CURVES: dict[CurveKey, TheoryCurve] = {}


@dataclass(frozen=True)
class OnDemand(Evidence):
    """Evidence that trains the students a claim asks for, when it asks."""

    known: dict[tuple[FigureLine, float], Array]

    def errors(self, line: FigureLine, alpha: float) -> Array:
        if (line, alpha) not in self.known:
            study = replace(self.results.study, alphas=(alpha,))
            found = [compute_points([point])[0].error for point in line.points(study)]
            self.known[line, alpha] = np.array(found)
        return self.known[line, alpha]


@pytest.fixture(scope="module")
def evidence() -> OnDemand:
    study = PerceptronStudy(alphas=(0.5, 1.0, 1.5, 3.0, 4.0, 6.0, 8.0), seeds=6)
    return OnDemand(StudyResults(study, NO_OUTCOMES, NO_CURVES), Logistic(), {})


CHECKS = [rule for rule in CLAIM_RULES if rule.number[0].isdigit()]


@pytest.mark.parametrize("rule", CHECKS, ids=lambda rule: f"{rule.number}: {rule.quantity}")
def test_check(rule: ClaimRule, evidence: OnDemand) -> None:
    claim = rule.judge(evidence)
    assert claim.is_check
    assert claim.verdict == "holds", f"{claim.value} is not {claim.criterion}"


def test_all_nine_checks_are_there() -> None:
    assert {rule.number for rule in CHECKS} == set("123456789")


def test_what_is_not_computed_is_not_judged() -> None:
    claims = judge_study(Evidence(StudyResults(PerceptronStudy(), NO_OUTCOMES, NO_CURVES), Logistic()))
    assert {claim.verdict for claim in claims} == {"not measured"}


def test_verdicts_follow_the_range(evidence: OnDemand) -> None:
    rule = ClaimRule("A", "statement", "quantity", lambda _: 0.5, low=0.4, high=0.6)
    assert rule.judge(evidence) == StudyClaim("A", "statement", "quantity", 0.5, "0.4 to 0.6", "holds")
    assert replace(rule, low=0.51).judge(evidence).verdict == "does not hold"
    assert not rule.judge(evidence).is_check
    assert "| A | statement | quantity | 0.5 | 0.4 to 0.6 | holds |" in format_claims([rule.judge(evidence)])
