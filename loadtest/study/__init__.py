"""The policy study (``make study``): every placement policy on real traces, in the simulator, with a verdict.

`loadtest.study.cross_check` replays the same trace in Dynamo's offline simulator.
"""
