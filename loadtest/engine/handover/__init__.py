"""Prefill/decode disaggregation: how a request's two legs find each other, in each engine's way."""

from loadtest.engine.handover.legs import Counters, Handover, Outcome, Transfers, Worker
from loadtest.engine.handover.settings import HandoverSettings

__all__ = ["Counters", "Handover", "HandoverSettings", "Outcome", "Transfers", "Worker"]
