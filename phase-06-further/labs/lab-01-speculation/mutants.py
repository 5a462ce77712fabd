"""Common mistakes in guessing, checking, recording and giving back, and the test that catches each of them."""

from course.mutants import Mutant

MATCH = """            if self.match is not None and tokens[self.match] == tokens[end - 1]:
                self.match += 1
            else:
                self.match = self._positions.get(newest)
"""
ENTRY = """            if len(newest) == NUM_MATCHING:
                self._positions[newest] = end
"""
GUESS = """        for position in range(text.match, text.match + max_tokens):
            guess.append(tokens[position] if position < text.num_read else guess[position - text.num_read])
        return guess
"""
NEW_TEXT = """    def __init__(self) -> None:
        self.num_read = 0
        #: The position of the token that is expected next, or None.
        self.match: int | None = None
        #: The newest tokens → the position after them.
        self._positions: dict[tuple[int, ...], int] = {}
"""
ADVANCE = """        # TASK 1: NgramDrafter.advance
        self._read(request)
"""
FORGET = "        self._texts.pop(request.request_id, None)\n"
FIND_TEXT = "        text = self._texts.setdefault(request.request_id, _Text())\n"
ROWS = "        return [row_after(row, draft[:num_before]) for num_before in range(len(draft) + 1)]\n"
ACCEPTED = "        return list(drawn[:num_right + 1])\n"
RIGHT = "        self.num_right = MEMORY * self.num_right + num_right\n"
JUDGED = "        self.num_judged = MEMORY * self.num_judged + min(num_right + 1, num_compared)\n"
NEXT_REST = "            self._num_resting = RESTS[min(self._num_rests, len(RESTS) - 1)]\n"
KEPT = "        num_kept = self._num_blocks_for(request.num_computed_tokens)\n"
FREED = "        self.block_pool.free_blocks(reversed(unused))\n"
INDEXED = "        self._index_full_blocks(request, request.num_computed_tokens)\n"

MUTANTS = [
    # ---- Task 1
    Mutant(
        name="the-newest-occurrence-always",
        story="Looks up the newest two tokens at every position, even if the match so far was right.",
        replace=MATCH,
        by="            self.match = self._positions.get(newest)\n",
        killed_by="test_task_1_a_match_that_keeps_being_right_is_kept",
        breaks="NgramDrafter.propose: A match that keeps being right is kept, even if the newest tokens occurred again "
               "later",
    ),
    Mutant(
        name="reads-the-text-as-text",
        story="Copies the whole text for every guess, by way of its written form.",
        replace="        tokens, guess = request.all_token_ids, list[int]()\n",
        by="        import json\n        tokens, guess = json.loads(repr(request.all_token_ids)), list[int]()\n",
        killed_by="test_task_1_a_new_token_costs_the_same_in_a_long_text",
        breaks="NgramDrafter.propose: the cost of a call depends on the number of new tokens and on ``max_tokens``",
    ),
    Mutant(
        name="finds-itself",
        story="Enters the newest tokens into the dictionary before it looks them up, and finds the place where they "
              "are now.",
        replace=MATCH + ENTRY,
        by=ENTRY + MATCH,
        killed_by="test_task_1_without_an_earlier_occurrence_nothing_is_guessed",
        breaks=("NgramDrafter.propose: an empty list if there is no match",
                "NgramDrafter.propose: the position after their last earlier occurrence"),
    ),
    Mutant(
        name="the-first-occurrence-counts",
        story="Does not overwrite an entry: the guess is what followed the first occurrence.",
        replace="                self._positions[newest] = end\n",
        by="                self._positions.setdefault(newest, end)\n",
        killed_by="test_task_1_the_last_earlier_occurrence_counts",
        breaks="NgramDrafter.propose: the position after their last earlier occurrence",
    ),
    Mutant(
        name="no-overlap",
        story="Enters the tokens one position late, so an occurrence that ends one token before the end is missed.",
        replace=ENTRY,
        by="            if end > NUM_MATCHING:\n"
           "                self._positions[tuple(tokens[end - 1 - NUM_MATCHING:end - 1])] = end - 1\n",
        killed_by="test_task_1_an_earlier_occurrence_may_overlap_the_newest_tokens",
        breaks="NgramDrafter.propose: which may overlap them",
    ),
    Mutant(
        name="a-wrong-match-ends",
        story="After a wrong token there is no match until the next token: the newest two are not looked up at once.",
        replace="            else:\n                self.match = self._positions.get(newest)\n",
        by="            else:\n"
           "                self.match = self._positions.get(newest) if self.match is None else None\n",
        killed_by="test_task_1_a_match_that_was_wrong_is_replaced",
        breaks="NgramDrafter.propose: else, if the tokens at p - 1 and p (NUM_MATCHING of them) occurred before",
    ),
    Mutant(
        name="a-wrong-match-stays",
        story="Keeps the match although another token came, if the newest two tokens never occurred before.",
        replace="                self.match = self._positions.get(newest)\n",
        by="                self.match = self._positions.get(newest, self.match)\n",
        killed_by="test_task_1_a_match_that_was_wrong_is_replaced",
        breaks="NgramDrafter.propose: else: no match",
    ),
    Mutant(
        name="one-equal-token-is-a-match",
        story="Matches a single token.",
        replace="NUM_MATCHING = 2\n",
        by="NUM_MATCHING = 1\n",
        killed_by="test_task_1_without_an_earlier_occurrence_nothing_is_guessed",
        breaks="NgramDrafter.propose: else, if the tokens at p - 1 and p (NUM_MATCHING of them) occurred before",
    ),
    Mutant(
        name="guesses-the-newest-token-again",
        story="Stores the position of the last matching token, not the one after it.",
        replace="                self._positions[newest] = end\n",
        by="                self._positions[newest] = end - 1\n",
        killed_by="test_task_1_the_guess_is_what_followed_the_newest_two_tokens",
        breaks="NgramDrafter.propose: max_tokens tokens: the token at the match, and those after it",
    ),
    Mutant(
        name="a-guess-ends-with-the-text",
        story="Slices the text, so the guess is shorter where the text ends.",
        replace=GUESS,
        by="        guess += tokens[text.match:text.match + max_tokens]\n        return guess\n",
        killed_by="test_task_1_a_guess_that_reaches_the_end_goes_on_with_itself",
        breaks="NgramDrafter.propose: if the guess reaches the end of the text, it goes on with the guess itself",
    ),
    Mutant(
        name="a-guess-goes-on-at-the-front",
        story="Takes the position modulo the length of the text: after the end, the guess goes on with the first "
              "token of the text.",
        replace="guess.append(tokens[position] if position < text.num_read else guess[position - text.num_read])",
        by="guess.append(tokens[position % text.num_read])",
        killed_by="test_task_1_a_guess_that_reaches_the_end_goes_on_with_itself",
        breaks="NgramDrafter.propose: if the guess reaches the end of the text, it goes on with the guess itself",
    ),
    Mutant(
        name="one-token-too-few",
        story="Counts the token at the match and then only the tokens before max_tokens.",
        replace="        for position in range(text.match, text.match + max_tokens):\n",
        by="        for position in range(text.match, text.match + max_tokens - 1):\n",
        killed_by="test_task_1_a_guess_has_max_tokens_tokens",
        breaks="NgramDrafter.propose: max_tokens tokens: the token at the match, and those after it",
    ),
    Mutant(
        name="at-least-one-token",
        story="Guesses one token even if none was asked for.",
        replace="        for position in range(text.match, text.match + max_tokens):\n",
        by="        for position in range(text.match, text.match + max(max_tokens, 1)):\n",
        killed_by="test_task_1_a_guess_has_max_tokens_tokens",
        breaks="NgramDrafter.propose: max_tokens tokens: the token at the match, and those after it",
    ),
    Mutant(
        name="no-match-is-none",
        story="Returns None instead of an empty list.",
        replace="        if text.match is None:\n            return []\n",
        by="        if text.match is None:\n            return None\n",
        killed_by="test_task_1_without_an_earlier_occurrence_nothing_is_guessed",
        breaks="NgramDrafter.propose: an empty list if there is no match",
    ),
    Mutant(
        name="one-text-for-all",
        story="Keeps one text, as if there were only one request.",
        replace=FIND_TEXT,
        by='        text = self._texts.setdefault("", _Text())\n',
        killed_by="test_task_1_requests_do_not_see_each_other",
        breaks=("NgramDrafter.propose: the texts of other requests do not matter",
                "invariant 3: A guess depends on that request's text only"),
    ),
    Mutant(
        name="a-mutable-default",
        story="The dictionary is a default argument, so all requests share it.",
        replace=NEW_TEXT,
        by=NEW_TEXT.replace("(self)", "(self, positions: dict[tuple[int, ...], int] = {})")
                   .replace(": dict[tuple[int, ...], int] = {}\n", " = positions\n"),
        killed_by="test_task_1_requests_do_not_see_each_other",
        breaks=("NgramDrafter.propose: the texts of other requests do not matter",
                "invariant 3: A guess depends on that request's text only"),
    ),
    Mutant(
        name="reads-everything-again",
        story="Begins every call with an empty text: the guesses are right, and the cost grows with the text.",
        replace=FIND_TEXT,
        by="        text = self._texts[request.request_id] = _Text()\n",
        killed_by="test_task_1_a_new_token_costs_the_same_in_a_long_text",
        breaks=("NgramDrafter.propose: a token is entered into the dictionary once",
                "invariant 3: The drafter enters each token of a request once"),
    ),
    Mutant(
        name="copies-the-text",
        story="Copies all tokens before it reads the new ones.",
        replace="        text.read(request.all_token_ids)\n",
        by="        text.read(list(request.all_token_ids))\n",
        killed_by="test_task_1_a_new_token_costs_the_same_in_a_long_text",
        breaks="NgramDrafter.propose: and not on the length of the text",
    ),
    Mutant(
        name="searches-its-own-list",
        story="Goes through all pairs of tokens that it has kept, instead of looking one up.",
        replace="                self.match = self._positions.get(newest)\n",
        by="                self.match = None\n"
           "                for earlier in self._positions:\n"
           "                    if earlier == newest:\n"
           "                        self.match = self._positions[earlier]\n",
        killed_by="test_task_1_no_call_goes_through_the_text",
        breaks="NgramDrafter.propose: and not on the length of the text",
    ),
    Mutant(
        name="the-prompt-only",
        story="Reads the prompt, and never the answer.",
        replace="        text.read(request.all_token_ids)\n",
        by="        text.read(request.prompt_token_ids)\n",
        killed_by="test_task_1_the_first_call_reads_the_prompt_and_the_answer_so_far",
        breaks="NgramDrafter.propose: the tokens of request that were not read yet have been read",
    ),
    Mutant(
        name="the-answer-only",
        story="Reads only the tokens that the request has said, and not its prompt.",
        replace="        text.read(request.all_token_ids)\n",
        by="        text.num_read = text.num_read or request.num_prompt_tokens\n"
           "        text.read(request.all_token_ids)\n",
        killed_by="test_task_1_the_guess_is_what_followed_the_newest_two_tokens",
        breaks="NgramDrafter.propose: on the first call, that is the whole prompt",
    ),
    Mutant(
        name="only-advance-reads",
        story="Reads in advance() only: the first guess knows nothing of the prompt.",
        replace="        text = self._read(request)\n        if text.match is None:\n",
        by="        text = self._texts.setdefault(request.request_id, _Text())\n        if text.match is None:\n",
        killed_by="test_task_1_a_guess_takes_new_tokens_into_account",
        breaks="NgramDrafter.propose: the tokens of request that were not read yet have been read",
    ),
    Mutant(
        name="writes-the-guess-into-the-request",
        story="Appends the guess to the request, so that the overlap needs no special case, and leaves it there.",
        replace=GUESS,
        by="        for position in range(text.match, text.match + max_tokens):\n"
           "            guess.append(request.all_token_ids[position])\n"
           "            request.append_output_token(guess[-1])\n"
           "        return guess\n",
        killed_by="test_task_1_the_request_is_only_read",
        breaks="NgramDrafter.propose: request has not changed",
    ),
    Mutant(
        name="reads-twice",
        story="Reads the tokens in advance(), and again in the next propose().",
        replace=ADVANCE,
        by=ADVANCE + "        self._texts[request.request_id].num_read -= len(token_ids)\n",
        killed_by="test_task_1_tokens_may_be_told_several_times_before_a_guess",
        breaks="NgramDrafter.advance: no token is entered twice",
    ),
    Mutant(
        name="advance-reads-everything-again",
        story="Makes a new text after each step: the guesses are right, and each step costs as much as the first call.",
        replace=ADVANCE,
        by=ADVANCE.replace("        self._read", "        self.forget(request)\n        self._read"),
        killed_by="test_task_1_a_new_token_costs_the_same_in_a_long_text",
        breaks=("NgramDrafter.advance: no token is entered twice",
                "invariant 3: The drafter enters each token of a request once"),
    ),
    Mutant(
        name="advance-only-counts",
        story="Notes in advance() that the tokens are known, and never reads them.",
        replace=ADVANCE,
        by="        # TASK 1: NgramDrafter.advance\n"
           "        self._texts.setdefault(request.request_id, _Text()).num_read = request.num_tokens\n",
        killed_by="test_task_1_a_guess_takes_new_tokens_into_account",
        breaks="NgramDrafter.advance: the next guess takes token_ids into account",
    ),
    Mutant(
        name="never-forgets",
        story="Does nothing in forget(): a new request with the same id begins in the middle of the old text.",
        replace=FORGET,
        by="        pass\n",
        killed_by="test_task_1_a_forgotten_id_starts_with_an_empty_text",
        breaks="NgramDrafter.forget: a new request with the same id starts with an empty text",
    ),
    Mutant(
        name="forgets-the-match-only",
        story="Resets the match and the number of tokens, and keeps the dictionary.",
        replace=FORGET,
        by="        text = self._texts.get(request.request_id, _Text())\n"
           "        text.match, text.num_read = None, 0\n",
        killed_by="test_task_1_a_forgotten_id_starts_with_an_empty_text",
        breaks="NgramDrafter.forget: a new request with the same id starts with an empty text",
    ),
    Mutant(
        name="keeps-old-texts-for-later",
        story="Moves the text of a request that has ended to another key, and never deletes it.",
        replace=FORGET,
        by='        self._texts[f"{request.request_id}, ended"] = self._texts.pop(request.request_id, _Text())\n',
        killed_by="test_task_1_nothing_of_a_forgotten_text_is_kept",
        breaks="NgramDrafter.forget: nothing of the request's text is kept",
    ),
    Mutant(
        name="an-empty-text-for-each-request-that-ended",
        story="Replaces the text by an empty one: the drafter grows with every request that it has ever seen.",
        replace=FORGET,
        by="        self._texts[request.request_id] = _Text()\n",
        killed_by="test_task_1_nothing_of_a_forgotten_text_is_kept",
        breaks="NgramDrafter.forget: Drop everything about request",
    ),
    Mutant(
        name="forgets-only-what-it-knows",
        story="Deletes the entry without asking whether there is one.",
        replace=FORGET,
        by="        del self._texts[request.request_id]\n",
        killed_by="test_task_1_forget_concerns_one_request",
        breaks="NgramDrafter.forget: a request that was never seen is accepted, and changes nothing",
    ),
    # ---- Task 2
    Mutant(
        name="a-row-that-is-one-token-ahead",
        story="Row i follows i + 1 drafted tokens.",
        replace=ROWS,
        by=ROWS.replace("draft[:num_before]", "draft[:num_before + 1]"),
        killed_by="test_task_2_row_i_follows_the_first_i_tokens_of_the_draft",
        breaks="Verifier.rows: row i is the row of the request after it has got the first i tokens of draft",
    ),
    Mutant(
        name="no-row-after-the-last-drafted-token",
        story="Draws one row per drafted token, so a draft that is right gives no additional token.",
        replace=ROWS,
        by="        return [row_after(row, draft[:num_before]) for num_before in range(len(draft) or 1)]\n",
        killed_by="test_task_2_row_i_follows_the_first_i_tokens_of_the_draft",
        breaks="Verifier.rows: len(draft) + 1 rows",
    ),
    Mutant(
        name="every-row-is-the-first-one",
        story="Draws every position with the row of the request: noise and penalties are those of its next token.",
        replace=ROWS,
        by="        return [row for _ in range(len(draft) + 1)]\n",
        killed_by="test_task_2_no_draft_changes_a_token",
        breaks=("invariant 1: The tokens of a request are the same with and without drafts",
                "Verifier.rows: row i is the row of the request after it has got the first i tokens of draft"),
    ),
    Mutant(
        name="right-noise-and-wrong-penalties",
        story="Only counts the drafted tokens: each row has the noise of its position, and the penalties do not see "
              "the drafted tokens.",
        replace=ROWS,
        by="        return [row_after(row, draft[:1] * num_before) for num_before in range(len(draft) + 1)]\n",
        killed_by="test_task_2_no_draft_changes_a_token",
        breaks="invariant 1: with penalties, and for any guess",
    ),
    Mutant(
        name="one-list-for-all-rows",
        story="Appends the drafted tokens to the list of the request's own row.",
        replace=ROWS,
        by="        rows = [row]\n"
           "        for token_id in draft:\n"
           "            row.output_token_ids.append(token_id)\n"
           "            rows.append(row_after(row, ()))\n"
           "        return rows\n",
        killed_by="test_task_2_rows_changes_neither_the_row_nor_the_draft",
        breaks="Verifier.rows: row and draft have not changed",
    ),
    Mutant(
        name="uses-up-the-draft",
        story="Takes the tokens out of the draft one by one.",
        replace=ROWS,
        by="        rows, said, draft = [row], list[int](), draft if isinstance(draft, list) else list(draft)\n"
           "        while draft:\n"
           "            said.append(draft.pop(0))\n"
           "            rows.append(row_after(row, said))\n"
           "        return rows\n",
        killed_by="test_task_2_rows_changes_neither_the_row_nor_the_draft",
        breaks="Verifier.rows: row and draft have not changed",
    ),
    Mutant(
        name="a-key-for-each-row",
        story="Adds the place in the draft to the key, although the number of output tokens counts already.",
        replace=ROWS,
        by="        rows = [row_after(row, draft[:num_before]) for num_before in range(len(draft) + 1)]\n"
           "        for place, each in enumerate(rows[1:], 1):\n"
           "            each.key = (each.key[0], each.key[1] + place)\n"
           "        return rows\n",
        killed_by="test_task_2_parameters_prompt_and_key_stay",
        breaks="Verifier.rows: everything but output_token_ids is as in row: parameters, prompt, key",
    ),
    Mutant(
        name="drops-the-models-own-token",
        story="Returns the right drafted tokens only: a step whose draft is wrong gives nothing.",
        replace=ACCEPTED,
        by="        return list(drawn[:num_right])\n",
        killed_by="test_task_2_tokens_count_up_to_the_first_that_differs",
        breaks=("Verifier.accept: the drawn tokens up to and including the first that differs from the draft",
                "invariant 2: those up to and including the first that differs from the draft count"),
    ),
    Mutant(
        name="one-token-after-the-wrong-one",
        story="Counts the token that was drawn after the first wrong one.",
        replace=ACCEPTED,
        by="        return list(drawn[:num_right + 2])\n",
        killed_by="test_task_2_tokens_count_up_to_the_first_that_differs",
        breaks=("Verifier.accept: the drawn tokens up to and including the first that differs from the draft",
                "invariant 2: those up to and including the first that differs from the draft count"),
    ),
    Mutant(
        name="everything-that-was-drawn",
        story="Returns all drawn tokens, whatever the draft was.",
        replace=ACCEPTED,
        by="        return list(drawn)\n",
        killed_by="test_task_2_no_draft_changes_a_token",
        breaks=("invariant 1: The tokens of a request are the same with and without drafts",
                "Verifier.accept: the drawn tokens up to and including the first that differs from the draft"),
    ),
    Mutant(
        name="equal-is-right",
        story="Keeps every drawn token that equals the drafted one, even after a wrong one.",
        replace=ACCEPTED,
        by="        later = zip(drawn[num_right + 1:], draft[num_right + 1:])\n"
           "        return [*drawn[:num_right + 1], *(token for token, guess in later if token == guess)]\n",
        killed_by="test_task_2_an_equal_number_after_a_wrong_one_is_a_coincidence",
        breaks="invariant 2: those up to and including the first that differs from the draft count",
    ),
    Mutant(
        name="no-token-after-a-right-draft",
        story="Returns at most as many tokens as the draft has.",
        replace=ACCEPTED,
        by="        return list(drawn[:min(num_right + 1, len(draft) or 1)])\n",
        killed_by="test_task_2_a_right_draft_gives_one_token_more_than_it_has",
        breaks="Verifier.accept: also the one after the last drafted token",
    ),
    Mutant(
        name="all-or-nothing",
        story="Drops the whole draft if one of its tokens is wrong.",
        replace=ACCEPTED,
        by="        return list(drawn if num_right == len(draft) else drawn[:1])\n",
        killed_by="test_task_2_every_short_draft_and_every_draw",
        breaks="Verifier.accept: the drawn tokens up to and including the first that differs from the draft",
    ),
    Mutant(
        name="a-token-for-every-row",
        story="Assumes that a token was drawn for every drafted token.",
        replace="        while num_right < min(len(draft), len(drawn) - 1) and draft[num_right] == drawn[num_right]:\n",
        by="        while num_right < len(draft) and draft[num_right] == drawn[num_right]:\n",
        killed_by="test_task_2_fewer_tokens_than_rows_may_be_drawn",
        breaks="Verifier.accept: all drawn tokens if none differs",
    ),
    Mutant(
        name="cuts-off-what-was-drawn",
        story="Deletes the tokens that do not count from the list that it was given.",
        replace=ACCEPTED,
        by="        drawn = drawn if isinstance(drawn, list) else list(drawn)\n"
           "        del drawn[num_right + 1:]\n"
           "        return list(drawn)\n",
        killed_by="test_task_2_accept_changes_neither_list",
        breaks="Verifier.accept: draft and drawn have not changed",
    ),
    # ---- Task 3
    Mutant(
        name="right-after-wrong-counts",
        story="Counts every position at which guess and tokens are equal.",
        replace="next((i for i in range(num_compared) if guess[i] != token_ids[i]), num_compared)\n",
        by="sum(guess[i] == token_ids[i] for i in range(num_compared))\n",
        killed_by="test_task_3_tokens_after_the_first_wrong_one_say_nothing",
        breaks="GuessRecord.judge: plus the number of right tokens before the first wrong one",
    ),
    Mutant(
        name="wrong-after-wrong-counts",
        story="Judges all tokens of the guess: those after a wrong one count as wrong.",
        replace=JUDGED,
        by="        self.num_judged = MEMORY * self.num_judged + num_compared\n",
        killed_by="test_task_3_tokens_after_the_first_wrong_one_say_nothing",
        breaks="GuessRecord.judge: plus that number, plus 1 if there is a wrong one",
    ),
    Mutant(
        name="only-right-tokens-are-judged",
        story="Forgets to count the wrong token: the rate never falls.",
        replace=JUDGED,
        by="        self.num_judged = MEMORY * self.num_judged + num_right\n",
        killed_by="test_task_3_right_tokens_and_the_first_wrong_one_are_judged",
        breaks="GuessRecord.judge: plus 1 if there is a wrong one",
    ),
    Mutant(
        name="always-one-wrong-token",
        story="Adds 1 for a wrong token even if there is none.",
        replace=JUDGED,
        by="        self.num_judged = MEMORY * self.num_judged + num_right + 1\n",
        killed_by="test_task_3_right_tokens_and_the_first_wrong_one_are_judged",
        breaks="GuessRecord.judge: plus 1 if there is a wrong one",
    ),
    Mutant(
        name="what-is-missing-is-wrong",
        story="Judges past the end of the tokens: a guess that is longer counts as wrong.",
        replace=JUDGED,
        by="        self.num_judged = MEMORY * self.num_judged + min(num_right + 1, len(guess))\n",
        killed_by="test_task_3_only_positions_that_both_have_are_compared",
        breaks=("GuessRecord.judge: only positions that both have can be compared",
                "GuessRecord.judge: num_judged is MEMORY times the old one"),
    ),
    Mutant(
        name="remembers-everything",
        story="Does not age the right guesses: a rate that was high falls slowly.",
        replace=RIGHT,
        by="        self.num_right = self.num_right + num_right\n",
        killed_by="test_task_3_older_guesses_count_less",
        breaks="GuessRecord.judge: num_right is MEMORY times the old one",
    ),
    Mutant(
        name="ages-with-every-token",
        story="Multiplies by MEMORY once per compared token, not once per guess.",
        replace=RIGHT + JUDGED,
        by=(RIGHT + JUDGED).replace("MEMORY *", "MEMORY ** num_compared *"),
        killed_by="test_task_3_older_guesses_count_less",
        breaks=("GuessRecord.judge: num_right is MEMORY times the old one",
                "GuessRecord.judge: num_judged is MEMORY times the old one"),
    ),
    Mutant(
        name="no-guess-ages-the-others",
        story="Does not return early if there is nothing to compare: the old numbers become smaller.",
        replace="        if num_compared == 0:\n            return\n",
        by="",
        killed_by="test_task_3_an_empty_guess_is_not_judged",
        breaks="GuessRecord.judge: if guess or token_ids is empty, nothing has changed",
    ),
    Mutant(
        name="worth-as-much-as-it-costs",
        story="Uses >= instead of >.",
        replace="        while length < max_tokens and chance > cost:\n",
        by="        while length < max_tokens and chance >= cost:\n",
        killed_by="test_task_3_a_token_that_is_worth_its_cost_exactly_is_left_out",
        breaks="GuessRecord.length: if both are equal, it is not",
    ),
    Mutant(
        name="longer-than-allowed",
        story="Forgets max_tokens.",
        replace="        while length < max_tokens and chance > cost:\n",
        by="        while length < 100 and chance > cost:\n",
        killed_by="test_task_3_a_draft_has_at_most_max_tokens",
        breaks="GuessRecord.length: the largest length, at most max_tokens, all of whose tokens are worth computing",
    ),
    Mutant(
        name="every-token-has-the-same-chance",
        story="Compares the rate itself with the cost, for each token: the tokens before it are forgotten.",
        replace="            chance *= self.rate\n",
        by="",
        killed_by="test_task_3_a_draft_is_as_long_as_its_tokens_are_worth",
        breaks=("GuessRecord.length: token i, counted from 1, is worth computing if rate ** i is more than cost",
                "invariant 4: A draft is at most as long as the record of the request's guesses makes worthwhile"),
    ),
    Mutant(
        name="counts-from-0",
        story="The first token has the chance rate ** 0, which is 1.",
        replace="        length, chance = 0, self.rate\n",
        by="        length, chance = 0, 1.0\n",
        killed_by="test_task_3_a_draft_is_as_long_as_its_tokens_are_worth",
        breaks="GuessRecord.length: token i, counted from 1, is worth computing if rate ** i is more than cost",
    ),
    Mutant(
        name="always-a-draft",
        story="Drafts at least one token: drafts that keep failing never stop.",
        replace="            chance *= self.rate\n        return length\n",
        by="            chance *= self.rate\n        return min(max(length, 1), max_tokens)\n",
        killed_by="test_task_3_drafts_stop_while_guesses_fail_and_come_back",
        breaks=("GuessRecord.length: all of whose tokens are worth computing",
                "invariant 4: A draft is at most as long as the record of the request's guesses makes worthwhile"),
    ),
    Mutant(
        name="asking-is-a-guess",
        story="Counts a token as judged when its length is asked for.",
        replace="        length, chance = 0, self.rate\n",
        by="        length, chance = 0, self.rate\n        self.num_judged += 1\n",
        killed_by="test_task_3_length_changes_nothing",
        breaks="GuessRecord.length: nothing has changed",
    ),
    # ---- Task 4
    Mutant(
        name="a-rest-begins-with-true",
        story="Returns True in the first step of a rest, and then rests.",
        replace="        self._num_resting -= 1\n        return self._num_resting == 0\n",
        by="        self._num_resting -= 1\n        return self._num_resting + 1 in RESTS and self._num_rests > 0\n",
        killed_by="test_task_4_the_first_rest_takes_eight_steps",
        breaks="GuessRecord.is_rested: True in the last step of a rest, and False in the steps before it",
    ),
    Mutant(
        name="a-rest-that-is-one-step-too-long",
        story="Asks in the step after the rest.",
        replace=NEXT_REST,
        by=NEXT_REST.replace(" = RESTS", " = 1 + RESTS"),
        killed_by="test_task_4_the_first_rest_takes_eight_steps",
        breaks="GuessRecord.is_rested: of the first 8 calls, only the eighth returns True",
    ),
    Mutant(
        name="rested-forever",
        story="Returns True in every step after the first rest.",
        replace="        self._num_resting -= 1\n        return self._num_resting == 0\n",
        by="        self._num_resting -= 1\n        return self._num_resting == 0 or self._num_rests > 1\n",
        killed_by="test_task_4_each_rest_is_longer_until_the_longest",
        breaks="GuessRecord.is_rested: True in the last step of a rest, and False in the steps before it",
    ),
    Mutant(
        name="every-rest-is-the-first",
        story="Never takes a longer rest.",
        replace=NEXT_REST,
        by="            self._num_resting = RESTS[0]\n",
        killed_by="test_task_4_a_costly_drafter_that_keeps_failing_is_asked_less_and_less",
        breaks=("GuessRecord.is_rested: the next rest takes RESTS[1] steps, and so on",
                "invariant 5: A costly drafter that keeps failing is asked after 8, 16, 32 and then every 64 steps"),
    ),
    Mutant(
        name="rests-double-without-end",
        story="Doubles the rest each time: after an hour of failures, the drafter is never asked again.",
        replace=NEXT_REST,
        by="            self._num_resting = RESTS[0] * 2 ** self._num_rests\n",
        killed_by="test_task_4_each_rest_is_longer_until_the_longest",
        breaks=("GuessRecord.is_rested: after the last of RESTS, every rest takes as long as that one",
                "invariant 5: A costly drafter that keeps failing is asked after 8, 16, 32 and then every 64 steps"),
    ),
    Mutant(
        name="after-the-longest-the-shortest",
        story="Begins with the shortest rest again after the longest one.",
        replace=NEXT_REST,
        by="            self._num_resting = RESTS[self._num_rests % len(RESTS)]\n",
        killed_by="test_task_4_each_rest_is_longer_until_the_longest",
        breaks="GuessRecord.is_rested: after the last of RESTS, every rest takes as long as that one",
    ),
    Mutant(
        name="a-right-token-is-not-noticed",
        story="Does not reset the rests: a text that has become easy to guess is asked for every 64 steps.",
        replace="        if num_right:\n            self._num_rests = 0\n",
        by="",
        killed_by="test_task_4_after_a_right_token_the_next_rest_is_the_shortest",
        breaks=("GuessRecord.judge: task 4: if at least one token was right, the next rest is again the shortest one",
                "GuessRecord.is_rested: the next rest takes RESTS[0] steps again"),
    ),
    Mutant(
        name="one-rest-shorter",
        story="Goes back by one rest after a right token, and not to the shortest one.",
        replace="        if num_right:\n            self._num_rests = 0\n",
        by="        if num_right:\n            self._num_rests = max(min(self._num_rests, len(RESTS)) - 2, 0)\n",
        killed_by="test_task_4_after_a_right_token_the_next_rest_is_the_shortest",
        breaks="GuessRecord.is_rested: the next rest takes RESTS[0] steps again",
    ),
    Mutant(
        name="any-guess-resets-the-rests",
        story="Resets the rests for a wrong guess as well: they never grow.",
        replace="        if num_right:\n            self._num_rests = 0\n",
        by="        self._num_rests = 0\n",
        killed_by="test_task_4_a_costly_drafter_that_keeps_failing_is_asked_less_and_less",
        breaks=("GuessRecord.judge: task 4: if at least one token was right",
                "invariant 5: A costly drafter that keeps failing is asked after 8, 16, 32 and then every 64 steps"),
    ),
    Mutant(
        name="only-a-whole-guess-is-right",
        story="Resets the rests only if no token of the guess was wrong.",
        replace="        if num_right:\n            self._num_rests = 0\n",
        by="        if num_right == num_compared:\n            self._num_rests = 0\n",
        killed_by="test_task_4_only_a_right_token_makes_rests_short_again",
        breaks="GuessRecord.judge: task 4: if at least one token was right",
    ),
    # ---- Task 5
    Mutant(
        name="one-block-too-many",
        story="Keeps a block for the next token, even if the last block is full.",
        replace=KEPT,
        by="        num_kept = request.num_computed_tokens // self.block_size + 1\n",
        killed_by="test_task_5_the_table_has_the_blocks_of_the_computed_tokens",
        breaks="KVCacheManager.give_back_slots: the table has exactly the blocks that request.num_computed_tokens "
               "tokens need",
    ),
    Mutant(
        name="full-blocks-only",
        story="Rounds down: the half-filled block with computed tokens goes back.",
        replace=KEPT,
        by="        num_kept = request.num_computed_tokens // self.block_size\n",
        killed_by="test_task_5_the_table_has_the_blocks_of_the_computed_tokens",
        breaks=("KVCacheManager.give_back_slots: the table has exactly the blocks that request.num_computed_tokens "
                "tokens need", "invariant 6: After a step, a request owns exactly the blocks of its computed tokens"),
    ),
    Mutant(
        name="slots-for-all-tokens",
        story="Counts the newest token, which is not computed yet.",
        replace=KEPT,
        by="        num_kept = self._num_blocks_for(request.num_tokens)\n",
        killed_by="test_task_5_the_table_has_the_blocks_of_the_computed_tokens",
        breaks="invariant 6: After a step, a request owns exactly the blocks of its computed tokens",
    ),
    Mutant(
        name="frees-in-the-order-of-the-table",
        story="Frees the first block first.",
        replace=FREED,
        by="        self.block_pool.free_blocks(unused)\n",
        killed_by="test_task_5_the_last_block_is_freed_first",
        breaks="KVCacheManager.give_back_slots: the last block of the table is freed first",
    ),
    Mutant(
        name="free-and-still-in-the-table",
        story="Frees the blocks and leaves them in the table: two requests write into them.",
        replace="        del table[num_kept:]\n",
        by="",
        killed_by="test_task_5_slots_of_wrong_tokens_go_back",
        breaks="KVCacheManager.give_back_slots: its first ones, in order",
    ),
    Mutant(
        name="a-shorter-copy-of-the-table",
        story="Shortens a copy of the table and does not store it.",
        replace="        del table[num_kept:]\n",
        by="        table = table[:num_kept]\n",
        killed_by="test_task_5_slots_of_wrong_tokens_go_back",
        breaks="KVCacheManager.give_back_slots: the table has exactly the blocks that request.num_computed_tokens "
               "tokens need",
    ),
    Mutant(
        name="out-of-the-table-and-not-free",
        story="Shortens the table and does not free the blocks: every wrong draft costs blocks forever.",
        replace=FREED,
        by="",
        killed_by="test_task_5_slots_of_wrong_tokens_go_back",
        breaks="KVCacheManager.give_back_slots: each removed block has one owner fewer",
    ),
    Mutant(
        name="a-shared-block-keeps-its-owner",
        story="Frees only blocks that no other request owns: the count of a shared block stays too high.",
        replace=FREED,
        by="        self.block_pool.free_blocks(block for block in reversed(unused) if block.ref_cnt == 1)\n",
        killed_by="test_task_5_a_block_that_another_request_owns_stays_with_it",
        breaks="KVCacheManager.give_back_slots: each removed block has one owner fewer",
    ),
    Mutant(
        name="frees-for-all-owners",
        story="Frees a block until it is free, although another request owns it.",
        replace=FREED,
        by="        for block in reversed(unused):\n"
           "            while block.ref_cnt:\n"
           "                self.block_pool.free_blocks([block])\n",
        killed_by="test_task_5_a_block_that_another_request_owns_stays_with_it",
        breaks="KVCacheManager.give_back_slots: each removed block has one owner fewer",
    ),
    Mutant(
        name="does-not-index",
        story="Gives the slots back, and leaves blocks that accepted tokens filled unfindable.",
        replace=INDEXED,
        by="",
        killed_by="test_task_5_blocks_that_accepted_tokens_fill_are_found",
        breaks="KVCacheManager.give_back_slots: every block that computed tokens fill can be found by a request with "
               "the same tokens",
    ),
    Mutant(
        name="nothing-to-give-back-nothing-to-do",
        story="Returns early if no block goes back: a draft that is right is never indexed.",
        replace="        del table[num_kept:]\n",
        by="        if not unused:\n            return\n        del table[num_kept:]\n",
        killed_by="test_task_5_if_every_drafted_token_is_right_nothing_goes_back",
        breaks="KVCacheManager.give_back_slots: every block that computed tokens fill can be found by a request with "
               "the same tokens",
    ),
    Mutant(
        name="indexes-the-newest-token",
        story="Indexes all tokens of the request: the slot of the newest one holds the K/V of a wrong token.",
        replace=INDEXED,
        by="        self._index_full_blocks(request, min(request.num_tokens, len(table) * self.block_size))\n",
        killed_by="test_task_5_the_newest_token_does_not_fill_a_block",
        breaks=("KVCacheManager.give_back_slots: no other token can be found",
                "invariant 7: A token that the model has not verified can never be found in the cache"),
    ),
    Mutant(
        name="indexes-the-half-filled-block",
        story="Inserts the computed part of the last block as a tail, while the request still writes into the block.",
        replace=INDEXED,
        by=INDEXED + "        if self.prefix_tree is not None:\n"
                     "            self.prefix_tree.insert(request.all_token_ids, table, request.num_computed_tokens,\n"
                     "                                    request.extra_keys, True)\n",
        killed_by="test_task_5_a_token_that_is_not_verified_is_never_found",
        breaks="KVCacheManager.give_back_slots: no other token can be found",
    ),
    Mutant(
        name="indexes-without-the-extra-keys",
        story="Calls the tree without the extra keys: another tenant finds the tokens.",
        replace=INDEXED,
        by="        if self.prefix_tree is None:\n    " + INDEXED
           + "        else:\n"
             "            self.prefix_tree.insert(request.all_token_ids, table, request.num_computed_tokens)\n",
        killed_by="test_task_5_the_extra_keys_are_part_of_what_is_found",
        breaks="KVCacheManager.give_back_slots: every block that computed tokens fill can be found by a request with "
               "the same tokens",
    ),
    Mutant(
        name="sets-the-number-of-computed-tokens",
        story="Rounds num_computed_tokens up to whole blocks.",
        replace=INDEXED,
        by=INDEXED + "        request.num_computed_tokens = len(table) * self.block_size\n",
        killed_by="test_task_5_give_back_slots_only_reads_the_request",
        breaks="KVCacheManager.give_back_slots: request has not changed",
    ),
    Mutant(
        name="every-request-has-a-table",
        story="Reads the table without asking whether there is one.",
        replace="        table = self._tables.get(request.request_id)\n        if table is None:\n            return\n",
        by="        table = self._tables[request.request_id]\n",
        killed_by="test_task_5_a_request_without_a_table_is_accepted",
        breaks="KVCacheManager.give_back_slots: a request without a table is accepted, and nothing changes",
    ),
    Mutant(
        name="keeps-an-empty-table",
        story="Makes an empty table for a request that has none.",
        replace="        table = self._tables.get(request.request_id)\n        if table is None:\n",
        by="        table = self._tables.setdefault(request.request_id, [])\n        if not table:\n",
        killed_by="test_task_5_requests_without_a_table_leave_nothing_behind",
        breaks="KVCacheManager.give_back_slots: a request without a table is accepted, and nothing changes",
    ),
    Mutant(
        name="frees-by-block-id",
        story="Sorts the blocks by id instead of taking them in the order of the table.",
        replace="self.block_pool.free_blocks(reversed(unused))",
        by="self.block_pool.free_blocks(sorted(unused, key=lambda block: block.block_id, reverse=True))",
        killed_by="test_task_5_the_last_block_is_freed_first",
        breaks="KVCacheManager.give_back_slots: the last block of the table is freed first",
    ),
    Mutant(
        name="a-right-token-ends-the-rest",
        story="A right token clears the current rest as well, so the rest begins again.",
        replace="            self._num_rests = 0\n        # END",
        by="            self._num_rests = self._num_resting = 0\n        # END",
        killed_by="test_task_4_a_right_token_in_a_rest_shortens_the_next_one_only",
        breaks="GuessRecord.is_rested: a rest that has begun is not cut short",
    ),
    Mutant(
        name="a-right-token-in-a-rest-is-lost",
        story="Counts a rest when it ends, which undoes the reset by a right token during the rest.",
        replace="            self._num_rests += 1\n        self._num_resting -= 1\n",
        by="        self._num_resting -= 1\n        if self._num_resting == 0:\n            self._num_rests += 1\n",
        killed_by="test_task_4_a_right_token_in_a_rest_shortens_the_next_one_only",
        breaks="GuessRecord.is_rested: since the last rest began",
    ),
    Mutant(
        name="no-rows-after-an-end-of-text",
        story="Draws nothing after a drafted token that ends a text.",
        replace="        return [row_after(row, draft[:num_before]) for num_before in range(len(draft) + 1)]\n",
        by="        ends = [number for number, token_id in enumerate(draft) if token_id in row.eos_token_ids]\n"
           "        num_rows = ends[0] + 1 if ends else len(draft) + 1\n"
           "        return [row_after(row, draft[:num_before]) for num_before in range(num_rows)]\n",
        killed_by="test_task_2_a_draft_may_go_on_after_an_end_of_text",
        breaks="Verifier.rows: len(draft) + 1 rows",
    ),
    Mutant(
        name="compares-objects",
        story="Compares with “is”, which works for small numbers.",
        replace="draft[num_right] == drawn[num_right]",
        by="draft[num_right] is drawn[num_right]",
        killed_by="test_task_2_tokens_are_compared_by_their_values",
        breaks="Verifier.accept: up to and including the first that differs from the draft",
    ),
    Mutant(
        name="a-preempted-text-is-read-again",
        story="Starts again with an empty text when the request was preempted.",
        replace="        text = self._texts.setdefault(request.request_id, _Text())\n",
        by="        text = self._texts.setdefault(request.request_id, _Text())\n"
           "        if getattr(text, \"num_preemptions\", 0) != request.num_preemptions:\n"
           "            text = self._texts[request.request_id] = _Text()\n"
           "            text.num_preemptions = request.num_preemptions  # type: ignore[attr-defined]\n",
        killed_by="test_task_1_a_preempted_request_is_not_read_again",
        breaks="NgramDrafter.propose: a token is entered into the dictionary once",
    ),
]
