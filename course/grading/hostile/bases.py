"""The honest half files to which attacks are added: solutions with some wrong bodies."""

from __future__ import annotations

from course.lab.lab import Lab

#: Lab → tests that are quick through the proxy. The base earns about half of their points.
TESTS = {
    "2.1": ("test_task_1_reset_hash_forgets_the_hash_only", "test_task_1_append_puts_blocks_at_the_end_in_order",
            "test_task_2_remove_from_the_middle_keeps_order", "test_task_2_remove_refuses_a_block_that_is_not_queued",
            "test_task_3_popleft_takes_the_oldest", "test_task_4_the_hash_is_that_of_parent_and_tokens",
            "test_task_4_extra_keys_keep_equal_texts_apart",
            "test_task_5_new_blocks_are_owned_and_never_the_null_block",
            "test_task_5_usage_runs_from_0_to_1_without_the_null_block",
            "test_task_7_a_cached_block_is_found_in_use_and_free",
            "test_task_8_reset_is_refused_while_blocks_are_in_use"),
    "1.1": ("test_task_1_softmax_of_known_scores", "test_task_6_every_argument_counts_once",
            "test_task_2_no_queries_are_no_error"),
    "2.2": ("test_task_1_a_request_that_holds_nothing_has_an_empty_table",
            "test_task_2_the_table_is_in_the_order_of_the_tokens", "test_task_2_chunks_extend_the_same_table",
            "test_task_2_the_manager_never_writes_the_request", "test_task_3_free_gives_the_tail_back_first",
            "test_task_4_full_blocks_of_a_prompt_are_found", "test_task_5_hits_are_shared_not_copied"),
    "2.4": ("test_task_1_lowest_number_first_is_caught", "test_task_1_keeping_the_last_block_is_caught",
            "test_task_1_less_than_nothing_is_caught"),
    "3.5": ("test_task_1_the_first_that_came_goes_first", "test_task_1_a_block_in_use_does_not_go",
            "test_task_2_the_tail_of_a_request_goes_first",
            "test_task_3_every_answer_is_legal_in_the_traces_of_the_score"),
    "4.1": ("test_task_1_a_request_that_came_waits", "test_task_1_an_id_in_use_is_refused",
            "test_task_2_a_finished_request_gives_seat_and_blocks_back",
            "test_task_2_abort_of_an_unknown_id_returns_none", "test_task_3_a_decoding_request_computes_one_token",
            "test_task_3_a_token_is_appended_only_where_one_was_sampled", "test_task_4_there_are_only_so_many_seats"),
    "5.1": ("test_task_1_positions_are_the_last_of_each_context", "test_task_3_copies_are_counted",
            "test_task_6_a_prompt_is_computed_as_by_the_dense_model",
            "test_task_6_only_requests_that_need_logits_get_them"),
    "5.3": ("test_task_1_a_request_that_came_waits", "test_task_1_an_unseen_output_still_has_to_be_reported",
            "test_task_2_every_prompt_gets_its_first_token", "test_task_3_the_last_token_of_max_tokens_is_the_last"),
    "5.4": ("test_task_1_each_head_of_each_block_is_a_page",
            "test_task_4_a_prompt_is_computed_as_by_the_dense_model"),
}
#: Additional tests for attacks on what is measured in the sandbox.
TESTS_INSIDE = {"2.1": ("test_task_7_looking_for_what_is_not_there_leaves_nothing_behind",)}

#: Lab → what is broken in the solution: (text, its replacement).
_BREAKS = {
    "2.1": (("        self.block_hash = None\n        # END", "        self.ref_cnt = 0\n        # END"),
            ('            raise RuntimeError(f"remove: block {block.block_id} is not in the free queue")\n',
             "            return\n"),
            ("    if extra_keys:\n", "    if False:\n"),
            ("        num_usable = self.num_blocks - 1\n", "        num_usable = self.num_blocks\n"),
            ("            self._cached.setdefault(block_hash, {})[block.block_id] = block\n",
             "            self._cached[block_hash] = {}\n")),
    "1.1": (("    return weights / weights.sum(axis=-1, keepdims=True)\n", "    return weights\n"),),
    "2.2": (("        self.block_pool.free_blocks(reversed(table))\n",
             "        self.block_pool.free_blocks(list(table))\n"),
            ("                blocks.append(block)\n", "                break\n")),
    "2.4": (("    with pytest.raises(ValueError):\n        pool.get_new_blocks(-1)\n    # END TASK\n",
             "    # END TASK\n"),),
    "3.5": (("        return self._queue.popitem(last=False)[0]\n", "        return self._queue.popitem()[0]\n"),),
    "4.1": (("        if request.request_id in self.requests:\n", "        if False:\n"),
            ("        return request\n        # END TASK", "        return request or self\n        # END TASK"),
            (" if request.num_sequences <= num_seats else 0\n", "\n")),
    "5.1": (("        self.num_copied_blocks += len(copies)\n", ""),),
    "5.3": (("        return bool(self.live.groups or self.unseen)\n", "        return bool(self.live.groups)\n"),),
    "5.4": ((" else hidden[rows])\n        # END TASK", " else hidden[rows]) * 0\n        # END TASK"),),
}


def half_of(lab: Lab) -> str:
    """Return the half file of a lab. Raise ValueError if the solution has changed so that a break no longer fits."""
    text = lab.solution.read_text(encoding="utf-8")
    for old, new in _BREAKS[lab.number]:
        if text.count(old) != 1:
            raise ValueError(f"lab {lab.number}: {old!r} occurs {text.count(old)} times in the solution, must be once")
        text = text.replace(old, new)
    return text
