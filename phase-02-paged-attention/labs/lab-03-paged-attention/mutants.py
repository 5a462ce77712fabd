"""Wrong solutions of lab 2.3, each with the test that must catch it."""

from course.mutants import Mutant

MUTANTS = [
    Mutant(
        name="slots-run-on-from-the-first-block",
        story="Looks up the first block only and counts on from there, as if a table's blocks lay side by side.",
        replace="    return block_ids * block_size + positions % block_size\n",
        by="    return block_ids[0] * block_size + first_position % block_size + np.arange(num_tokens)\n",
        killed_by="test_task_1_positions_go_through_the_table",
    ),
    Mutant(
        name="a-step-always-starts-a-block",
        story="Counts offsets from the first token of the step, not from the first token of the sequence.",
        replace="    return block_ids * block_size + positions % block_size\n",
        by="    return block_ids * block_size + np.arange(num_tokens) % block_size\n",
        killed_by="test_task_1_start_inside_a_block",
    ),
    Mutant(
        name="an-exactly-full-table-is-too-short",
        story="Off by one: refuses a context that ends at the end of its last block.",
        replace="    if num_slots_needed > num_slots:\n",
        by="    if num_slots_needed >= num_slots:\n",
        killed_by="test_task_1_a_table_too_short_is_refused",
    ),
    Mutant(
        name="negative-ids-wrap-around",
        story="No check of the ids: -9 gives a negative slot, and numpy counts that from the end of the pool.",
        replace="    if block_ids.min() < 0:\n",
        by="    if False:\n",
        killed_by="test_task_1_negative_numbers_are_refused",
    ),
    Mutant(
        name="write-goes-into-a-copy",
        story="transpose().reshape() of a pool is a copy, so the assignment is lost without a word.",
        replace="    k_pool[block_ids, :, offsets] = keys\n",
        by="    k_pool.transpose(0, 2, 1, 3).reshape(num_slots, num_kv_heads, head_dim)[slots] = keys\n",
        killed_by="test_task_2_each_token_lands_in_its_slot",
    ),
    Mutant(
        name="write-by-the-wrong-layout",
        story="reshape() without the transpose is a view, but of rows that mix kv heads and offsets.",
        replace="    v_pool[block_ids, :, offsets] = values\n",
        by="    v_pool.reshape(num_slots, num_kv_heads, head_dim)[slots] = values\n",
        killed_by="test_task_2_nothing_else_changes",
    ),
    Mutant(
        name="write-lets-numpy-broadcast",
        story="Checks only the last axis, so that one token's keys are written to every slot.",
        replace="        if array.shape != expected:\n",
        by="        if array.shape[-1] != head_dim:\n",
        killed_by="test_task_2_wrong_shapes_are_refused_before_the_first_write",
    ),
    Mutant(
        name="gather-returns-whole-blocks",
        story="Takes the blocks and forgets to cut the last one at num_tokens.",
        replace="    return pool[block_ids, :, offsets]\n",
        by="    whole = pool[list(block_table[:-(-num_tokens // block_size)])].transpose(0, 2, 1, 3)\n"
           "    return whole.reshape(-1, *whole.shape[2:])\n",
        killed_by="test_task_3_the_rest_of_the_last_block_stays_out",
    ),
    Mutant(
        name="gather-forgets-that-heads-come-first",
        story="Reshapes [kv_heads, block_size, head_dim] as if it were [block_size, kv_heads, head_dim].",
        replace="    return pool[block_ids, :, offsets]\n",
        by="    blocks = pool[list(block_table[:-(-num_tokens // block_size)])]\n"
           "    return blocks.reshape(-1, pool.shape[1], pool.shape[3])[:num_tokens]\n",
        killed_by="test_task_3_positions_come_back_in_order",
    ),
    Mutant(
        name="chunk-stands-at-the-start",
        story="A mask as for a whole prompt: query i sees positions 0 to i, wherever the chunk really stands.",
        replace="    sees = np.arange(context_len) <= query_positions[:, None]",
        by="    sees = np.arange(context_len) <= np.arange(num_query_tokens)[:, None]",
        killed_by="test_task_4_a_chunk_is_causal",
    ),
    Mutant(
        name="a-query-does-not-see-itself",
        story="Off by one in the mask: < for <=.",
        replace="    sees = np.arange(context_len) <= query_positions[:, None]",
        by="    sees = np.arange(context_len) < query_positions[:, None]",
        killed_by="test_task_4_decode_equals_dense",
    ),
    Mutant(
        name="heads-are-interleaved",
        story="Head h reads kv head h % num_kv_heads. With as many heads as kv heads it is right.",
        replace="    grouped = queries.reshape(num_query_tokens, num_kv_heads, num_heads // num_kv_heads, head_dim)\n",
        by="    grouped = queries.reshape(num_query_tokens, -1, num_kv_heads, head_dim).swapaxes(1, 2)\n",
        killed_by="test_task_4_heads_are_grouped",
    ),
    Mutant(
        name="masks-the-garbage-instead-of-leaving-it-out",
        story="Reads the whole last block and gives what is beyond the context weight 0; 0 * NaN is NaN.",
        replace="        num_valid = min(block_size, context_len - first_position)\n",
        by="        num_valid = block_size\n",
        killed_by="test_task_5_places_and_garbage_do_not_show",
    ),
    Mutant(
        name="accumulator-keeps-its-old-scale",
        story="Rescales the sum when the maximum grows, but not the accumulator.",
        replace="        accumulator = accumulator * shrink[..., None] + block_weights @ block_values\n",
        by="        accumulator = accumulator + block_weights @ block_values\n",
        killed_by="test_task_5_the_sums_follow_the_maximum",
    ),
    Mutant(
        name="maximum-of-the-block-only",
        story="Takes the block's own maximum as the new one: it can fall again, and then exp(old - new) overflows.",
        replace="        new_max = np.maximum(running_max, block_scores.max(axis=-1))\n",
        by="        new_max = block_scores.max(axis=-1)\n",
        killed_by="test_task_5_huge_scores_do_not_overflow",
    ),
    Mutant(
        name="no-maximum-at-all",
        story="exp of the raw scores: equal on small numbers, infinite from 710 on.",
        replace="        new_max = np.maximum(running_max, block_scores.max(axis=-1))\n",
        by="        new_max = np.zeros_like(running_max)\n",
        killed_by="test_task_5_huge_scores_do_not_overflow",
    ),
    Mutant(
        name="online-in-name-only",
        story="Indexes the pool with the table, as gather_kv does, and then walks over that copy block by block.",
        replace="        block_keys = k_pool[block_table[index]][:, None, :num_valid]",
        by="        block_keys = k_pool[list(block_table[:index + 1])][index, :, None, :num_valid]",
        killed_by="test_task_5_reads_one_block_at_a_time",
    ),
    Mutant(
        name="online-keeps-every-block",
        story="Reads one block at a time, and keeps a copy of each.",
        replace="        running_max = new_max\n",
        by="        running_max = new_max\n"
           "        kept = [] if index == 0 else kept  # noqa: F821\n"
           "        kept.append((block_keys.copy(), block_scores))\n",
        killed_by="test_task_5_memory_does_not_grow_with_the_context",
    ),
    Mutant(
        name="rows-counted-by-context",
        story="Steps through the queries by context_lens: right as long as every request prefills its whole prompt.",
        replace="        start += query_len\n",
        by="        start += context_len\n",
        killed_by="test_task_6_prefill_and_decode_in_one_batch",
    ),
    Mutant(
        name="everyone-decodes",
        story="Takes one query row a request, and the chunk loses all but its first.",
        replace="        rows = queries[start:start + query_len]\n",
        by="        rows = queries[start:start + 1]\n",
        killed_by="test_task_6_prefill_and_decode_in_one_batch",
    ),
    Mutant(
        name="query-lens-are-not-added-up",
        story="Trusts query_lens; rows that nobody owns are dropped without a word.",
        replace="    if sum(query_lens) != queries.shape[0]:\n",
        by="    if sum(query_lens) > queries.shape[0]:\n",
        killed_by="test_task_6_lengths_that_disagree_are_refused",
    ),
]
