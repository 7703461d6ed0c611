"""Tests of what any store does run over both: the engine in this process, and one behind a socket."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.store import popping
from tests.store.popping import Bench
from tests.store.remote.linked import Linked

CONTRACT = {
    "test_access",
    "test_bury",
    "test_choosing",
    "test_engine",
    "test_held",
    "test_held_histories",
    "test_holes",
    "test_keys",
    "test_levels",
    "test_parents",
    "test_pop",
    "test_pop_early",
    "test_pop_flights",
    "test_pop_histories",
    "test_pop_limits",
    "test_pop_reclaimed",
    "test_pop_settling",
    "test_pop_shares",
    "test_privacy",
    "test_sessions",
    "test_wills_view",
}

# What these say is true of an engine alone: at which position a record lies (a gateway's appends have one in front of
# them), when something happens by itself, what a test makes fail inside, how much may wait.
OF_ENGINE = {
    "test_a_busy_log_is_asked_again",
    "test_a_cancelled_pop_was_given_to_nobody",
    "test_a_message_is_either_fired_or_recalled",
    "test_a_message_is_in_its_queues",
    "test_a_payload_is_never_taken_for_a_message",
    "test_a_pop_that_cannot_be_decided_takes_nothing",
    "test_a_refused_pop_takes_nothing",
    "test_a_refused_settlement_leaves_what_was_under_way_before",
    "test_a_year_of_delay_with_an_hour_of_retention",
    "test_an_offset_out_of_range_names_its_queue_in_words",
    "test_any_history_with_ages_by_parent_equals_the_model",
    "test_control_records_find_room_where_messages_are_told_to_wait",
    "test_everything_can_be_fetched_and_read_across_segments",
    "test_few_that_nobody_wants_cost_no_record_and_the_group_waits",
    "test_flushed_views_bound_the_replay",
    "test_limits_are_answers",
    "test_many_that_nobody_wants_cost_a_record_for_some_thousand_of_them",
    "test_publishers_are_asked_and_orphans_rolled_back",
    "test_reads_that_wait_for_the_device_leave_the_loop",
    "test_recall_says_which_could_not_be_recalled",
    "test_subscribing_again_keeps_the_cursor_and_takes_the_options",
    "test_the_copy_of_a_large_message_finds_room",
    "test_what_cannot_be_decided_leaves_no_claim_behind",
    "test_what_fell_due_while_the_node_was_down_fires_when_it_is_up",
    "test_what_is_claimed_is_looked_at_when_the_claim_ends",
    "test_what_is_under_way_is_nobody_elses",
    "test_what_others_have_under_way_counts",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    module = metafunc.module.__name__.rpartition(".")[2]
    if module in CONTRACT and metafunc.function.__name__ not in OF_ENGINE:
        metafunc.parametrize("kind_of_store", ["engine", "remote"], indirect=True)


@pytest.fixture(autouse=True)
def kind_of_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which of them `Engine` is in the module of the test."""
    kind: str = getattr(request, "param", "engine")
    if kind == "remote":
        for module in (request.module, popping):
            if hasattr(module, "Engine"):
                monkeypatch.setattr(module, "Engine", Linked)
    return kind


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = await Bench(tmp_path / "data").open()
    yield bench
    assert bench.engine._groups.is_idle
    await bench.engine.close()
