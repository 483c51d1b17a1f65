"""Load clients that others wrote, run through a gateway, and what both say of the same requests.

field.py          which clients there are: vllm_bench, guidellm, aiperf, inference_perf, locust, openai_sdk
client.py         what is asked of each: a command line, and a reading of the report that it writes
installation.py   each in a virtual environment of its own
gateway_view.py   what the gateway counted meanwhile; engine_view.py: what the engines did
run.py            one client, with a look at both before and after; comparison.py: side by side
"""
