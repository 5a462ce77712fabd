from course.mutants import Mutant

MUTANTS = [
    # ---- Task 1
    Mutant(
        name="fifo-lets-the-newest-go",
        story="Walks the dictionary from its end: last in, first out.",
        replace="        for block, may_go in self._may_go.items():\n",
        by="        for block, may_go in reversed(self._may_go.items()):\n",
        killed_by="test_task_1_the_first_that_came_goes_first",
        breaks="Fifo.evict: the block that entered first",
    ),
    Mutant(
        name="fifo-puts-new-blocks-in-front",
        story="Inserts at the wrong end, like insert(0, …) on a list.",
        replace="        self._may_go[block] = True\n",
        by="        self._may_go = {**({} if block in self._may_go else {block: True}), **self._may_go, block: True}\n",
        killed_by="test_task_1_the_first_that_came_goes_first",
        breaks="Fifo.freed: a new block is last in the order",
    ),
    Mutant(
        name="fifo-never-lets-a-used-block-go-again",
        story="Uses setdefault, which keeps the place but also the old value: a block with one hit stays in use "
              "forever.",
        replace="        self._may_go[block] = True\n",
        by="        self._may_go.setdefault(block, True)\n",
        killed_by="test_task_1_a_block_in_use_does_not_go",
        breaks="Fifo.freed: After: it may be evicted",
    ),
    Mutant(
        name="fifo-ignores-taken",
        story="Ignores taken, because a hit does not change the place: the running request loses its own block.",
        replace="        self._may_go[block] = False\n",
        by="        pass\n",
        killed_by="test_task_1_a_block_in_use_does_not_go",
        breaks=("Fifo.taken: it may not be evicted", "invariant 1: only if it was freed and not taken since"),
    ),
    Mutant(
        name="fifo-takes-a-hit-out-of-the-queue",
        story="Removes a block in use and appends it when it is freed: that is least recently used.",
        replace="        self._may_go[block] = False\n",
        by="        del self._may_go[block]\n",
        killed_by="test_task_1_a_hit_does_not_change_its_place",
        breaks=("Fifo.taken: it keeps its place", "Fifo: A block that is used again keeps its place"),
    ),
    Mutant(
        name="fifo-remembers-the-place-of-what-went",
        story="Marks an evicted block but leaves it in the order; when it returns, it has its old place.",
        replace="                del self._may_go[block]\n                return block\n",
        by="                self._may_go[block] = False\n                return block\n",
        killed_by="test_task_1_what_went_and_comes_back_is_new",
        breaks="Fifo.evict: After: it is forgotten",
    ),
    Mutant(
        name="fifo-returns-none-when-there-is-nothing",
        story="Returns None at the end of the loop instead of raising an error.",
        replace='        raise RuntimeError(f"evict: none of {len(self._may_go)} blocks may be evicted")\n',
        by="        return None\n",
        killed_by="test_task_1_with_nothing_to_forget_evict_is_refused",
        breaks="Fifo.evict: Raises RuntimeError if no block may be evicted",
    ),
    Mutant(
        name="fifo-knows-a-block-by-its-object",
        story="Looks for the same object that was freed. In a trace it is usually the same object, by chance.",
        replace="        self._may_go[block] = False\n",
        by="        for other in self._may_go:\n"
           "            if other is block:\n"
           "                self._may_go[other] = False\n",
        killed_by="test_task_1_a_block_in_use_does_not_go",
        breaks="module: Blocks are compared by ==",
    ),
    Mutant(
        name="fifo-has-one-order-for-all",
        story="Keeps the order in a class variable, and resets it for each new policy.",
        replace="        self._may_go: dict[Block, bool] = {}\n",
        by="        Fifo._may_go = {}\n",
        killed_by="test_task_1_the_first_that_came_goes_first",
        breaks="invariant 3: calls to another policy have no effect",
    ),
    # ---- Task 2
    Mutant(
        name="lru-pops-the-wrong-end",
        story="Calls popitem() without last=False, which returns the newest block.",
        replace="        return self._queue.popitem(last=False)[0]\n",
        by="        return self._queue.popitem()[0]\n",
        killed_by="test_task_2_the_tail_of_a_request_goes_first",
        breaks="LeastRecentlyFreed.evict: the block that was freed longest ago",
    ),
    Mutant(
        name="lru-appends-on-the-left",
        story="Puts freed blocks at the front of the queue, so the head of a request is evicted before its tail.",
        replace="        self._queue[block] = None\n",
        by="        self._queue[block] = None\n        self._queue.move_to_end(block, last=False)\n",
        killed_by="test_task_2_the_tail_of_a_request_goes_first",
        breaks="LeastRecentlyFreed.freed: After: it may be evicted, after all other blocks that may be evicted now",
    ),
    Mutant(
        name="lru-ignores-taken",
        story="Ignores taken, as if a hit mattered only when the block is freed again. Until then, the block stays in "
              "the queue.",
        replace="        del self._queue[block]\n",
        by="        pass\n",
        killed_by="test_task_2_a_block_in_use_does_not_go",
        breaks=("LeastRecentlyFreed.taken: it may not be evicted",
                "invariant 1: only if it was freed and not taken since"),
    ),
    Mutant(
        name="lru-keeps-its-place-after-a-hit",
        story="Remembers when a block was first freed, not last freed.",
        replace="        self._queue[block] = None\n",
        by="        self.__dict__.setdefault('_when', {}).setdefault(block, len(self.__dict__.get('_when', {})))\n"
           "        self._queue[block] = None\n"
           "        self._queue = OrderedDict.fromkeys(sorted(self._queue, key=self._when.__getitem__))\n",
        killed_by="test_task_2_a_hit_moves_it_to_the_end",
        breaks="LeastRecentlyFreed: it evicts the block that has been free longest",
    ),
    Mutant(
        name="lru-rotates-the-queue-to-find-the-block",
        story="Rotates the queue until the block is at the front, then removes it: the blocks before it are at the "
              "end now.",
        replace="        del self._queue[block]\n",
        by="        while (first := next(iter(self._queue))) != block:\n            self._queue.move_to_end(first)\n"
           "        del self._queue[block]\n",
        killed_by="test_task_2_it_has_exactly_the_hits_of_the_engine",
        breaks="LeastRecentlyFreed.taken: the other blocks keep their order",
    ),
    Mutant(
        name="lru-names-a-block-and-keeps-it",
        story="Returns the block at the front of the queue without removing it: the same block is evicted twice.",
        replace="        return self._queue.popitem(last=False)[0]\n",
        by="        return next(iter(self._queue))\n",
        killed_by="test_task_2_the_tail_of_a_request_goes_first",
        breaks="LeastRecentlyFreed.evict: After: it is forgotten",
    ),
    Mutant(
        name="lru-leaves-the-error-to-the-dictionary",
        story="Does not check for an empty OrderedDict, which raises a KeyError.",
        replace="        if not self._queue:\n            raise RuntimeError(\"evict: no block may be evicted\")\n",
        by="",
        killed_by="test_task_2_with_nothing_to_forget_evict_is_refused",
        breaks="LeastRecentlyFreed.evict: Raises RuntimeError if no block may be evicted",
    ),
    Mutant(
        name="lru-lets-the-deepest-go",
        story="Makes 'tails first' a separate rule: it evicts the deepest block of all, even if that block was used "
              "a moment ago.",
        replace="        return self._queue.popitem(last=False)[0]\n",
        by="        block = max(self._queue, key=lambda each: each.depth)\n        del self._queue[block]\n"
           "        return block\n",
        killed_by="test_task_2_it_has_exactly_the_hits_of_the_engine",
        breaks=("invariant 4: finds exactly the blocks that the engine finds",
                "LeastRecentlyFreed: exactly the same hits as the engine"),
    ),
    Mutant(
        name="lru-puts-a-block-in-use-last",
        story="Makes the block the newest on a hit. But the block can still be evicted, after all others.",
        replace="        del self._queue[block]\n",
        by="        self._queue.move_to_end(block)\n",
        killed_by="test_task_2_a_block_in_use_does_not_go",
        breaks=("LeastRecentlyFreed.taken: it may not be evicted",
                "invariant 1: only if it was freed and not taken since"),
    ),
    Mutant(
        name="lru-knows-a-block-by-its-object",
        story="Looks for the same object that was freed. In a trace it is usually the same object, by chance.",
        replace="        del self._queue[block]\n",
        by="        self._queue = OrderedDict((other, None) for other in self._queue if other is not block)\n",
        killed_by="test_task_2_a_block_in_use_does_not_go",
        breaks="module: for the same block, taken may get another object than freed did",
    ),
    Mutant(
        name="lru-has-one-queue-for-all",
        story="Keeps the queue in a class variable, so that all policies share it.",
        replace="        self._queue: OrderedDict[Block, None] = OrderedDict()\n",
        by="        self._queue = LeastRecentlyFreed.__dict__.get('_all', OrderedDict())\n"
           "        LeastRecentlyFreed._all = self._queue\n",
        killed_by="test_task_2_the_tail_of_a_request_goes_first",
        breaks="invariant 3: calls to another policy have no effect",
    ),
    # ---- Task 3: legal answers
    Mutant(
        name="a-block-in-use-stays-in-its-queue",
        story="Notes that the block is in use, but leaves it in the queue, where evict finds it.",
        replace="        del (self._once if block in self._once else self._again)[block]\n",
        by="",
        killed_by="test_task_3_a_block_in_use_does_not_go",
        breaks=("EvictionPolicy.taken: After: it may not be evicted",
                "invariant 1: only if it was freed and not taken since"),
    ),
    Mutant(
        name="a-block-that-was-hit-is-lost",
        story="Puts a block that was used again into no queue, so it can never be evicted.",
        replace="        self._again[block] = None\n",
        by="",
        killed_by="test_task_3_every_block_that_may_go_goes_once",
        breaks=("EvictionPolicy.freed: After: it may be evicted", "invariant 2: repeated calls return all of them"),
    ),
    Mutant(
        name="protected-blocks-never-go",
        story="Evicts only blocks that were used once. If all blocks were used twice, it raises an error.",
        replace="        queue = self._once or self._again\n",
        by="        queue = self._once\n",
        killed_by="test_task_3_every_block_that_may_go_goes_once",
        breaks=("EvictionPolicy.evict: As long as there are blocks that may be evicted, the result is one of them",
                "invariant 2: evict returns one of them"),
    ),
    Mutant(
        name="names-a-block-and-keeps-it",
        story="Leaves the evicted block in the queue, and returns it a second time.",
        replace="        block = queue.popitem(last=False)[0]\n",
        by="        block = next(iter(queue))\n",
        killed_by="test_task_3_every_answer_is_legal_in_small_caches",
        breaks="EvictionPolicy.evict: After: it has left the cache",
    ),
    Mutant(
        name="leaves-the-error-to-the-dictionary",
        story="Does not check for an empty OrderedDict, which raises a KeyError.",
        replace="        if not queue:\n"
                '            raise RuntimeError(f"evict: no block may be evicted, {len(self._in_use)} are in use")\n',
        by="",
        killed_by="test_task_3_with_nothing_to_forget_evict_is_refused",
        breaks="EvictionPolicy.evict: Raises RuntimeError if there is none",
    ),
    Mutant(
        name="what-was-used-twice-is-at-home-in-both-queues",
        story="Adds a block to the protected queue without removing it from the other queue, to which it was demoted.",
        replace="        del (self._once if block in self._once else self._again)[block]\n",
        by="        (self._again if block in self._again else {block: None}).pop(block)\n",
        killed_by="test_task_3_every_answer_is_legal_in_small_caches",
        breaks="invariant 1: A block is evicted only if it was freed and not taken since",
    ),
    Mutant(
        name="a-queue-for-all-policies",
        story="Keeps its queue in a module variable, so that a second cache returns blocks of the first.",
        replace="        self._once: OrderedDict[Block, None] = OrderedDict()\n",
        by="        self._once = globals().setdefault('_once_of_all', OrderedDict())\n",
        killed_by="test_task_3_the_same_calls_get_the_same_answers",
        breaks=("EvictionPolicy: Two policies know nothing about each other",
                "invariant 3: depend only on its own calls"),
    ),
    Mutant(
        name="ghosts-for-all-policies",
        story="Keeps its ghosts in a module variable. A new policy clears it for all other policies.",
        replace="        self._ghosts: OrderedDict[int, None] = OrderedDict()\n",
        by="        self._ghosts = globals().setdefault('_ghosts_of_all', OrderedDict())\n"
           "        self._ghosts.clear()\n",
        killed_by="test_task_3_the_same_calls_get_the_same_answers",
        breaks=("EvictionPolicy: Two policies know nothing about each other",
                "invariant 3: calls to another policy have no effect"),
    ),
    Mutant(
        name="reads-the-requests-to-come",
        story="Finds the trace in the variables of its caller, and evicts blocks that are never requested again.",
        replace="        block = queue.popitem(last=False)[0]\n",
        by="        frame = None if hasattr(self, '_last') else __import__('sys')._getframe()\n"
           "        self._last = getattr(self, '_last', {})\n"
           "        while frame and not self._last:\n"
           "            for trace in frame.f_locals.values():\n"
           "                for number, each in enumerate(getattr(trace, 'requests', ())):\n"
           "                    self._last.update((block.key, number) for block in each)\n"
           "            frame = frame.f_back\n"
           "        block = min(queue, key=lambda each: self._last.get(each.key, 0))\n"
           "        del queue[block]\n",
        killed_by="test_task_3_the_requests_to_come_change_nothing",
        breaks=("EvictionPolicy: the same answers, no matter which requests come later",
                "invariant 3: future requests are unknown"),
        only_in_process=True,
    ),
    Mutant(
        name="draws-lots",
        story="Sometimes evicts another block at random: no two runs have the same score.",
        replace="        block = queue.popitem(last=False)[0]\n",
        by="        block = queue.popitem(last=__import__('random').random() < 0.1)[0]\n",
        killed_by="test_task_3_the_same_calls_get_the_same_answers",
        breaks=("EvictionPolicy: Within one Python process, the same calls get the same answers",
                "invariant 3: the same calls get the same answers"),
    ),
    Mutant(
        name="ghosts-for-ever",
        story="Remembers every block that was ever evicted. It scores well, but grows with every request.",
        replace="        if len(self._ghosts) > self._num_blocks:\n            self._ghosts.popitem(last=False)\n",
        by="",
        killed_by="test_task_3_it_remembers_a_bounded_number_of_blocks",
        breaks=("EvictionPolicy: remembers at most 4 * num_blocks different blocks, including evicted ones",
                "invariant 5: including evicted ones"),
    ),
    Mutant(
        name="what-was-in-use-is-noted-for-ever",
        story="Never removes a block from the set of blocks in use, so the set grows with every block that is used "
              "again.",
        replace="        self._in_use.discard(block)\n",
        by="",
        killed_by="test_task_3_it_remembers_a_bounded_number_of_blocks",
        breaks="invariant 5: remembers at most",
    ),
    Mutant(
        name="notes-every-block-in-its-file",
        story="Bounds the policy itself, but keeps an unbounded list next to it in the module.",
        replace="        if block not in self._in_use and block.key not in self._ghosts:\n",
        by="        globals().setdefault('_all_blocks', []).append(block)\n"
           "        if block not in self._in_use and block.key not in self._ghosts:\n",
        killed_by="test_task_3_it_remembers_a_bounded_number_of_blocks",
        breaks=("EvictionPolicy: in its own variables, those of its class and those of its file",
                "invariant 5: those of its class and those of its file"),
    ),
    Mutant(
        name="writes-down-the-names-of-what-went",
        story="Keeps the names of evicted blocks as text. The blocks are gone, but their names are not.",
        replace="        self._ghosts[block.key] = None\n",
        by="        self._ghosts[block.key] = None\n"
           "        self.__dict__.setdefault('_names', set()).add(f'block {block.key}')\n",
        killed_by="test_task_3_it_remembers_a_bounded_number_of_blocks",
        breaks=("EvictionPolicy: as blocks, as keys or in text", "invariant 5: as blocks, as keys or in text"),
    ),
    Mutant(
        name="keeps-a-list-of-depths",
        story="Notes the depth of each evicted block, for a mean. It names no block, but the list never stops growing.",
        replace="        self._ghosts[block.key] = None\n",
        by="        self._ghosts[block.key] = None\n"
           "        self.__dict__.setdefault('_depths', []).append(block.depth)\n",
        killed_by="test_task_3_what_it_keeps_does_not_grow",
        breaks=("EvictionPolicy: the data in these variables must not grow with the number of requests",
                "invariant 5: does not grow with the number of requests"),
    ),
    # ---- Task 3: hit rate
    Mutant(
        name="treats-all-alike",
        story="Uses one queue for all blocks, even if they were used again: least recently used under another name.",
        replace="        if block not in self._in_use and block.key not in self._ghosts:\n"
                "            self._once[block] = None\n            return\n",
        by="        self._in_use.discard(block)\n        self._once[block] = None\n        return\n",
        killed_by="test_task_3_the_scan_better_than_the_engine",
        breaks="invariant 6: half on scan",
    ),
    Mutant(
        name="lets-the-useful-ones-go",
        story="Swaps the two queues: blocks that were used again are evicted first.",
        replace="        queue = self._once or self._again\n",
        by="        queue = self._again or self._once\n",
        killed_by="test_task_3_random_traces_better_than_the_engine",
        breaks="invariant 6: half on the random traces together",
    ),
    Mutant(
        name="parents-before-children",
        story="Evicts the heads of prompts first: the blocks after them are still cached, but cannot be found.",
        replace="        block = queue.popitem(last=False)[0]\n",
        by="        block = min(queue, key=lambda each: each.depth)\n        del queue[block]\n",
        killed_by="test_task_3_the_mixture_better_than_the_engine",
        breaks="invariant 6: a quarter on mixture",
    ),
    Mutant(
        name="the-newest-goes-first",
        story="Calls popitem at the other end: it keeps the oldest blocks of both queues forever.",
        replace="        block = queue.popitem(last=False)[0]\n",
        by="        block = queue.popitem()[0]\n",
        killed_by="test_task_3_chats_and_agents_lose_little",
        breaks="invariant 6: On chats and on agents",
    ),
    Mutant(
        name="a-protected-share-of-a-tenth",
        story="Protects hardly any blocks.",
        replace="        self._num_protected = int(PROTECTED_SHARE * num_blocks)\n",
        by="        self._num_protected = num_blocks // 10\n",
        killed_by="test_task_3_the_scan_half_of_the_way",
        breaks="invariant 6: half on scan",
    ),
    Mutant(
        name="no-ghosts",
        story="Does not remember evicted blocks: a block that returns is new each time, and is evicted first again.",
        replace="        self._ghosts[block.key] = None\n",
        by="",
        killed_by="test_task_3_few_shot_a_third_of_the_way",
        breaks="invariant 6: a third on few-shot",
    ),
    Mutant(
        name="old-favourites-stay-for-ever",
        story="Never demotes a block that was used twice in favour of a block that was used once.",
        replace="        self._num_protected = int(PROTECTED_SHARE * num_blocks)\n",
        by="        self._num_protected = num_blocks\n",
        killed_by="test_task_3_chats_and_agents_lose_little",
        breaks="invariant 6: On chats and on agents",
    ),
]
