"""What knowing more is worth, on real engines: the same load by several arms.

python -m loadtest.bench.ablation

__main__        options, rounds, what the terminal shows
arms            what is compared
conversations   the load: agents at work, the same bytes for every arm
engines         two real engines with small caches
stage           one arm in one round
results         what was measured, as JSON
report          the tables in docs/policy-study.md
chart           the chart beside them
"""
