"""Defences against strangers and wrong clocks, each with a test that fails without it.

    python -m tests.reverted            all of them, which takes about ten minutes
    python -m tests.reverted 4 12       those of two items

`DEFENCES` lists them by item: what the server must not do, the code that prevents it, the same code
reverted, and a test. The command copies the repository, reverts one defence at a time in the copy,
and runs its test there. It exits with 1 if a test passes without its defence.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.source_tree import ROOT

#: Long enough for a busy machine, and for the patience of tests that wait for a response.
_PATIENCE_S = 900
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", "__pycache__")


class Defence(NamedTuple):
    """A defence: the code, the same code reverted, and the test that fails without it."""

    item: int
    against: str
    file: str
    code: str
    reverted: str
    test: str
    #: further lines of defence, which are reverted as well: file, code, and code reverted
    behind: tuple[tuple[str, str, str], ...] = ()

    @property
    def changes(self) -> list[tuple[str, str, str]]:
        """All changes that revert it: file, code, and code reverted."""
        return [(self.file, self.code, self.reverted), *self.behind]


DEFENCES = (
    Defence(
        1,
        "an Arrow body whose offsets are out of range",
        "onibus/protocols/http/arrow.py",
        "            batch.validate(full=True)\n",
        "",
        "tests/server/test_hostile_arrow.py::test_a_lie_is_rejected_and_the_server_lives",
        (
            ("onibus/core/path/admit_arrow.py", "        given.validate(full=True)\n", ""),
            (
                "onibus/core/arrow_block.py",
                "        batch.validate(full=True)\n        columns",
                "        columns",
            ),
        ),
    ),
    Defence(
        2,
        "a compressed record batch",
        "onibus/protocols/http/arrow_headers.py",
        "if header.field(batch, _BATCH_COMPRESSION) is not None:",
        "if False:",
        "tests/server/test_hostile_arrow.py::test_a_compressed_batch_is_not_decompressed",
    ),
    Defence(
        2,
        "a gzip body that becomes too large",
        "onibus/protocols/http/content_encoding.py",
        "            if size > bytes_max:\n",
        "            if False:\n",
        "tests/server/test_content_encoding.py::test_what_becomes_too_much_is_rejected",
    ),
    Defence(
        3,
        "connections that are cut off and keep their memory",
        "onibus/protocols/http/connection.py",
        "        self.deadline.end()\n        self._incoming.end()\n",
        "",
        "tests/server/test_ended_connections.py::test_nothing_keeps_a_connection_that_was_cut_off",
    ),
    Defence(
        4,
        "strangers that take all connections",
        "onibus/operation/peers.py",
        "            stranger = self._strangers.first()\n",
        "            stranger = None\n",
        "tests/server/test_peers.py::test_at_the_limit_the_oldest_stranger_makes_room",
    ),
    Defence(
        4,
        "guesses of credentials",
        "onibus/operation/peers.py",
        "            self._peers.attempts.failed(self.address)\n",
        "            pass\n",
        "tests/server/test_failed_attempts.py::test_wrong_tokens_of_the_native_api_are_limited",
    ),
    Defence(
        5,
        "requests of web pages",
        "onibus/security/origins.py",
        '        if "origin" in headers or "referer" in headers or "sec-fetch-site" in headers:\n',
        "        if False:\n",
        "tests/server/test_web_pages.py::test_pages_of_others_are_refused",
    ),
    Defence(
        5,
        "names that were made to resolve to this machine",
        "onibus/security/origins.py",
        "        if not is_local(name) and name not in self._allowed:\n",
        "        if False:\n",
        "tests/server/test_web_pages.py::test_names_that_were_made_to_lead_here_are_refused",
    ),
    Defence(
        5,
        "changes by GET",
        "onibus/security/origins.py",
        '        if method != "POST" and self.is_open:\n',
        "        if False:\n",
        "tests/server/test_web_pages.py::test_nothing_is_changed_by_an_image",
    ),
    Defence(
        6,
        "a start with a wrong clock",
        "onibus/shard/clock.py",
        "        if furthest_back <= step <= PLAUSIBLE_MS:\n",
        "        if True:\n",
        "tests/gateway/test_clock.py::test_a_wrong_clock_at_a_start_changes_nothing",
    ),
    Defence(
        7,
        "a fan-out in one piece",
        "onibus/directory/turns.py",
        "        return next(self._running, None) is not None\n",
        "        return bool(list(self._running)) and False\n",
        "tests/gateway/test_turns.py::test_others_are_served_while_a_fan_out_is_computed",
    ),
    Defence(
        7,
        "a fan-out for a client that has gone",
        "onibus/directory/turns.py",
        "        if self.stops and is_unwanted(self.reply):\n",
        "        if False:\n",
        "tests/gateway/test_turns.py::test_a_send_whose_client_left_is_computed_no_further",
    ),
    Defence(
        7,
        "a costly filter",
        "onibus/core/rules/subject.py",
        "        if self.steps > RULE_STEPS_MAX:\n",
        "        if False:\n",
        "tests/core/rules/test_steps.py",
    ),
    Defence(
        7,
        "costly filters of peeks, purges and searches",
        "onibus/core/inspection.py",
        "        return selected, size + BYTES_A_STEP * (len(self.sql) // 4 + subject.steps)\n",
        "        return selected, len(message.body)\n",
        "tests/gateway/test_costly_filters.py::"
        "test_a_slice_counts_properties_and_steps_of_a_filter",
    ),
    Defence(
        7,
        "messages that come due in many subscriptions",
        "onibus/core/path/expire.py",
        "    left = DUE_STEPS - SHARE_STEPS * len(others)\n",
        "    left = DUE_STEPS\n",
        "tests/gateway/test_turns.py::"
        "test_fewer_messages_come_due_in_a_slice_the_more_rules_they_meet",
    ),
    Defence(
        7,
        "lists of thousands of readers",
        "onibus/protocols/http/api/overview.py",
        "        if looked % _READERS_A_SLICE == 0:\n",
        "        if False:\n",
        "tests/server/test_long_lists.py::test_others_have_their_turn_while_a_long_list_is_made",
    ),
    Defence(
        7,
        "metrics for everybody",
        "onibus/protocols/http/api/operation.py",
        "        right=Right.MONITOR,\n        handler=metrics,\n",
        "        right=None,\n        handler=metrics,\n",
        "tests/server/test_metrics.py::test_metrics_are_for_keys_that_may_monitor",
    ),
    Defence(
        7,
        "tiny WebSocket frames",
        "onibus/protocols/amqp/websocket.py",
        "                if count == FRAMES_A_SLICE:\n",
        "                if False:\n",
        "tests/amqp/test_slices.py::test_tiny_websocket_frames_are_taken_in_slices",
    ),
    Defence(
        7,
        "large deliveries in small frames",
        "onibus/protocols/amqp/connection.py",
        "        while self._cutting and count > 0 and self._out_bytes < _CUT_BYTES:\n",
        "        count = 1 << 30\n        while self._cutting and self._out_bytes < 1 << 40:\n",
        "tests/amqp/test_slices.py::test_a_large_delivery_is_cut_into_frames_in_slices",
    ),
    Defence(
        7,
        "a disposition of many deliveries",
        "onibus/protocols/amqp/service_bus/settlement.py",
        "        some = chosen[start : start + SETTLED_A_SLICE]\n",
        "        some = chosen if not start else []\n",
        "tests/amqp/test_slices.py::test_a_disposition_of_many_is_carried_out_in_slices",
    ),
    Defence(
        7,
        "many links that end together",
        "onibus/protocols/amqp/session.py",
        "        self._dropped.add(link)\n",
        "        self._dropped.add(link)\n        self._forget_dropped()\n",
        "tests/amqp/test_slices.py::test_deliveries_of_ended_links_are_looked_for_once",
    ),
    Defence(
        7,
        "many links that begin together",
        "onibus/protocols/amqp/connection.py",
        "_LINK_FRAMES = 9\n",
        "_LINK_FRAMES = 0\n",
        "tests/amqp/test_slices.py::test_links_take_several_turns",
    ),
    Defence(
        7,
        "responses with many messages",
        "onibus/protocols/http/listing.py",
        "        if count and (count == COUNT_A_SLICE or size + own > BYTES_A_SLICE):\n",
        "        if False:\n",
        "tests/server/test_large_responses.py::test_many_messages_are_encoded_in_slices",
    ),
    Defence(
        7,
        "responses with large bodies",
        "onibus/protocols/http/listing.py",
        "            yield from _large(one, body_limit)\n",
        "            parts.append(_encode(message_out(one, body_limit)))\n",
        "tests/server/test_large_responses.py::test_a_large_body_is_the_same_in_slices",
    ),
    Defence(
        7,
        "large bodies in SQS responses",
        "onibus/protocols/sqs/actions/receiving.py",
        "> PIECE_BYTES:\n",
        "> 1 << 40:\n",
        "tests/sqs/test_large_responses.py::test_a_large_body_is_whole_in_slices",
    ),
    Defence(
        7,
        "deliveries that closed windows hold back",
        "onibus/protocols/amqp/session.py",
        "        return 0 if self.connection.waits_much else max(self._window, 0)\n",
        "        return max(self._window, 0)\n",
        "tests/amqp/test_slices.py::test_what_a_window_holds_back_has_a_bound",
    ),
    Defence(
        7,
        "staged pieces without number",
        "onibus/directory/producers.py",
        "if sum(staged.values()) >= quotas.staged:",
        "if False:",
        "tests/gateway/test_quotas_of_names.py::"
        "test_one_more_staged_piece_than_the_quota_is_rejected",
    ),
    Defence(
        8,
        "batches that fill the disk",
        "onibus/shard/disk_room.py",
        "        needed = size * TIMES_WRITTEN\n",
        "        needed = 0\n",
        "tests/gateway/test_full_disk.py::test_sends_never_take_the_reserve",
    ),
    Defence(
        9,
        "a second server on the same files",
        "onibus/store/files.py",
        "        if _OWN_FILE:\n            self._lock_own_file()\n",
        "",
        "tests/store/test_locks.py::test_a_second_opener_is_refused_without_the_lock_file",
    ),
    Defence(
        9,
        "files that were replaced or deleted",
        "onibus/store/place.py",
        "        for end in self._ends:\n            self._check_file(end)\n",
        "",
        "tests/store/test_locks.py::test_no_commit_is_acknowledged_in_files_that_lost_their_names",
    ),
    Defence(
        9,
        "an older copy of an open database",
        "onibus/store/sqlite.py",
        "        self._check_writes()\n        idle",
        "        idle",
        "tests/store/test_overwritten_files.py::test_an_older_copy_of_the_main_file_is_damage",
    ),
    Defence(
        9,
        "a truncated log of an open database",
        "onibus/store/log_room.py",
        "        if length < used:\n",
        "        if False:\n",
        "tests/store/test_overwritten_files.py::test_a_truncated_log_is_damage",
    ),
    Defence(
        9,
        "an open database that is no database now",
        "onibus/store/place.py",
        "        if os.pread(self.file, len(_MAGIC), 0) != _MAGIC:\n",
        "        if False:\n",
        "tests/store/test_overwritten_files.py::test_a_main_file_that_is_no_database_is_damage",
    ),
    Defence(
        10,
        "runs of a seed that differ",
        "tests/simulator/simulation.py",
        "secret = self.random.randbytes(32)\n",
        "secret = __import__('os').urandom(32)\n",
        "tests/simulation/test_determinism.py::test_a_seed_is_the_same_run_whatever_the_hash_seed",
    ),
    Defence(
        11,
        "control characters on a terminal",
        "onibus/operation/visible.py",
        "    return _HIDDEN.sub(_escape, text)\n",
        "    return text\n",
        "tests/cli/test_hostile_strings.py::test_no_command_sends_control_characters_to_a_terminal",
    ),
    Defence(
        11,
        "names in plots that are formulas",
        "onibus/spark/jobs/plots.py",
        "[_short(visible(name)) for name in names], parse_math=False)",
        "[_short(visible(name)) for name in names])",
        "tests/cli/test_hostile_strings.py::test_plots_draw_any_name",
    ),
    Defence(
        12,
        "a missing witness",
        "onibus/store/sqlite.py",
        "            if self.position and not self._simulated:\n                self.notice",
        "            if False:\n                self.notice",
        "tests/store/test_locks.py::test_a_missing_witness_raises_an_alarm",
    ),
    Defence(
        12,
        "a format that no version wrote",
        "onibus/store/sqlite.py",
        "        if version < OLDEST_FORMAT:\n",
        "        if False:\n",
        "tests/store/test_sqlite_files.py::test_a_format_that_no_version_wrote_is_refused",
    ),
    Defence(
        12,
        "requests without a host",
        "onibus/protocols/http/reading.py",
        '        if version == "1.1":\n            return "no host',
        '        if False:\n            return "no host',
        "tests/server/test_misleading_heads.py::"
        "test_misleading_heads_are_refused_and_nothing_after_them_is_read",
    ),
    Defence(
        12,
        "queue URLs of another account",
        "onibus/protocols/sqs/queues.py",
        '    if slash and before.rpartition("/")[2] != account:\n',
        "    if False:\n",
        "tests/sqs/test_accounts.py::test_a_url_of_another_account_is_one_of_no_queue",
    ),
    Defence(
        13,
        "a failed read that SQLite calls damage",
        "onibus/store/reading.py",
        "        again(fresh)\n",
        "        raise error\n",
        "tests/store/test_failed_reads.py::"
        "test_a_page_that_reads_well_the_second_time_is_not_damage",
    ),
    Defence(
        14,
        "a dead store that no client uses",
        "onibus/directory/probing.py",
        "        elif now >= due:\n            self._begin(loop)\n            return\n",
        "        elif now >= due:\n            return\n",
        "tests/gateway/test_probing.py::"
        "test_a_store_that_went_away_is_noticed_while_nobody_uses_it",
    ),
    Defence(
        15,
        "a counter at the end of its range",
        "onibus/core/numbering.py",
        "        return [base | (ordinal & mask) for ordinal in ordinals]\n",
        "        return [base | ordinal for ordinal in ordinals]\n",
        "tests/gateway/test_rollover.py::test_the_order_does_not_wrap",
    ),
)


def fails_without(defence: Defence, copy: Path) -> bool:
    """Revert a defence in a copy of the repository; return whether its test fails there."""
    kept = {}
    for name, code, reverted in defence.changes:
        file = copy / name
        kept[file] = text = file.read_text("utf-8")
        file.write_text(text.replace(code, reverted), "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": os.fspath(copy)}
    try:
        done = subprocess.run(
            [*command, defence.test],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        # Perhaps only the machine is busy: a test that does not fail proves nothing.
        return False
    finally:
        for file, text in kept.items():
            file.write_text(text, "utf-8")
    # 1: tests ran, and one failed. Anything else, such as a broken import, proves nothing.
    return done.returncode == 1 and "\nERROR tests/" not in done.stdout


def main() -> int:
    """Revert the defences of some items, or of all; return 1 if no test misses one of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("items", nargs="*", type=int, help="default: all")
    given = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "onibus"
        shutil.copytree(ROOT, copy, symlinks=True, ignore=_LEFT_OUT)
        for defence in DEFENCES:
            if given.items and defence.item not in given.items:
                continue
            begun = time.monotonic()
            seen = fails_without(defence, copy)
            missed += not seen
            seconds = time.monotonic() - begun
            verdict = "seen" if seen else "MISSED"
            print(f"{defence.item:2} {verdict:6} {seconds:4.0f} s  {defence.against}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
