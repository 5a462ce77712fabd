"""What ``mini-vllm`` returns to the shell when not all went well."""

#: Some prompts were refused or failed; the others were served.
FAILED = 1
#: Nothing was done, because of what was asked for or a file that is not there.
BAD_ARGUMENTS = 2
#: Ctrl-C, as shells number it.
INTERRUPTED = 130
