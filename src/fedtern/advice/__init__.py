"""Which method to use: the paper's lessons and recorded runs, asked about one's own federation."""

from fedtern.advice.advice import Advice, advise
from fedtern.advice.estimates import Estimate, Scene
from fedtern.advice.lessons import LESSONS, Lesson
from fedtern.advice.records import Point, Record, collect, dump, is_finished, load, merge
from fedtern.advice.situation import Situation

__all__ = [
    "LESSONS",
    "Advice",
    "Estimate",
    "Lesson",
    "Point",
    "Record",
    "Scene",
    "Situation",
    "advise",
    "collect",
    "dump",
    "is_finished",
    "load",
    "merge",
]
