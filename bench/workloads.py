"""The benchmark's prompts: what back-end services ask for, from text that repeats itself to text that does not."""

from dataclasses import dataclass

_NOTICE = (
    "The library opens at nine in the morning and closes at six in the evening from Monday to Friday. On Saturday it "
    "opens at ten and closes at four. Members may borrow up to eight books for three weeks. Books that are returned "
    "late cost ten cents a day. Study rooms can be reserved at the front desk for up to two hours."
)
_CODE = """def average(values):
    total = 0
    for value in values:
        total += value
    return total / len(values)
"""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One chat message and what kind of answer it asks for."""

    kind: str
    text: str


PROMPTS = (
    Prompt("copy", f"Repeat the following notice word for word.\n\n{_NOTICE}"),
    Prompt("copy", f"Rewrite this notice, changing only the opening hour on Saturday to eleven.\n\n{_NOTICE}"),
    Prompt("code", f"Copy this function and add a docstring to it.\n\n{_CODE}"),
    Prompt("code", "Write a Python function that checks whether a word is a palindrome, and show how to call it."),
    Prompt("chat", "What is the difference between weather and climate? Explain it to a ten-year-old."),
    Prompt("chat", "I have a job interview tomorrow and I am nervous. What should I do this evening?"),
    Prompt("list", "List ten things to pack for a week of camping, one per line, each with a short reason."),
    Prompt("list", "Give me a numbered list of the steps to bake a simple loaf of bread."),
    Prompt("summary", f"Summarise this notice in two sentences.\n\n{_NOTICE}"),
    Prompt("story", "Write the beginning of a story about a lighthouse keeper who finds a message in a bottle."),
)
