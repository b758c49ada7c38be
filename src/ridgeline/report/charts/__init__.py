"""The charts of the page, each from a StudyReport; drawing is the page's script's."""

from ridgeline.report.charts.base import Chart
from ridgeline.report.charts.distribution import distributions
from ridgeline.report.charts.front import front_chart
from ridgeline.report.charts.knee import knee_chart
from ridgeline.report.charts.roofline import roofline
from ridgeline.report.charts.seconds import seconds
from ridgeline.report.charts.timeline import timeline
from ridgeline.report.charts.tradeoff import tradeoff
from ridgeline.report.model import StudyReport

__all__ = ["Chart", "build_charts"]


def build_charts(report: StudyReport, chosen: str) -> list[Chart]:
    """Every chart that the report has data for, in the page's order."""
    # One configuration under many loads has its own curve in place of a comparison.
    # A tuning has more than the duel's contenders to show: all that was tried inside its targets.
    first = knee_chart(report) if report.knee is not None else front_chart(report)
    candidates = [first or (tradeoff(report) if report.knee is None else None)]
    candidates += [roofline(report), seconds(report)]
    candidates += distributions(report, chosen)
    candidates.append(timeline(report, chosen))
    return [chart for chart in candidates if chart is not None]
