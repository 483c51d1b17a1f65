"""Explains a placement: a dry run of the decision, and its prices in plain words.

No real request comes through here.
"""

from router.explaining.explanation import LIMIT, Explanation, explain
from router.explaining.plain_words import REASONS, Candidate, DecodeCandidate, explained
from router.explaining.rehearsal import rehearse

__all__ = [
    "LIMIT",
    "REASONS",
    "Candidate",
    "DecodeCandidate",
    "Explanation",
    "explain",
    "explained",
    "rehearse",
]
