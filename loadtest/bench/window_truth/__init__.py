"""How much of a prompt a real engine reuses, and who foretold it (docs/window-truth.md).

script.py   requests that share, fork and come back, drawn from a seed
judges.py   who predicts without being there: the gateway's fold, the simulator's model of the engine
asking.py   sends a script through a gateway to an engine
table.py    errors by kind of request
records.py  what an engine answered to a script, kept for tests that have no engine
"""
