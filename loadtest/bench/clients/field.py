"""List of load clients."""

from loadtest.bench.clients.aiperf import Aiperf
from loadtest.bench.clients.client import Client
from loadtest.bench.clients.guidellm import Guidellm
from loadtest.bench.clients.inference_perf import InferencePerf
from loadtest.bench.clients.locust import Locust
from loadtest.bench.clients.openai_sdk import OpenAiSdk
from loadtest.bench.clients.vllm_bench import VllmBench

CLIENTS: dict[str, Client] = {
    client.name: client
    for client in (OpenAiSdk(), Locust(), VllmBench(), Guidellm(), Aiperf(), InferencePerf())
}
"""By name, the quickest to start first."""
