"""The tests that only `make test-all` runs: they get the marker `slow`.

`make test` must stay under six minutes on two cores, with every layer in it: one scenario of each
official client and one Spark job. The choice follows measured durations (`--durations=0`). An entry
is the beginning of test ids, as pytest prints them. An entry of QUICK wins over one of SLOW.
"""

from __future__ import annotations

SLOW = (
    # Crashes, power cuts and simulations: many runs of the same test with other seeds.
    "tests/crash/",
    "tests/simulation/",
    # Fuzzing: tens of thousands of inputs for each target.
    "tests/fuzz/test_fuzz.py::test_whatever_comes_is_answered",
    "tests/fuzz/test_fuzz.py::test_an_input_that_does_harm_is_found_and_saved",
    "tests/amqp/test_fuzz.py",
    "tests/sqs/test_fuzz.py",
    "tests/server/test_schemathesis.py",
    # Spark: a JVM for each session, and clusters.
    "tests/spark/",
    # Servers that are stopped, killed and started again.
    "tests/amqp/javascript/test_lost_store.py",
    "tests/amqp/javascript/test_restarts.py",
    "tests/amqp/javascript/test_together.py",
    "tests/amqp/sdk/test_lost_store.py",
    "tests/amqp/sdk/test_restarts.py",
    "tests/cli/test_copies.py",
    "tests/client/test_retries.py::test_a_killed_server_loses_nothing_and_doubles_nothing",
    "tests/client/test_retries.py::test_receiving_goes_on_after_the_server_was_killed",
    "tests/over_http/test_lost_store.py",
    "tests/over_http/test_restarts.py",
    "tests/server/test_backup.py::test_a_backup_under_load_loses_nothing_and_repeats_nothing",
    "tests/server/test_deployment.py",
    "tests/sqs/test_restarts.py",
    "tests/cli/test_first_steps.py::test_what_a_server_suggests_can_be_typed_as_it_stands",
    # The official samples, all of which run.
    "tests/amqp/test_samples.py",
    # Real time, floods and large amounts of data.
    "tests/amqp/test_floods.py",
    "tests/amqp/test_lock_renewal.py",
    "tests/amqp/test_malformed.py::test_values_that_would_take_much_memory_are_refused",
    "tests/gateway/test_compaction.py",
    "tests/gateway/test_full_disk.py::test_sends_never_take_the_reserve",
    "tests/gateway/test_topics_at_random.py",
    "tests/cli/test_ending.py",
    "tests/cli/test_hostile_strings.py",
    "tests/core/rules/test_differential.py",
    "tests/core/test_admit_arrow.py::test_columns_and_messages_get_the_same_verdict",
    "tests/core/test_remembered_ids.py::test_any_order_of_work_and_crashes_gives_the_answers_of",
    "tests/core/test_remembered_ids.py::test_memory_is_stated_as_it_is_and_small",
    "tests/server/test_bounded_memory.py",
    "tests/server/test_cut_connections.py",
    "tests/server/test_ended_connections.py",
    "tests/server/test_idle_strangers.py",
    "tests/server/test_many_connections.py",
    "tests/server/test_native_code.py",
    "tests/sqs/test_many_receivers.py",
    # Long walks of a browser; the others run with `make test`.
    "tests/console/test_browser.py::test_a_lost_server_a_deleted_key",
    "tests/console/test_browser.py::test_a_slow_connection",
    "tests/console/test_browser.py::test_an_operator_uses_every_view",
    "tests/console/test_browser.py::test_every_view_is_accessible",
    "tests/console/test_browser.py::test_large_bodies_odd_names",
    # Fresh environments, and programs that need the known ports.
    "tests/documentation/",
    "tests/packaging/test_install.py",
)

QUICK = (
    "tests/core/test_remembered_ids.py::test_any_order_of_work_and_crashes_gives_the_answers_of_a_"
    "dictionary[0]",
    "tests/crash/test_io_errors.py::test_a_failed_read_is_not_damage_and_passes_with_the_disk",
    "tests/crash/test_kill.py::test_kill_loses_nothing[rows]",
    "tests/crash/test_kill_works.py::test_a_good_history_has_none",
    "tests/crash/test_kill_works.py::test_each_anomaly_is_found",
    "tests/crash/test_power_loss.py::test_random_crashes_lose_nothing[0]",
    "tests/crash/test_soak.py",
    "tests/over_http/test_restarts.py::test_everything_outlives_a_stop_and_a_kill[kill]",
    "tests/server/test_ended_connections.py::test_nothing_keeps_a_connection_that_was_cut_off",
    "tests/simulation/test_directed.py",
    "tests/simulation/test_history_checker.py",
    "tests/simulation/test_simulation.py::test_bus_and_model_agree[0]",
    "tests/simulation/test_simulation.py::test_how_a_run_is_replayed",
    "tests/simulation/test_simulation.py::test_the_clock_moves_as_told",
    "tests/spark/test_lake.py",
    "tests/spark/test_options.py",
    "tests/spark/test_replay_plans.py",
    "tests/spark/test_skeleton.py",
    "tests/spark/test_writing_rows.py",
)


def is_slow(test_id: str) -> bool:
    """Return whether only `make test-all` runs a test."""
    return test_id.startswith(SLOW) and not test_id.startswith(QUICK)
