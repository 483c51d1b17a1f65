"""Explains a placement: a dry run of the decision, and its prices in plain words.

    rehearsal       decides by the same code as real requests, without effects
    explanation     every candidate's price, and the margin that it lost by
    verdict         the outcome in a word and a sentence
    non_candidates  the reasons why the other workers were none

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
