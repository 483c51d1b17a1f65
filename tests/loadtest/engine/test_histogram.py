from loadtest.engine.histogram import Histogram, by_label, sample


def test_buckets_add_up_and_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1.0, 5.0))
    histogram.observe(1.0)
    histogram.observe(2.0, times=3)
    histogram.observe(9.0)

    assert (histogram.count, histogram.sum) == (5, 16.0)
    assert list(histogram.lines("x", 'a="b"')) == [
        "# TYPE x histogram",
        'x_bucket{a="b",le="1.0"} 1',
        'x_bucket{a="b",le="5.0"} 4',
        'x_bucket{a="b",le="+Inf"} 5',
        'x_sum{a="b"} 16.0',
        'x_count{a="b"} 5',
    ]


def test_values_have_labels() -> None:
    assert list(sample("x", "gauge", 'a="b"', 2)) == ["# TYPE x gauge", 'x{a="b"} 2']
    assert list(by_label("x", 'a="b"', "c", {"d": 1, "e": 2})) == [
        "# TYPE x counter",
        'x{a="b",c="d"} 1',
        'x{a="b",c="e"} 2',
    ]
