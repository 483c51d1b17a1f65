from router.metrics import Metrics


def test_prompts_and_miscounts_are_counted() -> None:
    metrics = Metrics("test")
    for how in ("at_once", "at_once", "late"):
        metrics.tokenizing.tokenized(how, 0.25)
    metrics.tokenizing.miscounted("*")
    body, _ = metrics.exposition()
    text = body.decode()
    assert 'cacheway_tokenizing_prompts_total{how="at_once"} 2.0' in text
    assert 'cacheway_tokenizing_prompts_total{how="late"} 1.0' in text
    assert "cacheway_tokenizing_seconds_sum 0.75" in text
    assert 'cacheway_tokenizing_miscounts_total{model="*"} 1.0' in text
