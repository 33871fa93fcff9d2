"""Prompts of many kinds, put together at random: what back-end services and people ask of a chat model.

The same seed gives the same prompts. An odd seed and an even one never share a prompt, nor a function that is quoted,
so that one can be held out from what the other was used for. The kinds are those of `draftwire bench`, and some more.
"""

from collections.abc import Callable, Iterator
from random import Random

from distill import words
from distill.passages import Half, documentation, function, half, passage


def template_prompts(seed: int, stream: int) -> Iterator[tuple[str, str]]:
    """Endlessly (kind, prompt), each kind as likely as the others. A seed has independent streams."""
    rng = half(seed, stream)
    while True:
        kind = rng.choice(tuple(KINDS))
        text = KINDS[kind](rng)
        if rng.owns(text):
            yield kind, _vary(rng, text)


def _vary(rng: Random, text: str) -> str:
    """Now and then a word before or after a prompt of one line, as people write."""
    if "\n" in text:
        return text
    if rng.random() < 0.2:
        text = (
            rng.choice(("Hello. ", "Hi! ", "Good morning. ", "A question. " if text.endswith("?") else "Please: "))
            + text
        )
    if rng.random() < 0.2:
        background = f"I am a {rng.choice(words.JOBS)} and my name is {rng.choice(words.NAMES)}."
        text += " " + rng.choice(
            (background, "Keep it short.", "Be detailed.", "Thank you!", "Use simple words.", "Be funny.")
        )
    return text


def _topic(rng: Random) -> str:
    return rng.choice(words.TOPICS)


def _person(rng: Random) -> str:
    return f"{rng.choice(words.NAMES)} {rng.choice(words.SURNAMES)}"


def _copy(rng: Random) -> str:
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


def _code(rng: Half) -> str:
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


def _chat(rng: Random) -> str:
    topic, other, goal = _topic(rng), _topic(rng), rng.choice(words.GOALS)
    return rng.choice(
        (
            f"What is the difference between {topic} and {other}?",
            f"I want to {goal}. Where should I begin?",
            f"I feel {rng.choice(words.FEELINGS)} because I have to {goal}. What should I do?",
            f"Can you help me to {goal}?",
            f"Hi! I am a {rng.choice(words.JOBS)} from {rng.choice(words.PLACES)}. Tell me something about {topic}.",
            f"Is it a good idea to {goal} before I {rng.choice(words.GOALS)}?",
            f"My friend {rng.choice(words.NAMES)} likes {topic}. What could we do together?",
            f"What do you think about {topic}?",
            f"Should I buy {rng.choice(words.THINGS)} or {rng.choice(words.THINGS)}?",
            f"What would a {rng.choice(words.JOBS)} say about {topic}?",
            f"Why is {topic} important?",
            f"I will spend {rng.randint(2, 14)} days in {rng.choice(words.PLACES)}. What should I see?",
        )
    )


def _explain(rng: Random) -> str:
    topic, style = _topic(rng), rng.choice(words.STYLES)
    return rng.choice(
        (
            f"Explain {topic} {style}.",
            f"How does {topic} work? Answer {style}.",
            f"Describe {topic} {style}.",
            f"What are the causes and effects of {topic}?",
            f"Give me a short history of {topic}.",
            f"What should everyone know about {topic}?",
            f"What are the advantages and disadvantages of {topic}?",
            f"Teach me about {topic} {style}.",
        )
    )


def _list(rng: Random) -> str:
    listed, count = (
        rng.choice(words.LISTED),
        rng.choice(("three", "four", "five", "six", "seven", "eight", "ten", "12")),
    )
    return rng.choice(
        (
            f"List {count} {listed}.",
            f"Give me a numbered list of {count} {listed}.",
            f"List {count} {listed}, one per line, each with a short reason.",
            f"Write a bulleted list of {count} facts about {_topic(rng)}.",
            f"Give me the steps to make {rng.choice(words.FOODS)} as a numbered list.",
            f"Make a table of {count} {listed}.",
            f"Name {count} things that a {rng.choice(words.JOBS)} needs to know about {_topic(rng)}.",
            f"Give me a step-by-step plan to {rng.choice(words.GOALS)} in {rng.randint(2, 12)} weeks.",
            f"Write {count} questions for a quiz about {_topic(rng)}, with answers.",
        )
    )


def _summary(rng: Half) -> str:
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


def _extract(rng: Random) -> str:
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


def _rewrite(rng: Random) -> str:
    style = rng.choice(
        (
            *("more formally", "in a friendly tone", "for children", "as an e-mail", "as a newspaper article"),
            *("in the future tense", "in the past tense", "with shorter sentences", "as a poem", "as an advertisement"),
            *("in the first person", "so that it is twice as long", "in half as many words", "as a dialogue"),
        )
    )
    return f"{rng.choice(('Rewrite', 'Rephrase', 'Write again', 'Reformulate'))} this text {style}.\n\n{passage(rng)}"


def _story(rng: Random) -> str:
    who, subject = rng.choice(words.JOBS), rng.choice(words.STORY_SUBJECTS)
    genre, place = rng.choice(words.GENRES), rng.choice(words.PLACES)
    return rng.choice(
        (
            f"Write a {genre} story about a {who} who {subject}.",
            f"Write the beginning of a story about a {who} who {subject}.",
            f"Tell me a short story set in {place}, in which a {who} {subject}.",
            f"Write the last paragraph of a {genre} story about {rng.choice(words.NAMES)}, a {who} who {subject}.",
            f"Write a conversation between a {who} and a {rng.choice(words.JOBS)} in {place}.",
            f"Continue this story: {rng.choice(words.NAMES)}, a {who} in {place}, {subject}.",
        )
    )


def _write(rng: Random) -> str:
    topic, name, goal = _topic(rng), rng.choice(words.NAMES), rng.choice(words.GOALS)
    return rng.choice(
        (
            f"Write a poem about {topic}.",
            f"Write a haiku about {rng.choice(words.THINGS)}.",
            f"Write an e-mail to {name}, my {rng.choice(words.JOBS)}, and ask about {topic}.",
            f"Write a polite letter to {_person(rng)} because I cannot come on {rng.choice(words.DAYS)}.",
            f"Write a short essay about {topic}.",
            f"Write an advertisement for {rng.choice(words.THINGS)}.",
            f"Write an introduction for a talk about {topic} by {_person(rng)}.",
            f"Write a review of a restaurant in {rng.choice(words.PLACES)} "
            f"that is known for {rng.choice(words.FOODS)}.",
            f"Write a diary entry of a {rng.choice(words.JOBS)} who wants to {goal}.",
            f"Write a slogan for a campaign about {topic}.",
            f"Write a recipe for {rng.choice(words.FOODS)} for {rng.randint(2, 10)} people.",
            f"Write a message that wishes {name} luck: they want to {goal}.",
        )
    )


def _maths(rng: Random) -> str:
    a, b, c = rng.randint(2, 99), rng.randint(2, 40), rng.randint(2, 12)
    name, other, items = rng.choice(words.NAMES), rng.choice(words.NAMES), rng.choice(words.ITEMS)
    return rng.choice(
        (
            f"What is {a} {rng.choice(('+', '-', '*'))} {b}?",
            f"{name} has {a + b} {items} and gives {b} to {other}. How many {items} are left?",
            f"Solve for x: {c}x + {b} = {c * a + b}. Show the steps.",
            f"A train travels {a * c} kilometres in {c} hours. How fast is it?",
            f"{name} buys {c} {items} at {b} cents each and pays with {c * b + a} cents. How much change is there?",
            f"What is {c * 5} per cent of {a * 10}?",
            f"Convert {a} kilometers to miles.",
            f"The sides of a rectangle are {a} and {b} metres. What are its area and its perimeter?",
            f"List the first {c} multiples of {b}.",
            f"Is {a * 2 + 1} a prime number? Explain.",
        )
    )


def _classify(rng: Random) -> str:
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


#: Kind -> what makes a prompt of it. Each is as likely as the others.
KINDS: dict[str, Callable[[Half], str]] = {
    "copy": _copy,
    "code": _code,
    "chat": _chat,
    "explain": _explain,
    "list": _list,
    "summary": _summary,
    "extract": _extract,
    "rewrite": _rewrite,
    "story": _story,
    "write": _write,
    "maths": _maths,
    "classify": _classify,
}
