"""Common mistakes in automata, tries, masks and their use, and the test that catches each of them."""

from course.mutants import Mutant

CLOSED = "                following = places.closure(reached)\n"
KNOWN = "                if following not in numbers:\n"
TOO_MANY = "            if len(states) > MAX_STATES:\n"
NEXT = "        return DEAD if state == DEAD else self._table[state][byte]\n"
ACCEPTS = "        return state != DEAD and self._is_accepting[state]\n"
ACCEPTING = "        self._is_accepting = [places.end in state for state in states]\n"
MATCHES = """        state = 0
        for byte in text:
            state = self.next_state(state, byte)
        return self.is_accepting(state)
"""
OPTIONS = "                self._free[self._add(option, start)].append(end)\n"
SEQUENCES = """        for sequence in utf8_sequences(node.ranges):
            place = start
            for first, last in sequence[:-1]:
                inside = self._new()
                self._edges[place].append((first, last, inside))
                place = inside
            first, last = sequence[-1]
            self._edges[place].append((first, last, end))
"""
LEAST = """        for _ in range(node.least):
            start = self._add(node.node, start)
        end = self._new()
        self._free[start].append(end)
"""
FREE_ENDS = """                start = self._add(node.node, start)
                self._free[start].append(end)
"""
CLOSURE = """            for place in self._free[todo.pop()]:
                if place not in reached:
                    reached.add(place)
                    todo.append(place)
"""
SETS = '''        reached, todo = set(places), list(places)
        while todo:
            for place in self._free[todo.pop()]:
                if place not in reached:
                    reached.add(place)
                    todo.append(place)
        return frozenset(place for place in reached if self._edges[place] or place == self.end)

    def steps(self, state: frozenset[int]) -> dict[int, set[int]]:
        """Return for each byte that leads on the places that it leads to."""
        reached: dict[int, set[int]] = {}
        for place in state:
            for first, last, target in self._edges[place]:
                for byte in range(first, last + 1):
                    reached.setdefault(byte, set()).add(target)
        return reached
'''
LISTS = '''        reached, todo = list(places), list(places)
        while todo:
            for place in self._free[todo.pop()]:
                if place not in reached:
                    reached.append(place)
                    todo.append(place)
        return tuple(place for place in reached if self._edges[place] or place == self.end)

    def steps(self, state):
        """Return for each byte that leads on the places that it leads to."""
        reached = {}
        for place in state:
            for first, last, target in self._edges[place]:
                for byte in range(first, last + 1):
                    targets = reached.setdefault(byte, [])
                    if target not in targets:
                        targets.append(target)
        return reached
'''
ENDS_HERE = "                node.token_ids.append(token_id)\n"
WORD = "            if word:\n"
OF = """        if "trie" not in vocabulary.shared:
            vocabulary.shared["trie"] = cls(vocabulary)
        trie = vocabulary.shared["trie"]
        assert isinstance(trie, TokenTrie)
        return trie
"""
TODO = "        todo = [(self._root, state)]\n"
ON_DEAD = """                if following != DEAD:
                    todo.append((child, following))
"""
FOUND = """            for token_id in node.token_ids:
                after[token_id] = state
"""
TRIE = "        self._trie = TokenTrie.of(vocabulary)\n"
IF_UNKNOWN = "        if state not in self._known:\n"
MASK = "            mask = np.array(after) != DEAD\n"
END_OF_TEXT = "            mask[self._vocabulary.eos_token_ids] = self.is_accepting(state)\n"
ADVANCE = """        if state == DEAD or not self._look_up(state)[0][token_id]:
            return DEAD
        if token_id in self._vocabulary.eos_token_ids:
            return state
        return self._look_up(state)[1][token_id]
"""
COMPLETE = ("        return self.is_accepting(state) and all(self._automaton.next_state(state, byte) == DEAD "
            "for byte in range(256))\n")
EVERY = "    every = np.stack([all_tokens if mask is None else mask for mask in masks])\n"
WHERE = "    return mx.where(mx.array(every), logits, -math.inf)\n"

AFTER_BYTES = "test_task_2_a_walk_gives_the_state_after_each_token"

MUTANTS = [
    # ---- Task 1
    Mutant(
        name="the-first-state-is-not-closed",
        story="The first state has only place 0, and not the places that are reached from it without a byte.",
        replace="        first = places.closure({0})\n",
        by="        first = frozenset({0})\n",
        killed_by="test_task_1_repetitions",
        breaks="ByteAutomaton.__init__: state 0 is the state before the first byte",
    ),
    Mutant(
        name="a-step-is-not-closed",
        story="After a byte, forgets the places that are reached without a further byte.",
        replace=CLOSED,
        by="                following = frozenset(reached)\n",
        killed_by="test_task_1_one_of_several_texts",
        breaks=("ByteAutomaton.matches: True if the automaton accepts after the last byte",
                "invariant 1: accepts"),
    ),
    Mutant(
        name="every-step-is-a-new-state",
        story="Does not look whether the set of places is known: a loop never comes back.",
        replace=KNOWN,
        by="                if True:\n",
        killed_by="test_task_1_a_loop_has_few_states",
        breaks=("ByteAutomaton.__init__: texts that lead to the same set of places lead to the same state",
                "invariant 2: Equal sets of places are one state"),
    ),
    Mutant(
        name="the-order-of-places-makes-a-state",
        story="A state is a list of places, in the order in which they were found: the same set is several states.",
        replace=SETS,
        by=LISTS,
        killed_by="test_task_1_equal_sets_are_one_state",
        breaks=("ByteAutomaton.__init__: texts that lead to the same set of places lead to the same state",
                "invariant 2: Equal sets of places are one state"),
    ),
    Mutant(
        name="searches-the-row",
        story="Goes through the bytes of a state to find the next one.",
        replace=NEXT,
        by="        if state != DEAD:\n"
           "            for each, following in enumerate(self._table[state]):\n"
           "                if each == byte:\n"
           "                    return following\n"
           "        return DEAD\n",
        killed_by="test_task_1_next_state_only_looks_up",
        breaks="ByteAutomaton.__init__: all states are known: next_state only looks one up",
    ),
    Mutant(
        name="no-limit",
        story="Never counts the states.",
        replace=TOO_MANY,
        by="            if len(states) < 0:\n",
        killed_by="test_task_1_too_many_states_are_refused",
        breaks="ByteAutomaton.__init__: TooLargeError if there are more than MAX_STATES states",
    ),
    Mutant(
        name="one-state-too-few",
        story="Refuses an automaton with exactly MAX_STATES states.",
        replace=TOO_MANY,
        by="            if len(states) >= MAX_STATES:\n",
        killed_by="test_task_1_max_states_states_are_enough",
        breaks="ByteAutomaton.__init__: not counting DEAD",
    ),
    Mutant(
        name="another-error",
        story="Raises a MemoryError.",
        replace='                raise TooLargeError(f"the',
        by='                raise MemoryError(f"the',
        killed_by="test_task_1_too_many_states_are_refused",
        breaks="ByteAutomaton.__init__: TooLargeError if there are more than MAX_STATES states",
    ),
    Mutant(
        name="the-last-byte-of-a-range-is-missing",
        story="A range of bytes ends before its last byte.",
        replace="                for byte in range(first, last + 1):\n",
        by="                for byte in range(first, max(last, first + 1)):\n",
        killed_by="test_task_1_sets_of_characters",
        breaks="ByteAutomaton.next_state: the state to which byte, a number from 0 to 255, leads from state",
    ),
    Mutant(
        name="back-to-the-start",
        story="A byte that is not possible leads to the first state.",
        replace="            row = [DEAD] * 256\n",
        by="            row = [0] * 256\n",
        killed_by="test_task_1_every_byte_leads_on_or_to_dead",
        breaks="ByteAutomaton.next_state: DEAD if no text that matches goes on like that",
    ),
    Mutant(
        name="a-state-for-nothing",
        story="The empty set of places becomes a state like any other, from which nothing leads on.",
        replace="            for byte, reached in places.steps(state).items():\n",
        by="            steps = places.steps(state)\n"
           "            for byte, reached in ((byte, steps.get(byte, set())) for byte in range(256)):\n",
        killed_by="test_task_1_every_byte_leads_on_or_to_dead",
        breaks="ByteAutomaton.next_state: DEAD if no text that matches goes on like that",
    ),
    Mutant(
        name="dead-is-the-last-state",
        story="DEAD is -1, which is also the index of the last row.",
        replace=NEXT,
        by="        return self._table[state][byte]\n",
        killed_by="test_task_1_dead_stays_dead",
        breaks="ByteAutomaton.next_state: DEAD if state is DEAD",
    ),
    Mutant(
        name="dead-accepts",
        story="DEAD is -1, which is also the index of the last state.",
        replace=ACCEPTS,
        by="        return self._is_accepting[state]\n",
        killed_by="test_task_1_dead_stays_dead",
        breaks="ByteAutomaton.is_accepting: False otherwise, also if state is DEAD",
    ),
    Mutant(
        name="accepts-only-at-the-very-end",
        story="A state accepts only if no byte can follow.",
        replace=ACCEPTS,
        by="        return state != DEAD and self._is_accepting[state] and set(self._table[state]) == {DEAD}\n",
        killed_by="test_task_1_accepting_means_that_the_text_may_end_here",
        breaks="ByteAutomaton.is_accepting: True if the text matches as it is, even if more bytes could follow",
    ),
    Mutant(
        name="all-places-must-be-the-end",
        story="A state accepts only if the end is its only place.",
        replace=ACCEPTING,
        by="        self._is_accepting = [state == {places.end} for state in states]\n",
        killed_by="test_task_1_accepting_means_that_the_text_may_end_here",
        breaks="ByteAutomaton.is_accepting: True if the text matches as it is, even if more bytes could follow",
    ),
    Mutant(
        name="every-state-accepts",
        story="Takes every text that is not DEAD yet for a match.",
        replace=ACCEPTS,
        by="        return state != DEAD\n",
        killed_by="test_task_1_accepting_means_that_the_text_may_end_here",
        breaks="ByteAutomaton.is_accepting: False otherwise, also if state is DEAD",
    ),
    Mutant(
        name="a-beginning-is-enough",
        story="Matches as soon as some beginning of the text does, like re.match.",
        replace=MATCHES,
        by="        state = 0\n"
           "        for byte in text:\n"
           "            if self.is_accepting(state):\n"
           "                return True\n"
           "            state = self.next_state(state, byte)\n"
           "        return self.is_accepting(state)\n",
        killed_by="test_task_1_a_plain_text_matches_only_itself",
        breaks="ByteAutomaton.matches: False otherwise",
    ),
    Mutant(
        name="latin-1",
        story="A character is one byte, its code point.",
        replace="        for sequence in utf8_sequences(node.ranges):\n",
        by="        for sequence in ([(first, min(last, 255))] for first, last in node.ranges if first < 256):\n",
        killed_by="test_task_1_characters_of_several_bytes",
        breaks="ByteAutomaton.matches: as re.fullmatch(pattern, text, re.ASCII) does for characters",
    ),
    Mutant(
        name="any-continuation",
        story="After the first byte of a character, takes any bytes from 80 to BF.",
        replace="            first, last = sequence[-1]\n",
        by="            first, last = sequence[-1] if len(sequence) == 1 else (0x80, 0xBF)\n",
        killed_by="test_task_1_characters_of_several_bytes",
        breaks=("ByteAutomaton.matches: as re.fullmatch(pattern, text, re.ASCII) does for characters",
                "invariant 1: exactly if they are the UTF-8 of a text that matches"),
    ),
    Mutant(
        name="one-place-inside-of-all-characters",
        story="All sequences of a set share the place after their first byte, so their ends are mixed up.",
        replace=SEQUENCES,
        by="        inner: dict[int, int] = {}\n"
           "        for sequence in utf8_sequences(node.ranges):\n"
           "            place = start\n"
           "            for index, (first, last) in enumerate(sequence):\n"
           "                is_last = index == len(sequence) - 1\n"
           "                following = end if is_last else inner.setdefault(len(sequence) - index, self._new())\n"
           "                self._edges[place].append((first, last, following))\n"
           "                place = following\n",
        killed_by="test_task_1_bytes_that_are_not_utf8_never_match",
        breaks="ByteAutomaton.matches: also for bytes that are not UTF-8",
    ),
    Mutant(
        name="an-unfinished-character-counts",
        story="A text that ends inside of a character is taken for a match if the character could go on.",
        replace=MATCHES,
        by="        state = 0\n"
           "        for byte in text:\n"
           "            state = self.next_state(state, byte)\n"
           "        return self.is_accepting(state) or state != DEAD and text[-1:] >= b\"\\x80\"\n",
        killed_by="test_task_1_bytes_that_are_not_utf8_never_match",
        breaks="ByteAutomaton.matches: and for a text that ends inside of a character",
    ),
    Mutant(
        name="inside-of-a-character-is-dead",
        story="Reads whole characters only: a state inside of one does not exist.",
        replace=NEXT,
        by="        if state == DEAD or byte >= 0x80 and not any(self._is_accepting):\n"
           "            return DEAD\n"
           "        following = self._table[state][byte]\n"
           "        is_inside = following != DEAD and all(each == DEAD for each in self._table[following][:0x80])\n"
           "        return DEAD if is_inside and not self._is_accepting[following] and byte >= 0xC2 else following\n",
        killed_by="test_task_1_a_text_may_end_inside_of_a_character",
        breaks="ByteAutomaton.next_state: the state to which byte, a number from 0 to 255, leads from state",
    ),
    Mutant(
        name="only-the-last-option-ends",
        story="Only the last option of an Either leads to the place after it.",
        replace=OPTIONS,
        by="                last = self._add(option, start)\n            self._free[last].append(end)\n",
        killed_by="test_task_1_one_of_several_texts",
        breaks="invariant 1: accepts",
    ),
    Mutant(
        name="least-is-ignored",
        story="Every repetition may be left out.",
        replace=LEAST,
        by="        before = start\n" + LEAST + "        self._free[before].append(end)\n",
        killed_by="test_task_1_repetitions",
        breaks="invariant 1: accepts",
    ),
    Mutant(
        name="no-loop",
        story="A repetition without an upper bound is at most one time more than the least.",
        replace="            self._free[self._add(node.node, end)].append(end)\n",
        by="            last = self._new()\n"
           "            self._free[end].append(last)\n"
           "            self._free[self._add(node.node, end)].append(last)\n"
           "            return last\n",
        killed_by="test_task_1_repetitions",
        breaks="invariant 1: accepts",
    ),
    Mutant(
        name="all-or-nothing",
        story="Between least and most times is not possible: only least or most.",
        replace=FREE_ENDS,
        by="                start = self._add(node.node, start)\n            self._free[start].append(end)\n",
        killed_by="test_task_1_repetitions",
        breaks="invariant 1: accepts",
    ),
    Mutant(
        name="one-free-edge-only",
        story="Follows one free edge, and not those after it.",
        replace=CLOSURE,
        by="            for place in self._free[todo.pop()]:\n                reached.add(place)\n",
        killed_by="test_task_1_loops_in_loops_and_empty_alternatives",
        breaks="invariant 1: accepts",
    ),
    Mutant(
        name="one-table-for-all",
        story="The table is an attribute of the class, so a second automaton changes the first.",
        replace="        self._table: list[list[int]] = []\n",
        by="        self._table = ByteAutomaton.__dict__.get(\"rows\") or []\n"
           "        ByteAutomaton.rows = self._table  # type: ignore[attr-defined]\n"
           "        self._table.clear()\n",
        killed_by="test_task_1_states_are_numbers_and_nothing_is_remembered",
        breaks="invariant 2: A state is a number",
    ),
    # ---- Task 2
    Mutant(
        name="the-last-of-equal-tokens",
        story="Stores one token per node: of several with the same bytes, only the last counts.",
        replace=ENDS_HERE,
        by="                node.token_ids = [token_id]\n",
        killed_by="test_task_2_tokens_with_the_same_bytes_all_count",
        breaks="TokenTrie.walk: for each row of the logits, the state after the bytes of that token",
    ),
    Mutant(
        name="only-leaves-are-tokens",
        story="A node that leads on is not taken for the end of a token.",
        replace=FOUND,
        by="            for token_id in node.token_ids if not node.children else ():\n"
           "                after[token_id] = state\n",
        killed_by="test_task_2_a_token_may_be_the_beginning_of_another",
        breaks="TokenTrie.walk: for each row of the logits, the state after the bytes of that token",
    ),
    Mutant(
        name="tokens-without-bytes-stay-where-they-are",
        story="Puts the rows without bytes at the root, so they lead to the state where the walk began.",
        replace=WORD,
        by="            if True:\n",
        killed_by="test_task_2_rows_without_bytes_are_dead",
        breaks=("TokenTrie.walk: DEAD for a row without bytes", "invariant 3: a token without bytes never is"),
    ),
    Mutant(
        name="only-as-many-rows-as-words",
        story="The result ends after the last token that has bytes.",
        replace="        self._num_rows = vocabulary.num_rows\n",
        by="        self._num_rows = 1 + max(i for i, word in enumerate(vocabulary.token_bytes) if word)\n",
        killed_by="test_task_2_rows_without_bytes_are_dead",
        breaks="TokenTrie.walk: for each row of the logits, the state after the bytes of that token",
    ),
    Mutant(
        name="a-trie-for-each-grammar",
        story="Builds the trie again each time.",
        replace=OF,
        by="        return cls(vocabulary)\n",
        killed_by="test_task_2_a_vocabulary_is_read_once",
        breaks=("TokenTrie.of: has been read by the first call with this vocabulary, and by no later one",
                "invariant 5: the trie is built once per vocabulary"),
    ),
    Mutant(
        name="one-trie-for-all-vocabularies",
        story="Keeps the trie in the class.",
        replace=OF,
        by="        if \"kept\" not in cls.__dict__:\n"
           "            cls.kept = cls(vocabulary)  # type: ignore[attr-defined]\n"
           "        return cls.kept  # type: ignore[attr-defined, no-any-return]\n",
        killed_by="test_task_2_each_vocabulary_has_its_own_trie",
        breaks="TokenTrie.of: the trie of vocabulary; another vocabulary has another one",
    ),
    Mutant(
        name="token-by-token",
        story="Reads the bytes of each token from the beginning: the states are right, and there is no trie.",
        replace=TODO,
        by="        words: list[tuple[_Node, bytes]] = [(self._root, b\"\")]\n"
           "        for node, word in words:\n"
           "            words += [(child, word + bytes([byte])) for byte, child in node.children.items()]\n"
           "            end = state\n"
           "            for byte in word if node.token_ids else b\"\":\n"
           "                end = automaton.next_state(end, byte) if end != DEAD else DEAD\n"
           "            for token_id in node.token_ids:\n"
           "                after[token_id] = end\n"
           "        todo: list[tuple[_Node, int]] = []\n",
        killed_by="test_task_2_a_shared_beginning_is_read_once",
        breaks=("TokenTrie.walk: next_state was called at most once for each edge of the trie",
                "invariant 5: A beginning that tokens share is read once per walk"),
    ),
    Mutant(
        name="walks-on-after-dead",
        story="Goes through the whole trie, whatever the automaton says.",
        replace=ON_DEAD,
        by="                todo.append((child, following))\n",
        killed_by="test_task_2_nothing_is_read_after_dead",
        breaks="TokenTrie.walk: no token has been read further after a byte that leads to DEAD",
    ),
    Mutant(
        name="begins-in-the-first-state",
        story="Every walk begins in state 0.",
        replace=TODO,
        by="        todo = [(self._root, 0)]\n",
        killed_by="test_task_2_a_walk_begins_in_any_state",
        breaks="TokenTrie.walk: for each row of the logits, the state after the bytes of that token",
    ),
    Mutant(
        name="the-last-state-that-was-alive",
        story="Where the automaton dies, the walk goes on in the state before.",
        replace=ON_DEAD,
        by="                todo.append((child, state if following == DEAD else following))\n",
        killed_by=AFTER_BYTES,
        breaks="TokenTrie.walk: DEAD for a token whose bytes lead to DEAD",
    ),
    Mutant(
        name="the-first-byte-decides",
        story="Looks at the first byte of a token only.",
        replace=ON_DEAD,
        by="                if following != DEAD:\n"
           "                    below = [child]\n"
           "                    for each in below:\n"
           "                        below += each.children.values()\n"
           "                        for token_id in each.token_ids:\n"
           "                            after[token_id] = following\n",
        killed_by=AFTER_BYTES,
        breaks="TokenTrie.walk: for each row of the logits, the state after the bytes of that token",
    ),
    Mutant(
        name="a-walk-is-kept-by-its-state",
        story="Keeps each walk under the number of its state, and forgets that states belong to an automaton.",
        replace="        after = [DEAD] * self._num_rows\n",
        by="        walks: dict[int, list[int]] = self.__dict__.setdefault(\"walks\", {})\n"
           "        if state in walks:\n"
           "            return walks[state]\n"
           "        after = walks[state] = [DEAD] * self._num_rows\n",
        killed_by="test_task_2_a_walk_keeps_nothing",
        breaks="TokenTrie.walk: keep nothing of the automaton",
    ),
    Mutant(
        name="whole-characters-only",
        story="Leaves tokens out that are not UTF-8 by themselves.",
        replace=WORD,
        by="            if word and word.decode(errors=\"ignore\").encode() == word:\n",
        killed_by="test_task_2_a_walk_begins_in_any_state",
        breaks=("TokenTrie.walk: for each row of the logits, the state after the bytes of that token",
                "invariant 3: A token is allowed exactly if its bytes lead to a state that is not DEAD"),
    ),
    # ---- Task 3
    Mutant(
        name="the-grammar-builds-a-trie",
        story="Calls TokenTrie, and not TokenTrie.of.",
        replace=TRIE,
        by="        self._trie = TokenTrie(vocabulary)\n",
        killed_by="test_task_3_grammars_share_the_trie",
        breaks=("RegexGrammar.__init__: a second grammar with the same vocabulary has not built a second trie",
                "invariant 5: the trie is built once per vocabulary"),
    ),
    Mutant(
        name="masks-are-not-kept",
        story="Computes the mask in every step.",
        replace=IF_UNKNOWN,
        by="        if state is not None:\n",
        killed_by="test_task_3_a_mask_is_computed_once",
        breaks=("RegexGrammar.allowed: the trie has been walked once for this state",
                "invariant 5: a mask is computed once per state"),
    ),
    Mutant(
        name="masks-of-all-grammars",
        story="The dictionary of masks belongs to the class.",
        replace="        self._known: dict[int, tuple[NDArray[np.bool_], Sequence[int]]] = {}\n",
        by="        self._known = self._trie.__dict__.setdefault(\"known\", {})\n",
        killed_by="test_task_3_grammars_do_not_share_masks",
        breaks="RegexGrammar.allowed: True for a token whose bytes lead from state to another state than DEAD",
    ),
    Mutant(
        name="the-mask-can-be-spoiled",
        story="Gives its own array to every caller.",
        replace="            mask.flags.writeable = False\n",
        by="",
        killed_by="test_task_3_a_caller_cannot_spoil_a_mask",
        breaks="RegexGrammar.allowed: if the caller writes into the array, that fails or has no effect",
    ),
    Mutant(
        name="a-list-of-bools",
        story="Returns a list.",
        replace="        return self._look_up(state)[0]\n        # END TASK\n\n    def advance",
        by="        return self._look_up(state)[0].tolist()  # type: ignore[no-any-return]\n"
           "        # END TASK\n\n    def advance",
        killed_by="test_task_3_a_mask_is_an_array_of_bools_with_a_row_for_each_logit",
        breaks="RegexGrammar.allowed: an array of bools of shape [vocabulary.num_rows]",
    ),
    Mutant(
        name="an-array-of-states",
        story="Returns the states, and not whether they are DEAD.",
        replace=MASK,
        by="            mask = np.array(after) + 1\n",
        killed_by="test_task_3_a_mask_is_an_array_of_bools_with_a_row_for_each_logit",
        breaks="RegexGrammar.allowed: an array of bools of shape [vocabulary.num_rows]",
    ),
    Mutant(
        name="state-0-is-no-state",
        story="Takes state 0 for no state. But a loop may lead back to it.",
        replace=MASK,
        by="            mask = np.array(after) > 0\n",
        killed_by="test_task_3_a_text_that_matches_can_be_spelled_in_every_way",
        breaks="RegexGrammar.allowed: True for a token whose bytes lead from state to another state than DEAD",
    ),
    Mutant(
        name="only-tokens-that-finish",
        story="Allows only tokens after which the output matches.",
        replace=MASK,
        by="            mask = np.array([self.is_accepting(each) for each in after])\n",
        killed_by="test_task_3_the_mask_has_the_tokens_that_lead_somewhere",
        breaks=("RegexGrammar.allowed: True for a token whose bytes lead from state to another state than DEAD",
                "invariant 3: A token is allowed exactly if its bytes lead to a state that is not DEAD"),
    ),
    Mutant(
        name="only-the-first-end",
        story="Knows one end of a text.",
        replace=END_OF_TEXT,
        by="            mask[self._vocabulary.eos_token_ids[:1]] = self.is_accepting(state)\n",
        killed_by="test_task_3_the_end_is_allowed_exactly_where_the_output_matches",
        breaks="RegexGrammar.allowed: True for every end of a text if the output so far matches",
    ),
    Mutant(
        name="the-end-is-always-allowed",
        story="Lets the model end the text anywhere.",
        replace=END_OF_TEXT,
        by="            mask[self._vocabulary.eos_token_ids] = True\n",
        killed_by="test_task_3_the_end_is_allowed_exactly_where_the_output_matches",
        breaks=("RegexGrammar.allowed: and False for all of them if it does not",
                "invariant 4: The end of the text is allowed exactly where the output matches"),
    ),
    Mutant(
        name="the-end-only-if-nothing-can-follow",
        story="Allows the end only where the output is complete: a number would go on forever.",
        replace=END_OF_TEXT,
        by="            mask[self._vocabulary.eos_token_ids] = self.is_complete(state)\n",
        killed_by="test_task_3_the_end_is_allowed_exactly_where_the_output_matches",
        breaks=("RegexGrammar.allowed: True for every end of a text if the output so far matches",
                "invariant 4: The end of the text is allowed exactly where the output matches"),
    ),
    Mutant(
        name="no-end",
        story="Forgets that ends have no bytes.",
        replace=END_OF_TEXT,
        by="",
        killed_by="test_task_3_every_mask_of_a_few_texts",
        breaks="RegexGrammar.allowed: True for every end of a text if the output so far matches",
    ),
    Mutant(
        name="tokens-without-bytes-are-harmless",
        story="Allows tokens without bytes, because they do not change the text.",
        replace=MASK,
        by=MASK + "            mask |= np.array([not word for word in self._vocabulary.token_bytes])\n",
        killed_by="test_task_3_tokens_without_bytes_are_never_allowed",
        breaks=("RegexGrammar.allowed: False for all other tokens, also for those without bytes",
                "invariant 3: a token without bytes never is"),
    ),
    Mutant(
        name="the-grammar-remembers",
        story="Stores the current state in the grammar, which all requests share.",
        replace="        return self._look_up(state)[1][token_id]\n",
        by="        self.start = self._look_up(state)[1][token_id]\n        return self.start\n",
        killed_by="test_task_3_states_can_be_asked_in_any_order",
        breaks=("RegexGrammar.advance: nothing has changed: the state of another request with this grammar is still "
                "valid", "invariant 2: all that is remembered of an output"),
    ),
    Mutant(
        name="advance-by-one-byte",
        story="Advances by the first byte of the token.",
        replace="        return self._look_up(state)[1][token_id]\n",
        by="        return self._automaton.next_state(state, self._vocabulary.token_bytes[token_id][0])\n",
        killed_by="test_task_3_a_token_leads_to_the_state_after_its_bytes",
        breaks="RegexGrammar.advance: the state after the bytes of the token",
    ),
    Mutant(
        name="advance-by-characters",
        story="Decodes the token and advances by its characters, so incomplete characters are lost.",
        replace="        return self._look_up(state)[1][token_id]\n",
        by="        text = self._vocabulary.token_bytes[token_id].decode(errors=\"ignore\")\n"
           "        for byte in text.encode():\n"
           "            state = self._automaton.next_state(state, byte)\n"
           "        return state\n",
        killed_by="test_task_3_a_token_may_begin_and_end_inside_of_a_character",
        breaks="RegexGrammar.advance: the state after the bytes of the token",
    ),
    Mutant(
        name="a-forbidden-token-changes-nothing",
        story="Stays in the state if the token is not allowed.",
        replace=ADVANCE,
        by=ADVANCE.replace("            return DEAD\n", "            return state\n"),
        killed_by="test_task_3_a_token_that_is_not_allowed_leads_to_dead",
        breaks="RegexGrammar.advance: DEAD if the token is not allowed in state",
    ),
    Mutant(
        name="the-end-begins-again",
        story="After the end of the text comes the first state.",
        replace="            return state\n        return self._look_up(state)[1][token_id]\n",
        by="            return self.start\n        return self._look_up(state)[1][token_id]\n",
        killed_by="test_task_3_the_end_of_a_text_leads_nowhere_new",
        breaks="RegexGrammar.advance: for an end of a text that is allowed: state itself",
    ),
    Mutant(
        name="the-end-is-dead",
        story="The end of the text has no bytes, so it leads to DEAD.",
        replace="        if token_id in self._vocabulary.eos_token_ids:\n            return state\n",
        by="",
        killed_by="test_task_3_the_end_of_a_text_leads_nowhere_new",
        breaks="RegexGrammar.advance: for an end of a text that is allowed: state itself",
    ),
    Mutant(
        name="dead-begins-again",
        story="After a token that was not allowed, starts from the beginning.",
        replace=ADVANCE,
        by="        if state == DEAD:\n            state = self.start\n" + ADVANCE,
        killed_by="test_task_3_a_token_that_is_not_allowed_leads_to_dead",
        breaks="RegexGrammar.advance: DEAD if state is DEAD",
    ),
    Mutant(
        name="alive-is-accepting",
        story="Takes an output that can still match for one that does.",
        replace="        return self._automaton.is_accepting(state)\n",
        by="        return state != DEAD\n",
        killed_by="test_task_3_accepting_and_complete",
        breaks="RegexGrammar.is_accepting: True if it matches, and False if not or if state is DEAD",
    ),
    Mutant(
        name="accepting-is-complete",
        story="Ends every output as soon as it matches: every number has one digit.",
        replace=COMPLETE,
        by="        return self.is_accepting(state)\n",
        killed_by="test_task_3_accepting_and_complete",
        breaks="RegexGrammar.is_complete: False if it does not match, if it may go on, or if state is DEAD",
    ),
    Mutant(
        name="dead-is-complete",
        story="Asks only whether anything can follow.",
        replace=COMPLETE,
        by=COMPLETE.replace("self.is_accepting(state) and ", ""),
        killed_by="test_task_3_a_token_that_is_not_allowed_leads_to_dead",
        breaks="RegexGrammar.is_complete: False if it does not match, if it may go on, or if state is DEAD",
    ),
    Mutant(
        name="complete-in-ascii",
        story="Asks only whether an ASCII character can follow.",
        replace=COMPLETE,
        by=COMPLETE.replace("range(256)", "range(128)"),
        killed_by="test_task_3_inside_of_a_character_nothing_is_complete",
        breaks="RegexGrammar.is_complete: False if it does not match, if it may go on, or if state is DEAD",
    ),
    Mutant(
        name="complete-if-one-token-is-left",
        story="Counts the tokens of the mask: with two ends of a text, no output is ever complete.",
        replace=COMPLETE,
        by="        return self.is_accepting(state) and int(self.allowed(state).sum()) == 1\n",
        killed_by="test_task_3_accepting_and_complete",
        breaks="RegexGrammar.is_complete: True if the output matches and no further byte is possible",
    ),
    Mutant(
        name="keeps-only-the-newest-mask",
        story="Two requests in different states make it walk through the trie in every step.",
        replace="            self._known[state] = mask, after\n",
        by="            self._known = {state: (mask, after)}\n",
        killed_by="test_task_3_a_mask_is_computed_once",
        breaks=("RegexGrammar.allowed: the trie has been walked once for this state",
                "invariant 5: a mask is computed once per state"),
    ),
    Mutant(
        name="never-complete",
        story="Waits for an end of text in every case.",
        replace=COMPLETE,
        by="        return False\n",
        killed_by="test_task_3_accepting_and_complete",
        breaks="RegexGrammar.is_complete: True if the output matches and no further byte is possible",
    ),
    # ---- Task 4
    Mutant(
        name="the-other-way-round",
        story="Forbids the tokens that are allowed.",
        replace=WHERE,
        by="    return mx.where(mx.array(every), -math.inf, logits)\n",
        killed_by="test_task_4_tokens_that_are_not_allowed_get_minus_infinity",
        breaks=("keep_allowed: a token that is allowed has its old logit",
                "invariant 6: All other logits are as before"),
    ),
    Mutant(
        name="minus-a-lot",
        story="A large negative number instead of -inf.",
        replace=WHERE,
        by="    return mx.where(mx.array(every), logits, -1e9)\n",
        killed_by="test_task_4_tokens_that_are_not_allowed_get_minus_infinity",
        breaks=("keep_allowed: a token that is not allowed has -inf, whatever its logit was",
                "invariant 6: a token that is not allowed has the logit -inf"),
    ),
    Mutant(
        name="zero",
        story="Multiplies by the mask: a forbidden token has logit 0, which may be the largest.",
        replace=WHERE,
        by="    return mx.where(mx.array(every), logits, 0.0)\n",
        killed_by="test_task_4_tokens_that_are_not_allowed_get_minus_infinity",
        breaks="keep_allowed: a token that is not allowed has -inf, whatever its logit was",
    ),
    Mutant(
        name="adds-minus-infinity",
        story="Adds -inf to the logits of forbidden tokens: inf - inf is NaN.",
        replace=WHERE,
        by="    return logits + mx.where(mx.array(every), 0.0, -math.inf).astype(logits.dtype)\n",
        killed_by="test_task_4_a_mask_wins_over_every_logit",
        breaks="keep_allowed: also if it was +inf or NaN",
    ),
    Mutant(
        name="allowed-tokens-become-finite",
        story="Replaces the -inf of an allowed token by the smallest number, so that it can be drawn again.",
        replace=WHERE,
        by="    lowest = float(np.finfo(np.float32).min)\n"
           "    return mx.where(mx.array(every), mx.maximum(logits, lowest), -math.inf)\n",
        killed_by="test_task_4_minus_infinity_stays",
        breaks=("keep_allowed: a token that is allowed has its old logit, even if that is -inf",
                "invariant 6: All other logits are as before"),
    ),
    Mutant(
        name="float32-always",
        story="Converts the logits.",
        replace=WHERE,
        by="    return mx.where(mx.array(every), logits.astype(mx.float32), -math.inf)\n",
        killed_by="test_task_4_the_type_stays",
        breaks="keep_allowed: an array with the shape and type of logits",
    ),
    Mutant(
        name="one-mask-for-all",
        story="Uses the first mask for every row.",
        replace=EVERY,
        by=EVERY + "    every = np.stack([each if mask is None else every[0] for each, mask in zip(every, masks)])\n",
        killed_by="test_task_4_each_row_has_its_own_mask",
        breaks="keep_allowed: a token that is allowed has its old logit",
    ),
    Mutant(
        name="none-forbids-all",
        story="A row without a mask allows nothing.",
        replace="    all_tokens = np.ones(",
        by="    all_tokens = np.zeros(",
        killed_by="test_task_4_a_row_without_a_mask_is_free",
        breaks="keep_allowed: a row whose mask is None is as before, whatever the masks of the other rows are",
    ),
    Mutant(
        name="one-free-row-frees-all",
        story="If a row has no mask, returns the logits as they are.",
        replace="    all_tokens = np.ones(",
        by="    if any(mask is None for mask in masks):\n        return logits\n    all_tokens = np.ones(",
        killed_by="test_task_4_a_row_without_a_mask_is_free",
        breaks="keep_allowed: a row whose mask is None is as before, whatever the masks of the other rows are",
    ),
    Mutant(
        name="writes-into-the-logits",
        story="Changes the array that it was given.",
        replace=WHERE,
        by="    logits[:] = mx.where(mx.array(every), logits, -math.inf)\n    return logits\n",
        killed_by="test_task_4_the_arguments_are_unchanged",
        breaks="keep_allowed: logits and masks have not changed",
        only_in_process=True,
    ),
    Mutant(
        name="writes-into-the-masks",
        story="Replaces None in the caller's list.",
        replace=EVERY,
        by="    for row, each in enumerate(masks):\n"
           "        if each is None:\n"
           "            masks[row] = all_tokens  # type: ignore[index]\n" + EVERY,
        killed_by="test_task_4_the_arguments_are_unchanged",
        breaks="keep_allowed: logits and masks have not changed",
    ),
    Mutant(
        name="writes-into-a-mask",
        story="Inverts the mask in place, and needs an array that can be written to.",
        replace=EVERY,
        by="    for each in masks:\n"
           "        if each is not None:\n"
           "            np.logical_and(each, True, out=each)\n" + EVERY,
        killed_by="test_task_4_masks_that_cannot_be_written_to",
        breaks="keep_allowed: logits and masks have not changed",
    ),
]
