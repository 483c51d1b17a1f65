"""Engines of one's own for ``simulate`` and ``plan``: a YAML file, written by hand or by measurement.

engine_file.py   the file: what it may say, errors with line and remedy, and what is built of it
fits.py          least squares without negative prices, with residuals and a grade
exposition.py    counters of an engine's ``/metrics``, SGLang's or vLLM's
live.py          a running engine: its sizes, its counters for a minute, and probes if asked
trace.py         the gateway's request trace: speed, pace and capacity from real traffic
cli.py           ``cacheway calibrate``
"""
