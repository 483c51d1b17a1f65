"""Measurements of engines and traffic: times of prefill and decode, KV bytes, capacity, lengths."""
