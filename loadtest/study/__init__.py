"""The policy study: every placement policy on real traces, in the simulator, with a verdict.

make study              the same as ``python -m loadtest.study``

cross_check     the same trace in Dynamo's offline replay: token reuse side by side
dynamo_replay   the part of it that Dynamo's own Python runs
"""
