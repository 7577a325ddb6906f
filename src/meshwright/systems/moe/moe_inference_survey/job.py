"""SurveyOfModel: what of the taxonomy there is for a model of one's own, as commands."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import ClassVar

from meshwright.specs.config.source import load_model
from meshwright.specs.option import option
from meshwright.specs.training.job_report import JobReport
from meshwright.systems.moe.moe_inference_survey.mechanism import usable


@dataclass(frozen=True)
class SurveyOfModel:
    """Says which headings of the survey have code here, with the command of each for your mixture of experts."""

    model: str = option(MISSING, "A preset, a folder, or a config.json.")
    runs: ClassVar[str] = "job:survey"


def survey(job: SurveyOfModel, seed: int, said: object) -> JobReport:
    """Raises SpecError where there is no such model, or it has no experts."""
    found = usable(load_model(job.model), job.model)
    lines = [
        text for topic, use in found for text in (f"{', '.join(topic.heading)}: {topic.said}", f"    {use}")
    ]
    data = {
        "topics": [
            {"heading": list(topic.heading), "code": list(topic.code), "use": use} for topic, use in found
        ]
    }
    return JobReport(lines, data)
