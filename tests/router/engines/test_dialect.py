"""How a request names the data-parallel rank that is to serve it."""

from router.engines import DIALECTS, rank_line


def test_a_rank_is_named_in_one_header_line_and_none_in_no_line() -> None:
    assert rank_line(0) == b"x-data-parallel-rank: 0\r\n"
    assert rank_line(12) == b"x-data-parallel-rank: 12\r\n"
    assert rank_line(-1) == b""


def test_bodies_name_it_by_the_names_of_all_versions_that_can_be_told() -> None:
    assert DIALECTS["sglang"].rank_fields == ("routed_dp_rank", "data_parallel_rank")
    assert DIALECTS["vllm"].rank_fields == ()
