"""The twin as a real OpenAI-compatible HTTP server, paced in real time.

It serves two ends. People point any client, gateway or dashboard at a deployment that they do not
have yet. And it is the load client's test double: with fixed latencies the truth is known to the
nanosecond, so a client's stamps can be held against it. That asks for pacing far below a
millisecond, which is why it has its own loop (see `poller.py`).

1 token = 1 word: the twin has no tokenizer, so a prompt counts as many tokens as it has
whitespace-separated words, and every token that it generates is one word.
"""
