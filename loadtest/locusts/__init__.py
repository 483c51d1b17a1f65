"""Users for locust, the loads they put on a gateway, and the promises of a run.

    presets    how many users when, and what must hold in the end       a pure function of time
    users      chat, agents, long contexts, bursts, a trace
    streaming  one request of theirs: sent, streamed, reported to locust
    summary    what locust does not count: rejections, tokens reused; over all processes

`loadtest/locustfile.py` puts them together. Locust patches the process for gevent: import this nowhere else.
"""
