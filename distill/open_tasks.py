"""Prompts of a line that leave everything to the answer: questions, wishes, sums. One function for each kind."""

from random import Random

from distill import words


def _topic(rng: Random) -> str:
    return rng.choice(words.TOPICS)


def _person(rng: Random) -> str:
    return f"{rng.choice(words.NAMES)} {rng.choice(words.SURNAMES)}"


def chat(rng: Random) -> str:
    """What people ask for themselves."""
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


def explain(rng: Random) -> str:
    """Tell what something is."""
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


def listing(rng: Random) -> str:
    """Make a list, a table or a plan."""
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


def story(rng: Random) -> str:
    """Invent a story."""
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


def write(rng: Random) -> str:
    """Write a text of some form."""
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


def maths(rng: Random) -> str:
    """Reckon with small numbers."""
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
