"""Choose a method for a federation by recorded runs and rules of thumb; needs no torch."""

from fedtern.advice.advice import Advice, advise
from fedtern.advice.cells import Cell, Difference, group_records
from fedtern.advice.estimates import OBJECTIVES, Estimate, format_duration
from fedtern.advice.guidance import Fallback, Guidance, Lesson
from fedtern.advice.records import (
    Point,
    Record,
    collect_records,
    dump_records,
    load_records,
    merge_records,
)
from fedtern.advice.situation import Minimise, Situation

__all__ = [
    "OBJECTIVES",
    "Advice",
    "Cell",
    "Difference",
    "Estimate",
    "Fallback",
    "Guidance",
    "Lesson",
    "Minimise",
    "Point",
    "Record",
    "Situation",
    "advise",
    "collect_records",
    "dump_records",
    "format_duration",
    "group_records",
    "load_records",
    "merge_records",
]
