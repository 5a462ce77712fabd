"""OpenAI's API: the fields of a request, the content of an answer, and how an answer is sent."""
