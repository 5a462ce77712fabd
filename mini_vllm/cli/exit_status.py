"""The exit statuses of ``mini-vllm`` other than 0."""

#: Some prompts were rejected or failed; the others were served.
FAILED = 1
#: Nothing was done, because an argument is invalid or a file is missing.
BAD_ARGUMENTS = 2
#: Ctrl-C: the number that shells use.
INTERRUPTED = 130
