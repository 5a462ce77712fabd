"""Wrong solutions of lab 2.3, each with the test that must catch it."""

from course.mutants import Mutant

MUTANTS = [
    Mutant(
        name="slots-run-on-from-the-first-block",
        story="Looks up the first block only and counts on from there, as if a table's blocks lay side by side.",
        replace="    return block_ids * block_size + positions % block_size\n",
        by="    return block_ids[0] * block_size + first_position % block_size + np.arange(num_tokens)\n",
        killed_by="test_task_1_positions_go_through_the_table",
        breaks=("invariant 1: Position p lives in block table[p // block_size]",
                "slot_mapping: Position p lives in block block_table[p // block_size]"),
    ),
    Mutant(
        name="a-step-always-starts-a-block",
        story="Counts offsets from the first token of the step, not from the first token of the sequence.",
        replace="    return block_ids * block_size + positions % block_size\n",
        by="    return block_ids * block_size + np.arange(num_tokens) % block_size\n",
        killed_by="test_task_1_start_inside_a_block",
        breaks=("invariant 1: at offset p % block_size",
                "slot_mapping: at offset p % block_size"),
    ),
    Mutant(
        name="no-slots-are-floats",
        story="An empty array of numpy is one of floats, and no index.",
        replace="        return np.zeros(0, dtype=np.int64)\n",
        by="        return np.zeros(0)\n",
        killed_by="test_task_1_slots_are_int64",
        breaks="slot_mapping: No tokens give an empty array, of int64 too",
    ),
    Mutant(
        name="no-slots-of-no-table-are-floats",
        story="Cuts the table to nothing: of ints that is an array of ints, of an empty list it is one of floats.",
        replace="        return np.zeros(0, dtype=np.int64)\n",
        by="        return np.array(block_table)[:0]\n",
        killed_by="test_task_1_slots_are_int64",
        breaks="slot_mapping: No tokens give an empty array, of int64 too",
    ),
    Mutant(
        name="slots-of-32-bits",
        story="Block ids are small, so int32 will do; slots are not.",
        replace="    return block_ids * block_size + positions % block_size\n",
        by="    return (block_ids * block_size + positions % block_size).astype(np.int32)\n",
        killed_by="test_task_1_slots_are_int64",
        breaks="slot_mapping: an int64 array [num_tokens]",
    ),
    Mutant(
        name="an-exactly-full-table-is-too-short",
        story="Off by one: refuses a context that ends at the end of its last block.",
        replace="    if num_slots_needed > num_slots:\n",
        by="    if num_slots_needed >= num_slots:\n",
        killed_by="test_task_1_a_table_too_short_is_refused",
        breaks="slot_mapping: for a table with fewer than first_position + num_tokens slots",
    ),
    Mutant(
        name="fewer-than-no-tokens",
        story="Takes a negative number of tokens for none.",
        replace="    if first_position < 0 or num_tokens < 0:\n",
        by="""    num_tokens = max(num_tokens, 0)
    if first_position < 0:
""",
        killed_by="test_task_1_negative_numbers_are_refused",
        breaks="slot_mapping: for a negative first_position or num_tokens",
    ),
    Mutant(
        name="a-negative-start-counts-from-the-end",
        story="A list takes negative indices, so position -3 has a slot.",
        replace="    if first_position < 0 or num_tokens < 0:\n",
        by="    if num_tokens < 0:\n",
        killed_by="test_task_1_negative_numbers_are_refused",
        breaks="slot_mapping: for a negative first_position or num_tokens",
    ),
    Mutant(
        name="blocks-of-nothing",
        story="Divides by a block_size of 0, if it gets that far.",
        replace="    if block_size < 1:\n",
        by="    if block_size < 0:\n",
        killed_by="test_task_1_negative_numbers_are_refused",
        breaks="slot_mapping: for a block_size below 1",
    ),
    Mutant(
        name="says-only-what-is-missing",
        story="The message has the number that is needed, and not the one that is there.",
        replace="""blocks "
                         f"of {block_size} tokens has {num_slots}")
""",
        by="""blocks "
                         "has fewer")
""",
        killed_by="test_task_1_a_table_too_short_is_refused",
        breaks="slot_mapping: the message holds both numbers of slots",
    ),
    Mutant(
        name="no-tokens-fit-anywhere",
        story="Asks whether the table is long enough only if there are tokens.",
        replace="    if num_slots_needed > num_slots:\n",
        by="    if num_tokens and num_slots_needed > num_slots:\n",
        killed_by="test_task_1_a_table_too_short_is_refused",
        breaks="slot_mapping: even if there are no tokens",
    ),
    Mutant(
        name="negative-ids-wrap-around",
        story="No check of the ids: -9 gives a negative slot, and numpy counts that from the end of the pool.",
        replace="    if block_ids.min() < 0:\n",
        by="    if False:\n",
        killed_by="test_task_1_negative_numbers_are_refused",
        breaks="slot_mapping: for a negative block id at one of these positions",
    ),
    Mutant(
        name="looks-at-the-table-before-the-step",
        story="Refuses a -1 among the blocks of earlier positions, which this step does not touch.",
        replace="    if block_ids.min() < 0:\n",
        by="    if min(block_table[:num_blocks_needed]) < 0:\n",
        killed_by="test_task_1_padding_and_no_tokens",
        breaks="slot_mapping: nor are those before the first",
    ),
    Mutant(
        name="looks-at-the-whole-table",
        story="Refuses a -1 anywhere in the table: padding, or blocks that were given back.",
        replace="    if block_ids.min() < 0:\n",
        by="    if min(block_table) < 0:\n",
        killed_by="test_task_1_padding_and_no_tokens",
        breaks="slot_mapping: entries past the last of these positions are padding and are not looked at",
    ),
    Mutant(
        name="write-goes-into-a-copy",
        story="transpose().reshape() of a pool is a copy, so the assignment is lost without a word.",
        replace="    k_pool[block_ids, :, offsets] = keys\n",
        by="    k_pool.transpose(0, 2, 1, 3).reshape(num_slots, num_kv_heads, head_dim)[slots] = keys\n",
        killed_by="test_task_2_each_token_lands_in_its_slot",
        breaks="write_kv: After: those slots hold the new vectors",
    ),
    Mutant(
        name="write-by-the-wrong-layout",
        story="reshape() without the transpose is a view, but of rows that mix kv heads and offsets.",
        replace="    v_pool[block_ids, :, offsets] = values\n",
        by="    v_pool.reshape(num_slots, num_kv_heads, head_dim)[slots] = values\n",
        killed_by="test_task_2_nothing_else_changes",
        breaks=("invariant 2: A write changes its own slots and no other number in the pools",
                "write_kv: Every other number in the pools is what it was"),
    ),
    Mutant(
        name="write-cleans-up",
        story="Makes numbers of the NaN that lies in the blocks that it writes to.",
        replace="    k_pool[block_ids, :, offsets] = keys\n",
        by="""    k_pool[block_ids] = np.nan_to_num(k_pool[block_ids])
    k_pool[block_ids, :, offsets] = keys
""",
        killed_by="test_task_2_nothing_else_changes",
        breaks="invariant 2: no other number in the pools",
    ),
    Mutant(
        name="write-nothing-is-an-error",
        story="An empty list becomes an array of floats, and numpy takes no floats for an index.",
        replace="    slots = np.asarray(slots, dtype=np.int64)\n",
        by="    slots = np.asarray(slots)\n",
        killed_by="test_task_2_nothing_else_changes",
        breaks="write_kv: No slots: nothing happens",
    ),
    Mutant(
        name="write-in-the-order-of-the-slots",
        story="Sorts the slots to write memory front to back, and leaves the tokens as they are.",
        replace="""    block_ids, offsets = slots // block_size, slots % block_size
    # Two index arrays""",
        by="""    slots = np.sort(slots)
    block_ids, offsets = slots // block_size, slots % block_size
    # Two index arrays""",
        killed_by="test_task_2_each_token_lands_in_its_slot",
        breaks="write_kv: The slots are distinct and in any order",
    ),
    Mutant(
        name="write-lets-numpy-broadcast",
        story="Checks only the last axis, so that one token's keys are written to every slot.",
        replace="        if array.shape != expected:\n",
        by="        if array.shape[-1] != head_dim:\n",
        killed_by="test_task_2_wrong_shapes_are_refused_before_the_first_write",
        breaks=("write_kv: Raises ValueError, before the first write, if a shape is wrong",
                "write_kv: keys and values are exactly [len(slots), num_kv_heads, head_dim]"),
    ),
    Mutant(
        name="write-checks-each-slot-as-it-comes",
        story="One token at a time, checked and written: those before the bad one are in the pools.",
        replace="""    outside = slots[(slots < 0) | (slots >= num_slots)]
    if len(outside):
        raise ValueError(f"write_kv: slot {outside[0]} is not between 0 and {num_slots - 1}")
""",
        by="""    for i, slot in enumerate(slots):
        if not 0 <= slot < num_slots:
            raise ValueError(f"write_kv: slot {slot} is not between 0 and {num_slots - 1}")
        k_pool[slot // block_size, :, slot % block_size] = keys[i]
""",
        killed_by="test_task_2_slots_out_of_range_are_refused_before_the_first_write",
        breaks=("invariant 6: A call that raises has changed nothing",
                "write_kv: before the first write"),
    ),
    Mutant(
        name="write-counts-slots-from-the-end",
        story="Slot -1 is the last one, says numpy: the last token of somebody else.",
        replace="slots[(slots < 0) | (slots >= num_slots)]\n",
        by="slots[slots >= num_slots]\n",
        killed_by="test_task_2_slots_out_of_range_are_refused_before_the_first_write",
        breaks="write_kv: if a slot is out of range",
    ),
    Mutant(
        name="write-trusts-the-second-pool",
        story="Looks at the shape of k_pool alone.",
        replace="""    if v_pool.shape != k_pool.shape:
        raise ValueError(f"write_kv""",
        by="""    if False:
        raise ValueError(f"write_kv""",
        killed_by="test_task_2_wrong_shapes_are_refused_before_the_first_write",
        breaks="write_kv: the pools have one shape",
    ),
    Mutant(
        name="write-says-only-what-it-got",
        story="The message has the wrong shape, and not the right one.",
        replace="has shape {array.shape}, expected {expected}: \"\n",
        by="has shape {array.shape}: \"\n",
        killed_by="test_task_2_wrong_shapes_are_refused_before_the_first_write",
        breaks="write_kv: the message holds that shape and the expected one",
    ),
    Mutant(
        name="write-checks-the-keys-alone",
        story="The values come from the same layer, so their shape will be right.",
        replace="    for name, array in ((\"keys\", keys), (\"values\", values)):\n",
        by="    for name, array in ((\"keys\", keys),):\n",
        killed_by="test_task_2_wrong_shapes_are_refused_before_the_first_write",
        breaks="write_kv: Raises ValueError, before the first write, if a shape is wrong",
    ),
    Mutant(
        name="write-counts-the-numbers",
        story="As many numbers as are needed, in whatever shape.",
        replace="        if array.shape != expected:\n",
        by="""        array.shape = expected if array.size == np.prod(expected) else array.shape
        if array.shape != expected:
""",
        killed_by="test_task_2_wrong_shapes_are_refused_before_the_first_write",
        breaks="write_kv: keys and values are exactly [len(slots), num_kv_heads, head_dim]",
    ),
    Mutant(
        name="gather-returns-whole-blocks",
        story="Takes the blocks and forgets to cut the last one at num_tokens.",
        replace="    return pool[block_ids, :, offsets]\n",
        by="    whole = pool[list(block_table[:-(-num_tokens // block_size)])].transpose(0, 2, 1, 3)\n"
           "    return whole.reshape(-1, *whole.shape[2:])\n",
        killed_by="test_task_3_the_rest_of_the_last_block_stays_out",
        breaks="gather_kv: the rest of the last block is garbage and is not part of the result",
    ),
    Mutant(
        name="gather-checks-the-padding",
        story="Refuses an id in an entry that is never read.",
        replace="    if num_tokens and block_ids.max() >= num_blocks:\n",
        by="    if max(block_table, default=0) >= num_blocks:\n",
        killed_by="test_task_3_the_rest_of_the_last_block_stays_out",
        breaks="gather_kv: Entries of the table past the last of them are padding",
    ),
    Mutant(
        name="gather-leaves-it-to-numpy",
        story="An id that the pool does not have is an IndexError of numpy.",
        replace="    if num_tokens and block_ids.max() >= num_blocks:\n",
        by="    if num_tokens and block_ids.max() > num_blocks:\n",
        killed_by="test_task_3_bad_tables_are_refused",
        breaks="gather_kv: is not between 0 and num_blocks - 1",
    ),
    Mutant(
        name="gather-takes-a-short-table",
        story="Takes as many tokens as the table has.",
        replace="    slots = slot_mapping(block_table, 0, num_tokens, block_size)\n",
        by="    slots = slot_mapping(block_table, 0, min(num_tokens, len(block_table) * block_size), block_size)\n",
        killed_by="test_task_3_bad_tables_are_refused",
        breaks="gather_kv: Raises ValueError if the table has fewer than num_tokens slots",
    ),
    Mutant(
        name="gather-sorts-the-table",
        story="Reads the pool from front to back; the table had an order.",
        replace="    slots = slot_mapping(block_table, 0, num_tokens, block_size)\n",
        by="    slots = slot_mapping(sorted(block_table), 0, num_tokens, block_size)\n",
        killed_by="test_task_4_places_and_garbage_do_not_show",
        breaks="invariant 5: Which physical blocks are used, in which order",
    ),
    Mutant(
        name="gather-cleans-up",
        story="Makes numbers of what is not finite, and so hides who wrote it.",
        replace="    return pool[block_ids, :, offsets]\n",
        by="    return np.nan_to_num(pool[block_ids, :, offsets])\n",
        killed_by="test_task_3_the_result_is_an_array_of_its_own",
        breaks="gather_kv: Copy positions 0 … num_tokens - 1 of one sequence",
    ),
    Mutant(
        name="gather-gives-out-the-pool",
        story="One block is a slice of the pool: no copy, and whoever scales it scales the cache.",
        replace="    return pool[block_ids, :, offsets]\n",
        by="""    if 0 < num_tokens <= block_size:
        return pool[block_table[0], :, :num_tokens].swapaxes(0, 1)
    return pool[block_ids, :, offsets]
""",
        killed_by="test_task_3_the_result_is_an_array_of_its_own",
        breaks="gather_kv: The result is an array of its own",
    ),
    Mutant(
        name="gather-forgets-that-heads-come-first",
        story="Reshapes [kv_heads, block_size, head_dim] as if it were [block_size, kv_heads, head_dim].",
        replace="    return pool[block_ids, :, offsets]\n",
        by="    blocks = pool[list(block_table[:-(-num_tokens // block_size)])]\n"
           "    return blocks.reshape(-1, pool.shape[1], pool.shape[3])[:num_tokens]\n",
        killed_by="test_task_3_positions_come_back_in_order",
        breaks="gather_kv: [num_tokens, num_kv_heads, head_dim]",
    ),
    Mutant(
        name="chunk-stands-at-the-start",
        story="A mask as for a whole prompt: query i sees positions 0 to i, wherever the chunk really stands.",
        replace="    sees = np.arange(context_len) <= query_positions[:, None]",
        by="    sees = np.arange(context_len) <= np.arange(num_query_tokens)[:, None]",
        killed_by="test_task_4_a_chunk_is_causal",
        breaks="paged_attention: Query i stands at position context_len - num_query_tokens + i",
    ),
    Mutant(
        name="a-query-does-not-see-itself",
        story="Off by one in the mask: < for <=.",
        replace="    sees = np.arange(context_len) <= query_positions[:, None]",
        by="    sees = np.arange(context_len) < query_positions[:, None]",
        killed_by="test_task_4_decode_equals_dense",
        breaks=("invariant 4: A query sees its own position",
                "paged_attention: sees that position and all before it"),
    ),
    Mutant(
        name="heads-are-interleaved",
        story="Head h reads kv head h % num_kv_heads. With as many heads as kv heads it is right.",
        replace="    grouped = queries.reshape(num_query_tokens, num_kv_heads, num_heads // num_kv_heads, head_dim)\n",
        by="    grouped = queries.reshape(num_query_tokens, -1, num_kv_heads, head_dim).swapaxes(1, 2)\n",
        killed_by="test_task_4_heads_are_grouped",
        breaks="paged_attention: Head h reads kv head h // group",
    ),
    Mutant(
        name="checks-nothing",
        story="Leaves out check_attention_inputs; numpy complains in its own words, or not at all.",
        replace="""    check_attention_inputs(queries, k_pool, v_pool, block_table, context_len)
    num_query_tokens, num_heads, head_dim = queries.shape
    num_kv_heads = """,
        by="""    num_query_tokens, num_heads, head_dim = queries.shape
    num_kv_heads = """,
        killed_by="test_task_4_bad_input_is_refused",
        breaks="paged_attention: Raises ValueError as check_attention_inputs does",
    ),
    Mutant(
        name="scores-in-float32",
        story="Half the memory, and seven digits.",
        replace="grouped, keys) * scale\n",
        by="grouped, keys).astype(np.float32) * np.float32(scale)\n",
        killed_by="test_task_4_decode_equals_dense",
        breaks="module: Arithmetic is numpy's default, float64",
    ),
    Mutant(
        name="minus-a-billion-for-infinity",
        story="A large negative number for the mask; a real score may be lower.",
        replace="    scores = np.where(sees, scores, -np.inf)\n",
        by="    scores = np.where(sees, scores, -1e9)\n",
        killed_by="test_task_4_huge_scores_do_not_overflow",
        breaks="paged_attention: sees that position and all before it",
    ),
    Mutant(
        name="one-maximum-for-all",
        story="Takes off the largest score of the whole step; a query whose scores are far below gets zeros.",
        replace="scores.max(axis=-1, keepdims=True))",
        by="scores.max())",
        killed_by="test_task_4_huge_scores_do_not_overflow",
        breaks="paged_attention: the largest score that a query and head sees is taken off",
    ),
    Mutant(
        name="exp-of-the-raw-scores",
        story="Equal on small numbers, infinite from 710 on.",
        replace="np.exp(scores - scores.max(axis=-1, keepdims=True))",
        by="np.exp(scores)",
        killed_by="test_task_4_huge_scores_do_not_overflow",
        breaks="paged_attention: Finite scores of any size give the right result",
    ),
    Mutant(
        name="scales-the-callers-queries",
        story="Multiplies the queries in place: the caller finds them scaled, and the next layer scales them again.",
        replace="    grouped = queries.reshape",
        by="""    queries *= scale
    scale = 1.0
    grouped = queries.reshape""",
        killed_by="test_task_4_decode_equals_dense",
        breaks="paged_attention: Nothing is written to the arguments",
    ),
    Mutant(
        name="zero-is-no-scale",
        story="`scale or default`: a scale of 0.0 is taken for none.",
        replace="""    if scale is None:
        scale = 1.0 / head_dim**0.5
    keys""",
        by="""    scale = scale or 1.0 / head_dim**0.5
    keys""",
        killed_by="test_task_4_scale",
        breaks="paged_attention: only None means the default, 1 / sqrt(head_dim)",
    ),
    Mutant(
        name="masks-the-garbage-instead-of-leaving-it-out",
        story="Reads the whole last block and gives what is beyond the context weight 0; 0 * NaN is NaN.",
        replace="        num_valid = min(block_size, context_len - first_position)\n",
        by="        num_valid = block_size\n",
        killed_by="test_task_5_places_and_garbage_do_not_show",
        breaks=("invariant 3: What lies outside a request's context does not count",
                "module: No result may depend on it"),
    ),
    Mutant(
        name="accumulator-keeps-its-old-scale",
        story="Rescales the sum when the maximum grows, but not the accumulator.",
        replace="        accumulator = accumulator * shrink[..., None] + block_weights @ block_values\n",
        by="        accumulator = accumulator + block_weights @ block_values\n",
        killed_by="test_task_5_the_sums_follow_the_maximum",
        breaks="paged_attention_online: When the largest grows, the two sums are scaled down to it",
    ),
    Mutant(
        name="maximum-of-the-block-only",
        story="Takes the block's own maximum as the new one: it can fall again, and then exp(old - new) overflows.",
        replace="        new_max = np.maximum(running_max, block_scores.max(axis=-1))\n",
        by="        new_max = block_scores.max(axis=-1)\n",
        killed_by="test_task_5_huge_scores_do_not_overflow",
        breaks="paged_attention_online: the largest score so far",
    ),
    Mutant(
        name="no-maximum-at-all",
        story="exp of the raw scores: equal on small numbers, infinite from 710 on.",
        replace="        new_max = np.maximum(running_max, block_scores.max(axis=-1))\n",
        by="        new_max = np.zeros_like(running_max)\n",
        killed_by="test_task_5_huge_scores_do_not_overflow",
        breaks="paged_attention_online: Finite scores of any size give the right result: no exp overflows",
    ),
    Mutant(
        name="the-largest-so-far-is-zero",
        story="Begins with 0 as the largest score; where all are far below it, nothing is left.",
        replace="    running_max = np.full(head_major.shape[:3], -np.inf)",
        by="    running_max = np.zeros(head_major.shape[:3])",
        killed_by="test_task_5_huge_scores_do_not_overflow",
        breaks="paged_attention_online: Finite scores of any size give the right result",
    ),
    Mutant(
        name="online-in-name-only",
        story="Indexes the pool with the table, as gather_kv does, and then walks over that copy block by block.",
        replace="        block_keys = k_pool[block_table[index]][:, None, :num_valid]",
        by="        block_keys = k_pool[list(block_table[:index + 1])][index, :, None, :num_valid]",
        killed_by="test_task_5_reads_one_block_at_a_time",
        breaks=("paged_attention_online: Nothing is gathered",
                "paged_attention_online: Each pool is read as pool[block_id]"),
    ),
    Mutant(
        name="the-maximum-first",
        story="Two passes: one for the largest score of all, one for the sums. Right, and every key is read twice.",
        replace="    accumulator = np.zeros(head_major.shape)\n",
        by="""    accumulator = np.zeros(head_major.shape)
    for index, first_position in enumerate(range(0, context_len, block_size)):
        num_valid = min(block_size, context_len - first_position)
        block_scores = head_major @ k_pool[block_table[index]][:, None, :num_valid].swapaxes(-1, -2) * scale
        visible = np.arange(first_position, first_position + num_valid) <= query_positions[:, None]
        running_max = np.maximum(running_max, np.where(visible, block_scores, -np.inf).max(axis=-1))
""",
        killed_by="test_task_5_reads_one_block_at_a_time",
        breaks="paged_attention_online: Each block is read once, for all queries together",
    ),
    Mutant(
        name="reads-the-padding",
        story="Walks over the whole table, and gives what is past the context no weight.",
        replace="        num_valid = min(block_size, context_len - first_position)\n",
        by="""        num_valid = min(block_size, context_len - first_position)
        k_pool[block_table[-1]]
""",
        killed_by="test_task_5_reads_one_block_at_a_time",
        breaks="paged_attention_online: only for the blocks that hold the context",
    ),
    Mutant(
        name="reads-before-it-checks",
        story="Touches the first block to see its shape, and checks the arguments then.",
        replace="""    check_attention_inputs(queries, k_pool, v_pool, block_table, context_len)
    num_query_tokens, num_heads, head_dim = queries.shape
    _, num_kv_heads,""",
        by="""    k_pool[block_table[0]]
    check_attention_inputs(queries, k_pool, v_pool, block_table, context_len)
    num_query_tokens, num_heads, head_dim = queries.shape
    _, num_kv_heads,""",
        killed_by="test_task_5_nothing_is_read_before_the_check",
        breaks="paged_attention_online: Raises ValueError as check_attention_inputs does, before it reads a block",
    ),
    Mutant(
        name="online-keeps-every-block",
        story="Reads one block at a time, and keeps a copy of each.",
        replace="        running_max = new_max\n",
        by="        running_max = new_max\n"
           "        kept = [] if index == 0 else kept  # noqa: F821\n"
           "        kept.append((block_keys.copy(), block_scores))\n",
        killed_by="test_task_5_memory_does_not_grow_with_the_context",
        breaks="paged_attention_online: Neither K/V nor scores are kept, so memory does not grow with context_len",
    ),
    Mutant(
        name="rows-counted-by-context",
        story="Steps through the queries by context_lens: right as long as every request prefills its whole prompt.",
        replace="        start += query_len\n",
        by="        start += context_len\n",
        killed_by="test_task_6_prefill_and_decode_in_one_batch",
        breaks="ragged_paged_attention: Request r owns the next query_lens[r] rows of queries",
    ),
    Mutant(
        name="everyone-decodes",
        story="Takes one query row a request, and the chunk loses all but its first.",
        replace="        rows = queries[start:start + query_len]\n",
        by="        rows = queries[start:start + 1]\n",
        killed_by="test_task_6_prefill_and_decode_in_one_batch",
        breaks="ragged_paged_attention: Request r owns the next query_lens[r] rows of queries",
    ),
    Mutant(
        name="a-batch-is-not-scaled",
        story="Calls the attention of one request with scale 1.",
        replace="""block_table, context_len))
        start""",
        by="""block_table, context_len, 1.0))
        start""",
        killed_by="test_task_6_prefill_and_decode_in_one_batch",
        breaks="ragged_paged_attention: with the default scale",
    ),
    Mutant(
        name="an-empty-batch-has-no-shape",
        story="No requests, no rows, and no heads either.",
        replace="else np.zeros(queries.shape)\n",
        by="else np.zeros(0)\n",
        killed_by="test_task_6_an_empty_batch",
        breaks="ragged_paged_attention: a batch of no requests gives an empty one",
    ),
    Mutant(
        name="no-tables-no-questions",
        story="Returns an empty result before it has looked at anything else; the rows and lengths are dropped.",
        replace="    # TASK 6: ragged_paged_attention\n",
        by="""    # TASK 6: ragged_paged_attention
    if not block_tables:
        return np.zeros((0, *queries.shape[1:]))
""",
        killed_by="test_task_6_lengths_that_disagree_are_refused",
        breaks=("ragged_paged_attention: if there are not as many tables, query_lens and context_lens",
                "ragged_paged_attention: if the query_lens do not add up to the rows of queries"),
    ),
    Mutant(
        name="query-lens-are-not-added-up",
        story="Trusts query_lens; rows that nobody owns are dropped without a word.",
        replace="    if sum(query_lens) != queries.shape[0]:\n",
        by="    if sum(query_lens) > queries.shape[0]:\n",
        killed_by="test_task_6_lengths_that_disagree_are_refused",
        breaks="ragged_paged_attention: if the query_lens do not add up to the rows of queries",
    ),
    Mutant(
        name="says-only-the-sum",
        story="The message has what the query_lens add up to, and not how many rows there are.",
        replace="                         f\"but there are {queries.shape[0]} query tokens\")\n",
        by="                         \"which is not the number of query tokens\")\n",
        killed_by="test_task_6_lengths_that_disagree_are_refused",
        breaks="ragged_paged_attention: the message holds both numbers",
    ),
    Mutant(
        name="a-decode-takes-what-there-is",
        story="Cuts a context to what its table holds, where a token is decoded.",
        replace="        rows = queries[start:start + query_len]\n",
        by="""        rows = queries[start:start + query_len]
        if query_len == 1:
            context_len = min(context_len, len(block_table) * k_pool.shape[2])
""",
        killed_by="test_task_6_lengths_that_disagree_are_refused",
        breaks="ragged_paged_attention: if one request's arguments fail check_attention_inputs",
    ),
    Mutant(
        name="nobody-may-ask-nothing",
        story="Skips a request without queries; a scheduler that plans one has a bug.",
        replace="    for request_index, query_len in enumerate(query_lens):\n",
        by="""    asking = [r for r, query_len in enumerate(query_lens) if query_len != 0]
    block_tables, context_lens = [block_tables[r] for r in asking], [context_lens[r] for r in asking]
    query_lens = [query_lens[r] for r in asking]
    for request_index, query_len in enumerate(query_lens):
""",
        killed_by="test_task_6_lengths_that_disagree_are_refused",
        breaks="ragged_paged_attention: if a query_len is below 1",
    ),
    Mutant(
        name="zip-drops-the-rest",
        story="More context_lens than requests: zip stops at the shortest.",
        replace="    if not len(block_tables) == len(query_lens) == len(context_lens):\n",
        by="    if len(block_tables) != len(query_lens):\n",
        killed_by="test_task_6_lengths_that_disagree_are_refused",
        breaks="ragged_paged_attention: Raises ValueError if there are not as many tables, query_lens and context_lens",
    ),
]
