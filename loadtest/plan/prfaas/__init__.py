"""Prefill as a service across datacentres (PrfaaS, arXiv:2604.15039): its case study, and a simulation."""
