"""Prompts that bring something along: a passage, a function, or words to work on. One function for each kind."""

from random import Random

from distill import words
from distill.halves import Half
from distill.library import documentation, function
from distill.passages import passage


def copy(rng: Random) -> str:
    """Give a passage back, word for word or with a small change."""
    name, day, month = rng.choice(words.NAMES), rng.choice(words.DAYS), rng.choice(words.MONTHS)
    task = rng.choice(
        (
            "Repeat the following text word for word.",
            "Repeat this exactly as it is:",
            "Copy the text below without changing anything.",
            "Write this text again, but replace every number with another one.",
            f"Rewrite this text and change the day to {day}. Keep everything else.",
            f"Copy this text, but change the month to {month}.",
            f"Copy the following and add one sentence about {name} at the end.",
            "Print the following text in a quotation.",
            "Write the following text as a list with one sentence per line.",
            "Correct the spelling of this text, and change nothing else.",
        )
    )
    return f"{task}\n\n{passage(rng)}"


def code(rng: Half) -> str:
    """Do something with a function of Python's library, or write a small program."""
    if rng.random() < 0.5:
        task = rng.choice(
            (
                "Copy this function and add a docstring to it.",
                "Explain what this function does.",
                "Repeat this code exactly.",
                "Rename the first argument of this function and show the whole function.",
                "Add comments to this code.",
                "Add type hints to this Python function.",
                "Write a test for this function.",
                "Find possible mistakes in this code.",
            )
        )
        return f"{task}\n\n```python\n{function(rng)}\n```"
    what = rng.choice(
        (
            f"returns the {rng.choice(('largest', 'smallest', 'second largest', 'most frequent', 'longest', 'last'))} "
            f"element of a list of {rng.choice(('numbers', 'words', 'tuples', 'dates'))}",
            f"counts the {rng.choice(('vowels', 'words', 'lines', 'digits', 'spaces', 'capital letters'))} in a string",
            f"sorts a list of {rng.choice(words.ITEMS)} by {rng.choice(('price', 'weight', 'name', 'colour'))}",
            "checks whether a "
            f"{rng.choice(('number is prime', 'year is a leap year', 'string is empty', 'list is sorted'))}",
            "converts "
            f"{rng.choice(('Celsius to Fahrenheit', 'miles to kilometres', 'seconds to hours', 'text to a list'))}",
            f"computes the {rng.choice(('factorial', 'average', 'median', 'sum of squares', 'n-th Fibonacci number'))}",
            f"reads a {rng.choice(('CSV', 'JSON', 'text', 'log'))} file and prints its "
            f"{rng.choice(('first line', 'columns', 'size', 'longest line'))}",
            f"removes {rng.choice(('duplicates', 'empty strings', 'negative numbers', 'spaces'))} from a list",
            f"draws a {rng.choice(('triangle', 'square', 'circle', 'tree'))} of stars of size {rng.randint(3, 12)}",
        )
    )
    language = rng.choice(("Python", "Python", "Python", "JavaScript", "Java", "C", "Go", "SQL", "Bash"))
    return rng.choice(
        (
            f"Write a {language} function that {what}.",
            f"Write a {language} program that {what}, and show how to use it.",
            f"How do I write a function in {language} that {what}?",
            f"Write a class in {language} for {rng.choice(words.THINGS)} with {rng.randint(2, 4)} methods.",
        )
    )


def summary(rng: Half) -> str:
    """Say in short what passages or a function's documentation say."""
    text = documentation(rng) if rng.random() < 0.3 else " ".join(passage(rng) for _ in range(rng.randint(1, 2)))
    task = rng.choice(
        (
            "Summarise the following text.",
            "Summarize this in one sentence.",
            "Summarise this text in two sentences.",
            "What is this text about?",
            "Give this text a title and a short summary.",
            "List the key points of the following text.",
            "Explain the following text to a child.",
            "TL;DR:",
        )
    )
    return f"{task}\n\n{text}"


def extract(rng: Random) -> str:
    """Find something in a passage."""
    what = rng.choice(("names", "numbers", "places", "dates and times", "days of the week", "nouns", "verbs", "prices"))
    task = rng.choice(
        (
            f"List all {what} in the following text.",
            f"Which {what} are mentioned here?",
            f"Extract the {what} from this text as JSON.",
            "Write three questions about this text and answer them.",
            "Turn this text into a table of facts.",
            "Who and what is mentioned in this text?",
            "Answer in one sentence: what should a reader remember?",
        )
    )
    return f"{task}\n\n{passage(rng)}"


def rewrite(rng: Random) -> str:
    """Say a passage in another way."""
    style = rng.choice(
        (
            *("more formally", "in a friendly tone", "for children", "as an e-mail", "as a newspaper article"),
            *("in the future tense", "in the past tense", "with shorter sentences", "as a poem", "as an advertisement"),
            *("in the first person", "so that it is twice as long", "in half as many words", "as a dialogue"),
        )
    )
    return f"{rng.choice(('Rewrite', 'Rephrase', 'Write again', 'Reformulate'))} this text {style}.\n\n{passage(rng)}"


def classify(rng: Random) -> str:
    """Sort, name, translate: short tasks with a short answer."""
    return rng.choice(
        (
            f"Is this text formal or informal? Answer with one word and a reason.\n\n{passage(rng)}",
            f"Sort these words by alphabet: {', '.join(rng.sample(words.TOPICS + words.THINGS, rng.randint(4, 9)))}.",
            f"Which of these does not belong: {', '.join(rng.sample(words.THINGS, 3))}, {rng.choice(words.FOODS)}?",
            f"Translate into {rng.choice(words.LANGUAGES)}: I would like to {rng.choice(words.GOALS)}.",
            f'How do you say "{rng.choice(words.THINGS)}" in {rng.choice(words.LANGUAGES)}?',
            f'Give me a synonym and an opposite of "{rng.choice(words.FEELINGS)}", each in a sentence.',
            f"What is the mood of this sentence? I had to {rng.choice(words.GOALS)} "
            f"and felt {rng.choice(words.FEELINGS)}.",
            f"Which is better for a {rng.choice(words.JOBS)}: "
            f"{rng.choice(words.THINGS)} or {rng.choice(words.THINGS)}?",
        )
    )
