"""Why a request would go where it would: a dry run of the decision, and its prices in plain words.

    rehearsal    decides by the very lines that decide real requests; nothing comes of it
    explanation  every candidate's price, and how much it lost by
    verdict      the outcome in a word and a sentence
    bystanders   why the other workers were no candidates

Nothing here is on the way of a real request.
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
