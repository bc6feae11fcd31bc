"""Planning workflows, following them, and what a job of one knows of its parents."""

from holdfast.workflows.parts import Part, Planned
from holdfast.workflows.plan import Plan
from holdfast.workflows.results import Results
from holdfast.workflows.run import Extension, WorkflowOptions, WorkflowPlan, WorkflowRun, extend_workflow, plan_workflow

__all__ = [
    "Extension",
    "Part",
    "Plan",
    "Planned",
    "Results",
    "WorkflowOptions",
    "WorkflowPlan",
    "WorkflowRun",
    "extend_workflow",
    "plan_workflow",
]
