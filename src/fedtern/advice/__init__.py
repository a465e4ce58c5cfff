"""Choose a method for a federation by recorded runs and rules of thumb; needs no torch."""

from fedtern.advice.advice import Advice, advise
from fedtern.advice.estimates import Estimate, RecordGroup, group_records
from fedtern.advice.guidance import Fallback, Guidance, Lesson
from fedtern.advice.records import (
    Point,
    Record,
    collect_records,
    dump_records,
    load_records,
    merge_records,
)
from fedtern.advice.situation import Situation

__all__ = [
    "Advice",
    "Estimate",
    "Fallback",
    "Guidance",
    "Lesson",
    "Point",
    "Record",
    "RecordGroup",
    "Situation",
    "advise",
    "collect_records",
    "dump_records",
    "group_records",
    "load_records",
    "merge_records",
]
