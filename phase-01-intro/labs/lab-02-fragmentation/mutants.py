from course.mutants import Mutant

MUTANTS = [
    Mutant(
        name="waste-is-measured-against-the-tokens",
        story="Divides the empty slots by the used slots, not by all slots: 4.0 instead of 0.8.",
        replace="    return 1.0 - sum(lengths) / (max_len * len(lengths))\n",
        by="    return (max_len * len(lengths) - sum(lengths)) / sum(lengths)\n",
        killed_by="test_task_1_waste_of_a_small_example",
        breaks="waste_of_reserving: Return the share of slots, 0.0 to 1.0, that never hold a token",
    ),
    Mutant(
        name="reserving-takes-any-length",
        story="Does not compare the lengths with max_len: for a request of 11 in 10 slots the waste is negative.",
        replace="""    check_lengths(lengths, max_len)
    return 1.0""",
        by="""    check_lengths(lengths)
    return 1.0""",
        killed_by="test_task_1_impossible_requests_are_refused",
        breaks="waste_of_reserving: Raises ValueError for lengths that check_lengths(lengths, max_len) rejects",
    ),
    Mutant(
        name="reservation-calls-all-idle-slots-internal",
        story="Counts all empty slots as internal, even those that will be used.",
        replace="        reserved += request.num_output_tokens - generated\n"
                "        internal += max_len - request.num_tokens\n",
        by="        internal += max_len - request.num_prompt_tokens - generated\n",
        killed_by="test_task_1_split_of_a_single_request",
        breaks=("split_reservation: Count the used, the reserved and the internal slots of all requests at one moment",
                "split_reservation: the number of slots of each kind"),
    ),
    Mutant(
        name="reservation-of-no-requests-is-refused",
        story="Raises if there are no requests, but that is not an error.",
        replace="    used = reserved = internal = 0\n",
        by="""    if not requests:
        raise ValueError("no requests")
    used = reserved = internal = 0
""",
        killed_by="test_task_1_split_at_the_bounds",
        breaks="split_reservation: all three numbers are 0 if there are no requests",
    ),
    Mutant(
        name="reservation-takes-any-progress",
        story="Checks only the lengths: too many generated tokens make the reserved slots negative.",
        replace="    check_progress(requests, num_generated, max_len)\n",
        by="""    check_lengths([request.num_tokens for request in requests] or [1], max_len)
    if len(requests) != len(num_generated):
        raise ValueError(f"{len(requests)} requests, {len(num_generated)} numbers")
""",
        killed_by="test_task_1_impossible_requests_are_refused",
        breaks="split_reservation: ValueError for arguments that check_progress rejects",
    ),
    Mutant(
        name="reservation-wants-a-slot-to-spare",
        story="Rejects a request of exactly max_len tokens.",
        replace="    check_progress(requests, num_generated, max_len)\n",
        by="    check_progress(requests, num_generated, max_len - 1)\n",
        killed_by="test_task_1_split_at_the_bounds",
        breaks="split_reservation: ValueError for arguments that check_progress rejects",
    ),
    Mutant(
        name="reservation-checks-the-prompt-alone",
        story="Does not call the given check, and checks only the prompt: a long answer makes internal negative.",
        replace="    check_progress(requests, num_generated, max_len)\n",
        by="""    if len(requests) != len(num_generated):
        raise ValueError(f"{len(requests)} requests, {len(num_generated)} numbers")
    check_lengths([request.num_prompt_tokens for request in requests] or [1], max_len)
    for request, generated in zip(requests, num_generated):
        if not 0 <= generated <= request.num_output_tokens:
            raise ValueError(f"{generated} generated tokens of {request.num_output_tokens}")
""",
        killed_by="test_task_1_impossible_requests_are_refused",
        breaks="split_reservation: ValueError for arguments that check_progress rejects",
    ),
    Mutant(
        name="reservation-stops-at-the-shorter-list",
        story="Checks nothing: zip ends with the shorter of the two lists, and the other requests are not counted.",
        replace="    check_progress(requests, num_generated, max_len)\n",
        by="",
        killed_by="test_task_1_impossible_requests_are_refused",
        breaks="split_reservation: ValueError for arguments that check_progress rejects",
    ),
    Mutant(
        name="reservation-counts-slots-twice",
        story="Counts all empty slots as internal, so the reserved slots count twice.",
        replace="        internal += max_len - request.num_tokens\n",
        by="        internal += max_len - request.num_prompt_tokens - generated\n",
        killed_by="test_task_1_split_accounts_for_every_slot",
        breaks="invariant 1: the three numbers add up to the size of the reservation",
    ),
    Mutant(
        name="blocks-needed-always-adds-one",
        story="Returns num_tokens // block_size + 1: one block too many if the last block is exactly full.",
        replace="    return (num_tokens + block_size - 1) // block_size\n",
        by="    return num_tokens // block_size + 1\n",
        killed_by="test_task_2_blocks_needed_at_the_edges",
        breaks=("invariant 2: In pages of b slots, a request has at most b - 1 empty slots",
                "blocks_needed: 0 for 0 tokens"),
    ),
    Mutant(
        name="blocks-of-negative-size",
        story="Rejects a block size of 0, but accepts -4.",
        replace="""    check_at_least(1, block_size=block_size)
    return (num""",
        by="""    if block_size == 0:
        raise ValueError("block_size is 0")
    return (num""",
        killed_by="test_task_2_blocks_needed_refuses_nonsense",
        breaks="blocks_needed: if block_size is below 1",
    ),
    Mutant(
        name="blocks-needed-takes-less-than-nothing",
        story="Does not check num_tokens: -1 tokens need 0 blocks.",
        replace="    check_at_least(0, num_tokens=num_tokens)\n",
        by="",
        killed_by="test_task_2_blocks_needed_refuses_nonsense",
        breaks="blocks_needed: if num_tokens is below 0",
    ),
    Mutant(
        name="blocks-for-no-tokens-of-any-size",
        story="Returns 0 for 0 tokens before it looks at the block size.",
        replace="    check_at_least(0, num_tokens=num_tokens)\n",
        by="""    if num_tokens == 0:
        return 0
    check_at_least(0, num_tokens=num_tokens)
""",
        killed_by="test_task_2_blocks_needed_refuses_nonsense",
        breaks="blocks_needed: even if there are 0 tokens",
    ),
    Mutant(
        name="blocks-needed-is-never-none",
        story="Returns at least one block, even for 0 tokens.",
        replace="    return (num_tokens + block_size - 1) // block_size\n",
        by="    return max(1, (num_tokens + block_size - 1) // block_size)\n",
        killed_by="test_task_2_blocks_needed_at_the_edges",
        breaks="blocks_needed: 0 for 0 tokens",
    ),
    Mutant(
        name="blocks-needed-rounds-down",
        story="Forgets the partly filled last block.",
        replace="    return (num_tokens + block_size - 1) // block_size\n",
        by="    return num_tokens // block_size\n",
        killed_by="test_task_2_blocks_needed_at_the_edges",
        breaks="blocks_needed: The last block may be partly empty",
    ),
    Mutant(
        name="blocks-needed-divides-in-floats",
        story="Divides floats and rounds up, which is wrong for numbers of more than 53 bits.",
        replace="    return (num_tokens + block_size - 1) // block_size\n",
        by="    return int(np.ceil(num_tokens / block_size))\n",
        killed_by="test_task_2_blocks_needed_at_the_edges",
        breaks="blocks_needed: an int that is exact for numbers of any size",
    ),
    Mutant(
        name="paging-averages-the-requests",
        story="Averages the shares of the requests, so a short request counts as much as a long one.",
        replace="    return 1.0 - sum(lengths) / num_slots\n",
        by="    return sum(1.0 - n / (blocks_needed(n, block_size) * block_size) for n in lengths) / len(lengths)\n",
        killed_by="test_task_2_waste_is_a_share_of_all_slots",
        breaks="waste_of_paging: It is a share of all allocated slots, not a mean over requests",
    ),
    Mutant(
        name="paging-in-blocks-of-nothing",
        story="Does not check the block size.",
        replace="    num_slots = sum(blocks_needed(length, block_size) for length in lengths) * block_size\n",
        by="    num_slots = sum(-(-length // max(block_size, 1)) for length in lengths) * max(block_size, 1)\n",
        killed_by="test_task_2_waste_is_a_share_of_all_slots",
        breaks="waste_of_paging: if block_size is below 1",
    ),
    Mutant(
        name="paging-no-requests-wastes-nothing",
        story="Returns 0.0 if there are no lengths.",
        replace="""    check_lengths(lengths)
    num_slots""",
        by="""    if not lengths:
        return 0.0
    check_lengths(lengths)
    num_slots""",
        killed_by="test_task_2_waste_is_a_share_of_all_slots",
        breaks="waste_of_paging: ValueError for lengths that check_lengths(lengths) rejects",
    ),
    Mutant(
        name="paging-rounds-up-once",
        story="Rounds up the sum of all lengths, as if requests could share a page.",
        replace="    num_slots = sum(blocks_needed(length, block_size) for length in lengths) * block_size\n",
        by="    num_slots = blocks_needed(sum(lengths), block_size) * block_size\n",
        killed_by="test_task_2_waste_is_a_share_of_all_slots",
        breaks="waste_of_paging: if every request gets only the blocks it needs",
    ),
    Mutant(
        name="allocate-leaves-holes-of-size-zero",
        story="Keeps a hole of size 0 in the list after an exact fit.",
        replace="[(start + num_slots, size - num_slots)] if size > num_slots else []\n",
        by="[(start + num_slots, size - num_slots)]\n",
        killed_by="test_task_3_a_perfect_fit_leaves_no_empty_hole",
        breaks="ContiguousAllocator.allocate: a hole that has no slots left is removed",
    ),
    Mutant(
        name="allocate-is-best-fit",
        story="Takes the smallest hole that is large enough. The contract says the leftmost.",
        replace="        for i, (start, size) in enumerate(self._holes):\n",
        by="        for i, (start, size) in sorted(enumerate(self._holes), key=lambda hole: hole[1][1]):\n",
        killed_by="test_task_4_the_leftmost_hole_that_is_large_enough_is_used",
        breaks=("ContiguousAllocator.allocate: the first slots of the leftmost hole",
                "ContiguousAllocator: first fit: the leftmost hole that is large enough"),
    ),
    Mutant(
        name="allocate-cuts-before-it-checks",
        story="Changes the holes before it checks num_slots.",
        replace="""        check_at_least(1, num_slots=num_slots)
        for i""",
        by="""        if num_slots < 1:
            self._holes = [(start, size - 1) for start, size in self._holes]
        check_at_least(1, num_slots=num_slots)
        for i""",
        killed_by="test_task_3_a_run_has_at_least_one_slot",
        breaks="ContiguousAllocator.allocate: and nothing has changed",
    ),
    Mutant(
        name="allocate-takes-no-slots",
        story="Allocates a run of 0 slots. The next run begins at the same slot and overwrites it.",
        replace="""        check_at_least(1, num_slots=num_slots)
        for i""",
        by="""        check_at_least(0, num_slots=num_slots)
        for i""",
        killed_by="test_task_3_a_run_has_at_least_one_slot",
        breaks="ContiguousAllocator.allocate: if num_slots is below 1",
    ),
    Mutant(
        name="allocate-does-not-say-how-many",
        story="Does not call the given check, and its own message does not contain the number.",
        replace="""        check_at_least(1, num_slots=num_slots)
        for i""",
        by="""        if num_slots < 1:
            raise ValueError("a run has at least one slot")
        for i""",
        killed_by="test_task_3_a_run_has_at_least_one_slot",
        breaks="ContiguousAllocator.allocate: the message contains the number",
    ),
    Mutant(
        name="allocate-tidies-up-before-it-gives-up",
        story="Sorts the holes by size before it returns None.",
        replace="""                return start
        return None
""",
        by="""                return start
        self._holes.sort(key=lambda hole: -hole[1])
        return None
""",
        killed_by="test_task_4_long_random_use_agrees_with_a_row_of_slots",
        breaks=("invariant 4: or returns None",
                "ContiguousAllocator.allocate: if no hole is large enough, nothing has changed"),
    ),
    Mutant(
        name="allocate-raises-for-what-never-fits",
        story="Raises if a request is larger than the whole memory. The contract says None.",
        replace="""                return start
        return None
""",
        by="""                return start
        if num_slots > self.num_slots:
            raise ValueError(f"{num_slots} slots can never fit {self.num_slots}")
        return None
""",
        killed_by="test_task_3_what_does_not_fit_changes_nothing",
        breaks="ContiguousAllocator.allocate: even if num_slots exceeds the size of the whole memory",
    ),
    Mutant(
        name="allocate-wants-a-slot-to-spare",
        story="Ignores a hole of exactly the right size.",
        replace="            if size >= num_slots:\n",
        by="            if size > num_slots:\n",
        killed_by="test_task_3_a_perfect_fit_leaves_no_empty_hole",
        breaks="ContiguousAllocator.allocate: that has at least num_slots",
    ),
    Mutant(
        name="allocate-cuts-from-the-right",
        story="Takes the last slots of the hole instead of the first.",
        replace="[(start + num_slots, size - num_slots)] if size > num_slots else []\n",
        by="[(start, size - num_slots)] if size > num_slots else []\n"
           "                start += size - num_slots\n",
        killed_by="test_task_3_runs_stand_side_by_side",
        breaks="ContiguousAllocator.allocate: the first slots of the leftmost hole",
    ),
    Mutant(
        name="allocate-hands-out-scattered-slots",
        story="Counts all free slots instead of those in the hole, so the new run overlaps another run.",
        replace="            if size >= num_slots:\n",
        by="            if self.num_free_slots >= num_slots:\n",
        killed_by="test_task_4_enough_free_slots_but_no_hole",
        breaks=("ContiguousAllocator.allocate: neighbouring slots",
                "ContiguousAllocator.allocate: None if no hole is large enough"),
    ),
    Mutant(
        name="allocate-returns-the-end",
        story="Returns the first slot after the run.",
        replace="                return start\n",
        by="                return start + num_slots\n",
        killed_by="test_task_3_runs_stand_side_by_side",
        breaks="ContiguousAllocator.allocate: the number of the first of these slots",
    ),
    Mutant(
        name="free-does-not-merge-to-the-left",
        story="Merges the freed run only with a hole on the right.",
        replace="        if i > 0 and sum(self._holes[i - 1]) == start:\n",
        by="        if False:\n",
        killed_by="test_task_4_neighbouring_holes_merge",
        breaks=("ContiguousAllocator.free: merged with the hole on the left",
                "invariant 3: do not touch each other"),
    ),
    Mutant(
        name="free-does-not-merge-to-the-right",
        story="Merges the freed run only with a hole on the left. Freeing from left to right does not show it.",
        replace="        if i < len(self._holes) and self._holes[i][0] == start + size:\n",
        by="        if False:\n",
        killed_by="test_task_4_neighbouring_holes_merge",
        breaks=("ContiguousAllocator.free: and the hole on the right",
                "invariant 3: do not touch each other"),
    ),
    Mutant(
        name="free-loses-the-slots",
        story="Forgets the run, but adds no hole.",
        replace="        self._holes[first:last] = [(start, size)]\n",
        by="",
        killed_by="test_task_4_everything_freed_is_one_hole_again",
        breaks="ContiguousAllocator.free: the run's slots are a hole",
    ),
    Mutant(
        name="free-merges-holes-that-do-not-touch",
        story="Merges with the next hole even if it does not touch: slots of another request become free.",
        replace="        if i < len(self._holes) and self._holes[i][0] == start + size:\n",
        by="        if i < len(self._holes):\n",
        killed_by="test_task_4_long_random_use_agrees_with_a_row_of_slots",
        breaks=("ContiguousAllocator.free: if these touch the run",
                "invariant 3: Together, the holes and the allocated runs cover every slot once"),
    ),
    Mutant(
        name="free-appends-the-hole-at-the-end",
        story="Keeps the holes in the order in which they were freed, so the first is not always the leftmost.",
        replace="        self._holes[first:last] = [(start, size)]\n",
        by="        self._holes[first:last] = []\n        self._holes.append((start, size))\n",
        killed_by="test_task_4_the_leftmost_hole_that_is_large_enough_is_used",
        breaks="invariant 3: The holes of the allocator are sorted",
    ),
    Mutant(
        name="free-twice-is-ignored",
        story="Ignores an invalid free, so the bug that caused it shows up much later.",
        replace='            raise RuntimeError(f"free({start}): no allocated run starts at slot {start}")\n',
        by="            return\n",
        killed_by="test_task_4_invalid_free_is_refused_at_once",
        breaks="ContiguousAllocator.free: RuntimeError if no allocated run begins at start",
    ),
    Mutant(
        name="free-does-not-say-which",
        story="Its message does not contain the number, so the caller cannot tell which call was wrong.",
        replace="raise RuntimeError(f\"free({start}): no allocated run starts at slot {start}\")\n",
        by="raise RuntimeError(\"free: no allocated run starts there\")\n",
        killed_by="test_task_4_invalid_free_is_refused_at_once",
        breaks="ContiguousAllocator.free: the message contains the number",
    ),
    Mutant(
        name="free-takes-any-slot-of-a-run",
        story="Frees the run that contains the slot, so a wrong number frees the run of another request.",
        replace="        if start not in self._allocated:\n",
        by="""        start = max((s for s in self._allocated if s <= start < s + self._allocated[s]), default=start)
        if start not in self._allocated:
""",
        killed_by="test_task_4_invalid_free_is_refused_at_once",
        breaks="ContiguousAllocator.free: if no allocated run begins at start",
    ),
    Mutant(
        name="free-of-an-empty-memory-is-ignored",
        story="Ignores a free when no run is allocated: the last run can be freed twice.",
        replace="        if start not in self._allocated:\n",
        by="""        if not self._allocated:
            return
        if start not in self._allocated:
""",
        killed_by="test_task_4_invalid_free_is_refused_at_once",
        breaks="ContiguousAllocator.free: if no allocated run begins at start",
    ),
    Mutant(
        name="free-raises-after-it-changed-something",
        story="Adds the hole before it raises.",
        replace='            raise RuntimeError(f"free({start}): no allocated run starts at slot {start}")\n',
        by="            self._holes.append((start, 1))\n"
           '            raise RuntimeError(f"free({start}): no allocated run starts at slot {start}")\n',
        killed_by="test_task_4_invalid_free_is_refused_at_once",
        breaks=("invariant 4: A call that raises",
                "ContiguousAllocator.free: nothing has changed"),
    ),
    Mutant(
        name="paged-fit-counts-slots-instead-of-blocks",
        story="Adds up tokens, and forgets the empty slots in the last block of each request.",
        replace="    num_free_blocks = num_slots // block_size\n",
        by="    num_free_blocks = num_slots\n    block_size = 1\n",
        killed_by="test_task_5_paging_admits_by_blocks",
        breaks="num_that_fit_paged: The memory is cut into whole blocks",
    ),
    Mutant(
        name="reserving-admits-what-is-too-long",
        story="Does not compare the lengths with max_len.",
        replace="""    check_lengths(lengths, max_len)
    return min""",
        by="""    check_lengths(lengths)
    return min""",
        killed_by="test_task_5_bad_arguments_are_refused",
        breaks="num_that_fit_reserving: ValueError for lengths that check_lengths(lengths, max_len) rejects",
    ),
    Mutant(
        name="reserving-takes-a-negative-memory",
        story="Accepts a negative num_slots, and returns a negative number.",
        replace="""    # TASK 5: num_that_fit_reserving
    check_at_least(0, num_slots=num_slots)
""",
        by="    # TASK 5: num_that_fit_reserving\n",
        killed_by="test_task_5_bad_arguments_are_refused",
        breaks="num_that_fit_reserving: if num_slots is below 0",
    ),
    Mutant(
        name="reserving-refuses-an-empty-memory",
        story="Rejects 0 slots, but they are no error: no request fits.",
        replace="""    # TASK 5: num_that_fit_reserving
    check_at_least(0, num_slots=num_slots)
""",
        by="""    # TASK 5: num_that_fit_reserving
    check_at_least(1, num_slots=num_slots)
""",
        killed_by="test_task_5_reserving_admits_by_the_maximum",
        breaks="num_that_fit_reserving: 0 if there are 0 slots",
    ),
    Mutant(
        name="reserving-by-real-lengths",
        story="Counts the slots that the requests use, not the slots that they reserve.",
        replace="    return min(len(lengths), num_slots // max_len)\n",
        by="    return sum(total <= num_slots for total in np.cumsum(lengths))\n",
        killed_by="test_task_5_reserving_admits_by_the_maximum",
        breaks="num_that_fit_reserving: if each takes max_len slots",
    ),
    Mutant(
        name="reserving-fits-requests-that-do-not-exist",
        story="Returns how many requests the memory could hold, even if there are fewer.",
        replace="    return min(len(lengths), num_slots // max_len)\n",
        by="    return num_slots // max_len\n",
        killed_by="test_task_5_reserving_admits_by_the_maximum",
        breaks="num_that_fit_reserving: a number from 0 to len(lengths)",
    ),
    Mutant(
        name="paged-fit-lets-later-requests-overtake",
        story="Skips a request that does not fit and continues with the next one.",
        replace="    for num_admitted, length in enumerate(lengths):\n"
                "        num_free_blocks -= blocks_needed(length, block_size)\n"
                "        if num_free_blocks < 0:\n"
                "            return num_admitted\n"
                "    return len(lengths)\n",
        by="    num_admitted = 0\n"
           "    for length in lengths:\n"
           "        if blocks_needed(length, block_size) <= num_free_blocks:\n"
           "            num_free_blocks -= blocks_needed(length, block_size)\n"
           "            num_admitted += 1\n"
           "    return num_admitted\n",
        killed_by="test_task_5_paging_is_first_come_first_served",
        breaks=("num_that_fit_paged: the first request that does not fit ends the count",
                "num_that_fit_paged: the number of requests before the one that ends the count"),
    ),
    Mutant(
        name="paged-fit-checks-as-it-goes",
        story="Checks each length in turn, and so does not check those after the request that ends the count.",
        replace="""    check_lengths(lengths)
    num_free_blocks = num_slots // block_size
    for num_admitted, length in enumerate(lengths):
""",
        by="""    check_lengths(lengths[:1])
    num_free_blocks = num_slots // block_size
    for num_admitted, length in enumerate(lengths):
        check_lengths([length])
""",
        killed_by="test_task_5_bad_arguments_are_refused",
        breaks="num_that_fit_paged: including lengths after the request that ends the count",
    ),
    Mutant(
        name="paged-fit-divides-first",
        story="For a block_size of 0 it raises ZeroDivisionError instead of ValueError.",
        replace="""    check_at_least(1, block_size=block_size)
    check_lengths""",
        by="    check_lengths",
        killed_by="test_task_5_bad_arguments_are_refused",
        breaks="num_that_fit_paged: if block_size is below 1",
    ),
    Mutant(
        name="paged-fit-takes-a-negative-memory",
        story="Accepts a negative num_slots, and returns 0.",
        replace="""    # TASK 5: num_that_fit_paged
    check_at_least(0, num_slots=num_slots)
""",
        by="    # TASK 5: num_that_fit_paged\n",
        killed_by="test_task_5_bad_arguments_are_refused",
        breaks="num_that_fit_paged: or num_slots is below 0",
    ),
    Mutant(
        name="paged-fit-refuses-an-empty-memory",
        story="Rejects 0 slots, but they are no error: no request fits.",
        replace="""    # TASK 5: num_that_fit_paged
    check_at_least(0, num_slots=num_slots)
""",
        by="""    # TASK 5: num_that_fit_paged
    check_at_least(1, num_slots=num_slots)
""",
        killed_by="test_task_5_paging_admits_by_blocks",
        breaks="num_that_fit_paged: 0 if there are 0 slots",
    ),
    Mutant(
        name="paged-fit-takes-the-short-ones-first",
        story="Sorts the lengths: more requests fit, but not in the order given.",
        replace="    for num_admitted, length in enumerate(lengths):\n",
        by="    for num_admitted, length in enumerate(sorted(lengths)):\n",
        killed_by="test_task_5_paging_is_first_come_first_served",
        breaks="num_that_fit_paged: in the order given",
    ),
    Mutant(
        name="paged-fit-rounds-the-memory-up",
        story="Counts the remainder of the memory as a block.",
        replace="    num_free_blocks = num_slots // block_size\n",
        by="    num_free_blocks = -(-num_slots // block_size)\n",
        killed_by="test_task_5_paging_admits_by_blocks",
        breaks="num_that_fit_paged: a remainder smaller than a block is not used",
    ),
    Mutant(
        name="sweep-divides-slots-by-the-block-size",
        story="Divides the mean length by the block size, and forgets to round up for each request.",
        replace="sum(table_lens) / len(table_lens)",
        by="sum(lengths) / block_size / len(lengths)",
        killed_by="test_task_6_rows_of_a_small_sweep",
        breaks="sweep_block_sizes: the mean and the longest table length",
    ),
    Mutant(
        name="sweep-skips-bad-sizes",
        story="Leaves out the row of an invalid size.",
        replace="        waste = waste_of_paging(lengths, block_size)\n",
        by="""        if block_size < 1:
            continue
        waste = waste_of_paging(lengths, block_size)
""",
        killed_by="test_task_6_bad_arguments_are_refused",
        breaks="sweep_block_sizes: Raises ValueError for arguments that waste_of_paging rejects",
    ),
    Mutant(
        name="sweep-drops-what-it-has",
        story="A size that is given twice gets one row.",
        replace="    for block_size in block_sizes:\n",
        by="    for block_size in dict.fromkeys(block_sizes):\n",
        killed_by="test_task_6_rows_of_a_small_sweep",
        breaks="sweep_block_sizes: A size that is given twice gets two rows",
    ),
    Mutant(
        name="sweep-sorts-the-sizes",
        story="Sorts the sizes, but the caller expects the rows in the order given.",
        replace="    for block_size in block_sizes:\n",
        by="    for block_size in sorted(block_sizes):\n",
        killed_by="test_task_6_rows_of_a_small_sweep",
        breaks="sweep_block_sizes: in the order given",
    ),
    Mutant(
        name="sweep-takes-the-last-table-for-the-longest",
        story="Takes the last table for the longest, which is right only if the lengths are sorted.",
        replace="max(table_lens)))\n",
        by="table_lens[-1]))\n",
        killed_by="test_task_6_rows_of_a_small_sweep",
        breaks="sweep_block_sizes: the longest table length",
    ),
]
