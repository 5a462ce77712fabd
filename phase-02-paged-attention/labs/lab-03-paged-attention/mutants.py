"""Wrong solutions of lab 2.3, each with the test that must catch it."""

from course.mutants import Mutant

MUTANTS = [
    Mutant(
        name="slots-run-on-from-the-first-block",
        story="Looks up only the first block and counts on from there, as if the blocks of a table were adjacent.",
        replace="    return block_ids * block_size + positions % block_size\n",
        by="    return block_ids[0] * block_size + first_position % block_size + np.arange(num_tokens)\n",
        killed_by="test_task_1_positions_go_through_the_table",
        breaks=("invariant 1: Position p is in block table[p // block_size]",
                "slot_mapping: Position p is in block block_table[p // block_size]"),
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
        story="Returns an empty array of floats, which cannot be used as an index.",
        replace="    positions = np.arange(first_position,",
        by="""    if num_tokens == 0:
        return np.zeros(0)
    positions = np.arange(first_position,""",
        killed_by="test_task_1_slots_are_int64",
        breaks="slot_mapping: without tokens it is empty but still int64",
    ),
    Mutant(
        name="no-slots-of-no-table-are-floats",
        story="Leaves the type to numpy, which makes an array of ints from ints, but of floats from an empty list.",
        replace="    block_ids = np.asarray(block_table, dtype=np.int64)",
        by="    block_ids = np.array(list(map(int, block_table)))",
        killed_by="test_task_1_slots_are_int64",
        breaks="slot_mapping: without tokens it is empty but still int64",
    ),
    Mutant(
        name="slots-of-32-bits",
        story="Uses int32, which is large enough for block ids but not for slots.",
        replace="    return block_ids * block_size + positions % block_size\n",
        by="    return (block_ids * block_size + positions % block_size).astype(np.int32)\n",
        killed_by="test_task_1_slots_are_int64",
        breaks="slot_mapping: the slots in the order of the positions, an int64 array [num_tokens]",
    ),
    Mutant(
        name="a-table-of-32-bits-stays-one",
        story="Converts the ids of a list to int64, but multiplies the ids of an int32 array in 32 bits.",
        replace="np.asarray(block_table, dtype=np.int64)",
        by="np.asarray(block_table, dtype=None if len(block_table) else np.int64)",
        killed_by="test_task_1_slots_are_int64",
        breaks="slot_mapping: block_table is a list of ints, or an array of int32",
    ),
    Mutant(
        name="fewer-than-no-tokens",
        story="Treats a negative number of tokens as 0 before the check.",
        replace="    check_slot_mapping_inputs(block_table, first_position,",
        by="""    num_tokens = max(num_tokens, 0)
    check_slot_mapping_inputs(block_table, first_position,""",
        killed_by="test_task_1_negative_numbers_are_refused",
        breaks="slot_mapping: ValueError if check_slot_mapping_inputs rejects the arguments",
    ),
    Mutant(
        name="no-tokens-fit-anywhere",
        story="Returns before the check if there are no tokens.",
        replace="    check_slot_mapping_inputs(block_table, first_position,",
        by="""    if num_tokens == 0:
        return np.zeros(0, dtype=np.int64)
    check_slot_mapping_inputs(block_table, first_position,""",
        killed_by="test_task_1_a_table_too_short_is_refused",
        breaks="slot_mapping: even if there are no tokens",
    ),
    Mutant(
        name="negative-ids-wrap-around",
        story="Does not call the check: -9 gives a negative slot, which numpy counts from the end of the pool.",
        replace="    check_slot_mapping_inputs(block_table, first_position, num_tokens, block_size)\n",
        by="",
        killed_by="test_task_1_negative_numbers_are_refused",
        breaks="slot_mapping: ValueError if check_slot_mapping_inputs rejects the arguments",
    ),
    Mutant(
        name="looks-at-the-table-before-the-step",
        story="Checks all positions from 0 on, and rejects a -1 before the first block of this step.",
        replace="    check_slot_mapping_inputs(block_table, first_position, num_tokens, block_size)\n",
        by="    check_slot_mapping_inputs(block_table, 0, first_position + num_tokens, block_size)\n",
        killed_by="test_task_1_padding_and_no_tokens",
        breaks="slot_mapping: the same slots whatever the table contains before and after these positions",
    ),
    Mutant(
        name="looks-at-the-whole-table",
        story="Rejects a -1 anywhere in the table, although it may be padding.",
        replace="    positions = np.arange(first_position,",
        by="""    if len(block_table) and min(block_table) < 0:
        raise ValueError(f"slot_mapping: block id {min(block_table)}")
    positions = np.arange(first_position,""",
        killed_by="test_task_1_padding_and_no_tokens",
        breaks="slot_mapping: those entries are padding",
    ),
    Mutant(
        name="write-goes-into-a-copy",
        story="transpose().reshape() of a pool is a copy, so the assignment is silently lost.",
        replace="    k_pool[block_ids, :, offsets] = keys\n",
        by="    k_pool.transpose(0, 2, 1, 3).reshape(-1, *k_pool.shape[1::2])[slots] = keys\n",
        killed_by="test_task_2_each_token_lands_in_its_slot",
        breaks="write_kv: those slots hold the new vectors, in the pools themselves",
    ),
    Mutant(
        name="write-by-the-wrong-layout",
        story="reshape() without the transpose is a view, but its rows mix kv heads and offsets.",
        replace="    v_pool[block_ids, :, offsets] = values\n",
        by="    v_pool.reshape(-1, *v_pool.shape[1::2])[slots] = values\n",
        killed_by="test_task_2_nothing_else_changes",
        breaks=("invariant 2: A write changes its slots and no other number in the pools",
                "write_kv: every other number in the pools is unchanged"),
    ),
    Mutant(
        name="write-cleans-up",
        story="Replaces NaN by numbers in the blocks that it writes to.",
        replace="    k_pool[block_ids, :, offsets] = keys\n",
        by="""    k_pool[block_ids] = np.nan_to_num(k_pool[block_ids])
    k_pool[block_ids, :, offsets] = keys
""",
        killed_by="test_task_2_nothing_else_changes",
        breaks="invariant 2: no other number in the pools",
    ),
    Mutant(
        name="write-nothing-is-an-error",
        story="An empty list becomes an array of floats, which numpy does not accept as an index.",
        replace="    slots = np.asarray(slots, dtype=np.int64)\n",
        by="    slots = np.asarray(slots)\n",
        killed_by="test_task_2_nothing_else_changes",
        breaks="write_kv: it may be empty",
    ),
    Mutant(
        name="write-in-the-order-of-the-slots",
        story="Sorts the slots to write memory in order, but does not reorder the tokens.",
        replace="""    block_ids, offsets = slots // block_size, slots % block_size
    # With two index arrays""",
        by="""    slots = np.sort(slots)
    block_ids, offsets = slots // block_size, slots % block_size
    # With two index arrays""",
        killed_by="test_task_2_each_token_lands_in_its_slot",
        breaks="write_kv: distinct slots in any order",
    ),
    Mutant(
        name="write-unchecked",
        story="Does not call the check: numpy broadcasts an array of a wrong shape, or raises its own error.",
        replace="    check_write_inputs(k_pool, v_pool, keys, values, slots)\n",
        by="",
        killed_by="test_task_2_wrong_shapes_are_refused_before_the_first_write",
        breaks="write_kv: ValueError if check_write_inputs rejects the arguments",
    ),
    Mutant(
        name="write-lets-numpy-broadcast",
        story="Broadcasts the keys over the slots before the check: one token's keys are written to every slot.",
        replace="    check_write_inputs(k_pool, v_pool, keys, values, slots)\n",
        by="""    keys = np.broadcast_to(keys, (len(slots), *k_pool.shape[1::2]))
    check_write_inputs(k_pool, v_pool, keys, values, slots)
""",
        killed_by="test_task_2_wrong_shapes_are_refused_before_the_first_write",
        breaks="write_kv: keys and values are [len(slots), num_kv_heads, head_dim]",
    ),
    Mutant(
        name="write-checks-each-slot-as-it-comes",
        story="Checks and writes one token at a time: the tokens before an invalid one are already written.",
        replace="    check_write_inputs(k_pool, v_pool, keys, values, slots)\n",
        by="""    for i, slot in enumerate(slots):
        check_write_inputs(k_pool, v_pool, keys[i:i + 1], values[i:i + 1], [slot])
        k_pool[slot // k_pool.shape[2], :, slot % k_pool.shape[2]] = keys[i]
""",
        killed_by="test_task_2_slots_out_of_range_are_refused_before_the_first_write",
        breaks=("invariant 6: A call that raises has changed nothing",
                "write_kv: nothing is written then"),
    ),
    Mutant(
        name="write-counts-slots-from-the-end",
        story="Accepts slot -1, which in numpy is the last slot and belongs to another request.",
        replace="    check_write_inputs(k_pool, v_pool, keys, values, slots)\n",
        by="""    num_slots = k_pool.shape[0] * k_pool.shape[2]
    slots = [slot + num_slots if slot < 0 else slot for slot in slots]
    check_write_inputs(k_pool, v_pool, keys, values, slots)
""",
        killed_by="test_task_2_slots_out_of_range_are_refused_before_the_first_write",
        breaks="write_kv: ValueError if check_write_inputs rejects the arguments",
    ),
    Mutant(
        name="write-trusts-the-second-pool",
        story="Checks only the keys and k_pool, and assumes that the values have the right shape.",
        replace="    check_write_inputs(k_pool, v_pool, keys, values, slots)\n",
        by="    check_write_inputs(k_pool, k_pool, keys, keys, slots)\n",
        killed_by="test_task_2_wrong_shapes_are_refused_before_the_first_write",
        breaks="write_kv: both pools are [num_blocks, num_kv_heads, block_size, head_dim]",
    ),
    Mutant(
        name="write-checks-the-values-too-late",
        story="Checks and writes the keys, then checks and writes the values.",
        replace="""    check_write_inputs(k_pool, v_pool, keys, values, slots)
    block_size = k_pool.shape[2]
    slots = np.asarray(slots, dtype=np.int64)
    block_ids, offsets = slots // block_size, slots % block_size
    # With two index arrays and a slice between them, numpy puts their common axis, the token axis, first.
    k_pool[block_ids, :, offsets] = keys
""",
        by="""    check_write_inputs(k_pool, k_pool, keys, keys, slots)
    block_size = k_pool.shape[2]
    slots = np.asarray(slots, dtype=np.int64)
    block_ids, offsets = slots // block_size, slots % block_size
    k_pool[block_ids, :, offsets] = keys
    check_write_inputs(k_pool, v_pool, keys, values, slots)
""",
        killed_by="test_task_2_wrong_shapes_are_refused_before_the_first_write",
        breaks=("invariant 6: A call that raises has changed nothing",
                "write_kv: nothing is written then"),
    ),
    Mutant(
        name="write-counts-the-numbers",
        story="Accepts keys of any shape if the number of elements is right.",
        replace="    check_write_inputs(k_pool, v_pool, keys, values, slots)\n",
        by="""    keys = keys.reshape(-1, *k_pool.shape[1::2])
    check_write_inputs(k_pool, v_pool, keys, values, slots)
""",
        killed_by="test_task_2_wrong_shapes_are_refused_before_the_first_write",
        breaks="write_kv: keys and values are [len(slots), num_kv_heads, head_dim]",
    ),
    Mutant(
        name="gather-returns-whole-blocks",
        story="Takes the blocks and forgets to cut the last one at num_tokens.",
        replace="    return pool[slots // block_size, :, slots % block_size]\n",
        by="    whole = pool[list(block_table[:-(-num_tokens // block_size)])].transpose(0, 2, 1, 3)\n"
           "    return whole.reshape(-1, *whole.shape[2:])\n",
        killed_by="test_task_3_the_rest_of_the_last_block_stays_out",
        breaks="gather_kv: nothing else: not the rest of the last block",
    ),
    Mutant(
        name="gather-checks-the-padding",
        story="Checks the whole table, and rejects an id in an entry that is never read.",
        replace="    check_gather_inputs(pool, block_table, num_tokens)\n",
        by="    check_gather_inputs(pool, block_table, len(block_table) * pool.shape[2])\n",
        killed_by="test_task_3_the_rest_of_the_last_block_stays_out",
        breaks="gather_kv: no block of the table's padding, which may be -1",
    ),
    Mutant(
        name="gather-leaves-it-to-numpy",
        story="Does not call the check: slot_mapping rejects a short table, but for a block that the pool does not "
              "have, numpy raises IndexError.",
        replace="    check_gather_inputs(pool, block_table, num_tokens)\n",
        by="",
        killed_by="test_task_3_bad_tables_are_refused",
        breaks="gather_kv: ValueError if check_gather_inputs rejects the arguments",
    ),
    Mutant(
        name="gather-takes-a-short-table",
        story="Returns fewer tokens if the table is too short.",
        replace="    check_gather_inputs(pool, block_table, num_tokens)\n",
        by="""    num_tokens = min(num_tokens, len(block_table) * pool.shape[2])
    check_gather_inputs(pool, block_table, num_tokens)
""",
        killed_by="test_task_3_bad_tables_are_refused",
        breaks="gather_kv: ValueError if check_gather_inputs rejects the arguments",
    ),
    Mutant(
        name="gather-sorts-the-table",
        story="Reads the blocks in the order of the pool instead of the order of the table.",
        replace="    slots = slot_mapping(block_table, 0, num_tokens, block_size)\n",
        by="    slots = slot_mapping(sorted(block_table), 0, num_tokens, block_size)\n",
        killed_by="test_task_4_places_and_garbage_do_not_show",
        breaks="invariant 5: which physical blocks hold the context, on their order",
    ),
    Mutant(
        name="gather-cleans-up",
        story="Replaces infinite numbers, and so hides an error in a request.",
        replace="    return pool[slots // block_size, :, slots % block_size]\n",
        by="    return np.nan_to_num(pool[slots // block_size, :, slots % block_size])\n",
        killed_by="test_task_3_the_result_is_an_array_of_its_own",
        breaks="gather_kv: each number as it is in the pool",
    ),
    Mutant(
        name="gather-gives-out-the-pool",
        story="Returns a slice of the pool for one block: a caller that changes it changes the cache.",
        replace="    return pool[slots // block_size, :, slots % block_size]\n",
        by="""    if 0 < num_tokens <= block_size:
        return pool[block_table[0], :, :num_tokens].swapaxes(0, 1)
    return pool[slots // block_size, :, slots % block_size]
""",
        killed_by="test_task_3_the_result_is_an_array_of_its_own",
        breaks="gather_kv: a new array: a write to it does not change the pool",
    ),
    Mutant(
        name="gather-forgets-that-heads-come-first",
        story="Reshapes [kv_heads, block_size, head_dim] as if it were [block_size, kv_heads, head_dim].",
        replace="    return pool[slots // block_size, :, slots % block_size]\n",
        by="    blocks = pool[list(block_table[:-(-num_tokens // block_size)])]\n"
           "    return blocks.reshape(-1, pool.shape[1], pool.shape[3])[:num_tokens]\n",
        killed_by="test_task_3_positions_come_back_in_order",
        breaks="gather_kv: the vectors of these positions in order, [num_tokens, num_kv_heads, head_dim]",
    ),
    Mutant(
        name="chunk-stands-at-the-start",
        story="Uses the mask of a whole prompt: query i sees positions 0 to i, wherever the chunk is.",
        replace="    sees = np.arange(context_len) <= query_positions[:, None]",
        by="    sees = np.arange(context_len) <= np.arange(num_query_tokens)[:, None]",
        killed_by="test_task_4_a_chunk_is_causal",
        breaks="paged_attention: query i is at position context_len - num_query_tokens + i",
    ),
    Mutant(
        name="a-query-does-not-see-itself",
        story="Off by one in the mask: < instead of <=.",
        replace="    sees = np.arange(context_len) <= query_positions[:, None]",
        by="    sees = np.arange(context_len) < query_positions[:, None]",
        killed_by="test_task_4_decode_equals_dense",
        breaks=("invariant 4: A query sees its own position",
                "paged_attention: sees that position and all before it"),
    ),
    Mutant(
        name="values-are-added-up",
        story="Forgets to divide by the sum of the weights: right only if a query sees one position.",
        replace="    weights /= weights.sum(axis=-1, keepdims=True)\n",
        by="",
        killed_by="test_task_4_decode_equals_dense",
        breaks="paged_attention: the sum of the visible values, weighted by the softmax of the scores",
    ),
    Mutant(
        name="heads-are-interleaved",
        story="Head h reads kv head h % num_kv_heads, which is right only if num_heads equals num_kv_heads.",
        replace="    grouped = queries.reshape(num_query_tokens, num_kv_heads, num_heads // num_kv_heads, head_dim)\n",
        by="    grouped = queries.reshape(num_query_tokens, -1, num_kv_heads, head_dim).swapaxes(1, 2)\n",
        killed_by="test_task_4_heads_are_grouped",
        breaks="paged_attention: head h reads kv head h // group",
    ),
    Mutant(
        name="checks-nothing",
        story="Does not call check_attention_inputs; numpy raises its own error, or none.",
        replace="""    check_attention_inputs(queries, k_pool, v_pool, block_table, context_len)
    num_query_tokens, num_heads, head_dim = queries.shape
    num_kv_heads = """,
        by="""    num_query_tokens, num_heads, head_dim = queries.shape
    num_kv_heads = """,
        killed_by="test_task_4_bad_input_is_refused",
        breaks="paged_attention: ValueError if check_attention_inputs rejects the arguments",
    ),
    Mutant(
        name="scores-in-float32",
        story="Computes in float32: half the memory, but only seven digits.",
        replace="grouped, keys) * scale\n",
        by="grouped, keys).astype(np.float32) * np.float32(scale)\n",
        killed_by="test_task_4_decode_equals_dense",
        breaks="module: Arithmetic is numpy's default, float64",
    ),
    Mutant(
        name="minus-a-billion-for-infinity",
        story="Uses a large negative number for the mask, but a real score may be lower.",
        replace="    scores = np.where(sees, scores, -np.inf)\n",
        by="    scores = np.where(sees, scores, -1e9)\n",
        killed_by="test_task_4_huge_scores_do_not_overflow",
        breaks="paged_attention: sees that position and all before it",
    ),
    Mutant(
        name="one-maximum-for-all",
        story="Subtracts the largest score of all queries; a query with far lower scores divides 0 by 0.",
        replace="scores.max(axis=-1, keepdims=True))",
        by="scores.max())",
        killed_by="test_task_4_huge_scores_do_not_overflow",
        breaks="paged_attention: even if the scores of two queries or two heads are far apart",
    ),
    Mutant(
        name="one-maximum-for-all-heads",
        story="Subtracts a query's largest score over all heads; a head with far lower scores divides 0 by 0.",
        replace="scores.max(axis=-1, keepdims=True))",
        by="scores.max(axis=(0, 1, 3), keepdims=True))",
        killed_by="test_task_4_huge_scores_do_not_overflow",
        breaks="paged_attention: even if the scores of two queries or two heads are far apart",
    ),
    Mutant(
        name="exp-of-the-raw-scores",
        story="Does not subtract the largest score: right for small scores, infinite from 710 on.",
        replace="np.exp(scores - scores.max(axis=-1, keepdims=True))",
        by="np.exp(scores)",
        killed_by="test_task_4_huge_scores_do_not_overflow",
        breaks="paged_attention: the right numbers for finite scores of any size",
    ),
    Mutant(
        name="scales-the-callers-queries",
        story="Multiplies the queries in place, which changes the caller's array.",
        replace="    grouped = queries.reshape",
        by="""    queries *= scale
    scale = 1.0
    grouped = queries.reshape""",
        killed_by="test_task_4_decode_equals_dense",
        breaks="paged_attention: nothing is written to the arguments",
    ),
    Mutant(
        name="zero-is-no-scale",
        story="`scale or default` treats a scale of 0.0 as None.",
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
        story="Reads the whole last block and gives slots after the context weight 0; 0 * NaN is NaN.",
        replace="        num_valid = min(block_size, context_len - first_position)\n",
        by="        num_valid = block_size\n",
        killed_by="test_task_5_places_and_garbage_do_not_show",
        breaks=("invariant 3: Numbers outside a request's context do not affect its result",
                "module: No result may depend on either"),
    ),
    Mutant(
        name="accumulator-keeps-its-old-scale",
        story="Rescales the sum when the maximum grows, but not the accumulator.",
        replace="        accumulator = accumulator * shrink[..., None] + block_weights @ block_values\n",
        by="        accumulator = accumulator + block_weights @ block_values\n",
        killed_by="test_task_5_the_sums_follow_the_maximum",
        breaks=("paged_attention_online: what paged_attention returns",
                "paged_attention_online: the sum of exp(score - largest) * value so far"),
    ),
    Mutant(
        name="maximum-of-the-block-only",
        story="Uses the maximum of the block as the new maximum: if it falls, exp(old - new) overflows.",
        replace="        new_max = np.maximum(running_max, block_scores.max(axis=-1))\n",
        by="        new_max = block_scores.max(axis=-1)\n",
        killed_by="test_task_5_huge_scores_do_not_overflow",
        breaks="paged_attention_online: the largest score so far",
    ),
    Mutant(
        name="no-maximum-at-all",
        story="Uses exp of the raw scores: right for small scores, infinite from 710 on.",
        replace="        new_max = np.maximum(running_max, block_scores.max(axis=-1))\n",
        by="        new_max = np.zeros_like(running_max)\n",
        killed_by="test_task_5_huge_scores_do_not_overflow",
        breaks="paged_attention_online: the right numbers for finite scores of any size",
    ),
    Mutant(
        name="the-largest-so-far-is-zero",
        story="Starts with 0 as the largest score; if all scores are far below 0, all weights are 0.",
        replace="    running_max = np.full(head_major.shape[:3], -np.inf)",
        by="    running_max = np.zeros(head_major.shape[:3])",
        killed_by="test_task_5_huge_scores_do_not_overflow",
        breaks="paged_attention_online: the right numbers for finite scores of any size",
    ),
    Mutant(
        name="one-running-maximum-per-group",
        story="Keeps one maximum for all heads of a kv head; a head with far lower scores divides 0 by 0.",
        replace="        new_max = np.maximum(running_max, block_scores.max(axis=-1))\n",
        by="        new_max = np.maximum(running_max, block_scores.max(axis=(1, 3), keepdims=True)[..., 0])\n",
        killed_by="test_task_5_huge_scores_do_not_overflow",
        breaks="paged_attention_online: even if the scores of two queries or two heads are far apart",
    ),
    Mutant(
        name="online-scales-the-callers-queries",
        story=("Multiplies the queries in place, to do it once instead of once per block, and changes the caller's "
               "array."),
        replace="    head_major = queries.reshape",
        by="""    queries *= scale
    scale = 1.0
    head_major = queries.reshape""",
        killed_by="test_task_5_decode_equals_dense",
        breaks="paged_attention_online: nothing is written to the arguments",
    ),
    Mutant(
        name="online-in-name-only",
        story="Reads all blocks up to the current block at once, although it needs only the current block.",
        replace="        block_keys = k_pool[block_table[index]][:, None, :num_valid]",
        by="        block_keys = k_pool[list(block_table[:index + 1])][index, :, None, :num_valid]",
        killed_by="test_task_5_reads_one_block_at_a_time",
        breaks=("paged_attention_online: without gathering",
                "paged_attention_online: each pool was read only as pool[block_id], or a part of that"),
    ),
    Mutant(
        name="the-maximum-first",
        story="Makes two passes, one for the largest score and one for the sums: right, but it reads every key twice.",
        replace="    accumulator = np.zeros(head_major.shape)\n",
        by="""    accumulator = np.zeros(head_major.shape)
    for index, first_position in enumerate(range(0, context_len, block_size)):
        num_valid = min(block_size, context_len - first_position)
        block_scores = head_major @ k_pool[block_table[index]][:, None, :num_valid].swapaxes(-1, -2) * scale
        visible = np.arange(first_position, first_position + num_valid) <= query_positions[:, None]
        running_max = np.maximum(running_max, np.where(visible, block_scores, -np.inf).max(axis=-1))
""",
        killed_by="test_task_5_reads_one_block_at_a_time",
        breaks="paged_attention_online: each of these blocks was read once, for all queries together",
    ),
    Mutant(
        name="reads-the-padding",
        story="Also reads the last block of the table, which may be padding.",
        replace="        num_valid = min(block_size, context_len - first_position)\n",
        by="""        num_valid = min(block_size, context_len - first_position)
        k_pool[block_table[-1]]
""",
        killed_by="test_task_5_reads_one_block_at_a_time",
        breaks="paged_attention_online: for blocks that hold the context",
    ),
    Mutant(
        name="reads-before-it-checks",
        story="Reads the first block to get its shape before it checks the arguments.",
        replace="""    check_attention_inputs(queries, k_pool, v_pool, block_table, context_len)
    num_query_tokens, num_heads, head_dim = queries.shape
    _, num_kv_heads,""",
        by="""    k_pool[block_table[0]]
    check_attention_inputs(queries, k_pool, v_pool, block_table, context_len)
    num_query_tokens, num_heads, head_dim = queries.shape
    _, num_kv_heads,""",
        killed_by="test_task_5_nothing_is_read_before_the_check",
        breaks="paged_attention_online: ValueError if check_attention_inputs rejects the arguments, before a block "
               "is read",
    ),
    Mutant(
        name="online-keeps-every-block",
        story="Reads one block at a time, and keeps a copy of each.",
        replace="        running_max = new_max\n",
        by="        running_max = new_max\n"
           "        kept = [] if index == 0 else kept  # noqa: F821\n"
           "        kept.append((block_keys.copy(), block_scores))\n",
        killed_by="test_task_5_memory_does_not_grow_with_the_context",
        breaks="paged_attention_online: no K/V, scores or mask of the whole context were kept",
    ),
    Mutant(
        name="online-masks-the-whole-context",
        story="Computes a mask of the whole context before the loop over the blocks.",
        replace="""    running_max = np.full(head_major.shape[:3], -np.inf)""",
        by="""    all_visible = np.arange(context_len) <= query_positions[:, None]
    running_max = np.full(head_major.shape[:3], -np.inf)""",
        killed_by="test_task_5_memory_does_not_grow_with_the_context",
        breaks="paged_attention_online: memory does not grow with context_len",
    ),
    Mutant(
        name="rows-counted-by-context",
        story="Advances through the queries by context_lens: right only if every request prefills its whole prompt.",
        replace="        start += query_len\n",
        by="        start += context_len\n",
        killed_by="test_task_6_prefill_and_decode_in_one_batch",
        breaks="ragged_paged_attention: Request r owns the next query_lens[r] rows of queries",
    ),
    Mutant(
        name="everyone-decodes",
        story="Takes one query row per request, so a chunk loses all its rows but the first.",
        replace="        rows = queries[start:start + query_len]\n",
        by="        rows = queries[start:start + 1]\n",
        killed_by="test_task_6_prefill_and_decode_in_one_batch",
        breaks="ragged_paged_attention: Request r owns the next query_lens[r] rows of queries",
    ),
    Mutant(
        name="a-batch-in-the-callers-rows",
        story="Writes each request's result over its queries to save an array.",
        replace="        outputs.append(paged_attention_online(rows, k_pool, v_pool, block_table, context_len))\n",
        by="""        rows[:] = paged_attention_online(rows, k_pool, v_pool, block_table, context_len)
        outputs.append(rows)
""",
        killed_by="test_task_6_prefill_and_decode_in_one_batch",
        breaks="ragged_paged_attention: nothing is written to the arguments",
    ),
    Mutant(
        name="a-batch-is-not-scaled",
        story="Calls the attention of one request with scale 1.",
        replace="""block_table, context_len))
        start""",
        by="""block_table, context_len, 1.0))
        start""",
        killed_by="test_task_6_prefill_and_decode_in_one_batch",
        breaks="ragged_paged_attention: what paged_attention returns for its request, with the default scale",
    ),
    Mutant(
        name="a-batch-in-the-type-of-its-queries",
        story="Returns the result in the type of the queries: float32 in, float32 out.",
        replace="    return np.concatenate(outputs) if outputs",
        by="    return np.concatenate(outputs).astype(queries.dtype) if outputs",
        killed_by="test_task_6_prefill_and_decode_in_one_batch",
        breaks="ragged_paged_attention: a float64 array with the shape of queries, even if queries is float32",
    ),
    Mutant(
        name="a-padded-table-is-a-mistake",
        story="Rejects a table that contains a block twice, although the second entry may be padding.",
        replace="    outputs = []\n",
        by="""    for block_table in block_tables:
        if len(set(block_table)) < len(block_table):
            raise ValueError(f"ragged_paged_attention: table {block_table} names a block twice")
    outputs = []
""",
        killed_by="test_task_6_sharing_is_by_table_only",
        breaks="ragged_paged_attention: tables may be padded",
    ),
    Mutant(
        name="an-empty-batch-has-no-shape",
        story="Returns an array without a head axis if there are no requests.",
        replace="else np.zeros(queries.shape)\n",
        by="else np.zeros(0)\n",
        killed_by="test_task_6_an_empty_batch",
        breaks="ragged_paged_attention: without requests it has no rows",
    ),
    Mutant(
        name="no-tables-no-questions",
        story="Without tables, returns an empty result before all checks, whatever the rows and lengths are.",
        replace="    # TASK 6: ragged_paged_attention\n",
        by="""    # TASK 6: ragged_paged_attention
    if not block_tables:
        return np.zeros((0, *queries.shape[1:]))
""",
        killed_by="test_task_6_lengths_that_disagree_are_refused",
        breaks=("ragged_paged_attention: ValueError if the numbers of tables, query_lens and context_lens differ",
                "ragged_paged_attention: if the query_lens do not add up to the rows of queries"),
    ),
    Mutant(
        name="no-rows-no-questions",
        story="Returns an empty result for no rows, whatever the tables and lengths are.",
        replace="    if not len(block_tables) == len(query_lens) == len(context_lens):\n",
        by="""    if len(queries) == 0:
        return np.zeros(queries.shape)
    if not len(block_tables) == len(query_lens) == len(context_lens):
""",
        killed_by="test_task_6_lengths_that_disagree_are_refused",
        breaks="ragged_paged_attention: even if there are no rows",
    ),
    Mutant(
        name="query-lens-are-not-added-up",
        story="Trusts query_lens; rows that belong to no request are silently dropped.",
        replace="    if sum(query_lens) != queries.shape[0]:\n",
        by="    if sum(query_lens) > queries.shape[0]:\n",
        killed_by="test_task_6_lengths_that_disagree_are_refused",
        breaks="ragged_paged_attention: if the query_lens do not add up to the rows of queries",
    ),
    Mutant(
        name="says-only-the-sum",
        story="The message contains the sum of the query_lens, but not the number of rows.",
        replace="                         f\"but there are {queries.shape[0]} query tokens\")\n",
        by="                         \"which is not the number of query tokens\")\n",
        killed_by="test_task_6_lengths_that_disagree_are_refused",
        breaks="ragged_paged_attention: the message contains both numbers",
    ),
    Mutant(
        name="a-decode-takes-what-there-is",
        story="Shortens the context of a decode step to the slots of its table.",
        replace="        rows = queries[start:start + query_len]\n",
        by="""        rows = queries[start:start + query_len]
        if query_len == 1:
            context_len = min(context_len, len(block_table) * k_pool.shape[2])
""",
        killed_by="test_task_6_lengths_that_disagree_are_refused",
        breaks="ragged_paged_attention: ValueError if check_attention_inputs rejects the arguments of one of the "
               "requests",
    ),
    Mutant(
        name="nobody-may-ask-nothing",
        story="Skips a request without queries, which hides a bug in the scheduler.",
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
        name="says-only-that-it-is-too-small",
        story="The message does not contain the query_len.",
        replace="query_lens[{request_index}] is {query_len}, must be at least 1",
        by="query_lens must be positive",
        killed_by="test_task_6_lengths_that_disagree_are_refused",
        breaks="ragged_paged_attention: the message contains that number",
    ),
    Mutant(
        name="zip-drops-the-rest",
        story="Accepts more context_lens than requests, because zip stops at the shortest list.",
        replace="    if not len(block_tables) == len(query_lens) == len(context_lens):\n",
        by="    if len(block_tables) != len(query_lens):\n",
        killed_by="test_task_6_lengths_that_disagree_are_refused",
        breaks="ragged_paged_attention: ValueError if the numbers of tables, query_lens and context_lens differ",
    ),
]
