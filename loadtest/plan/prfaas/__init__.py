"""Prefill as a service across datacentres, after PrfaaS (arXiv:2604.15039): its case study computed again."""
