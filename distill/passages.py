"""Short passages for prompts that ask to copy, summarise, rewrite or extract.

A passage is a handful of sentences about one invented thing.
"""

from random import Random

from distill import words


def passage(rng: Random) -> str:
    """Three to six sentences."""
    return rng.choice((_notice, _biography, _event, _product, _report, _minutes, _recipe, _place))(rng)


def _hours(rng: Random) -> tuple[str, str]:
    return f"{rng.randint(7, 11)} in the morning", f"{rng.randint(4, 9)} in the evening"


def _some(rng: Random, sentences: list[str], least: int) -> str:
    """Some of the sentences, in their order."""
    count = rng.randint(least, len(sentences))
    return " ".join(sentences[i] for i in sorted(rng.sample(range(len(sentences)), count)))


def _notice(rng: Random) -> str:
    venue, (opens, closes) = rng.choice(words.VENUES), _hours(rng)
    first, last, other = rng.sample(words.DAYS, 3)
    return f"The {venue} is open from {first} to {last}, from {opens} until {closes}. " + _some(
        rng,
        [
            f"On {other} it closes at {rng.randint(1, 5)}.",
            f"Children under {rng.randint(4, 14)} must be with an adult.",
            f"A day ticket costs {rng.randint(2, 30)} euros, a monthly pass {rng.randint(31, 90)} euros.",
            f"Please leave bags in the lockers, which need a coin of {rng.choice(('one', 'two'))} euros.",
            f"The {rng.choice(('north', 'south', 'main', 'rear'))} entrance "
            f"is closed until {rng.choice(words.MONTHS)}.",
            f"Groups of more than {rng.randint(5, 25)} people should call {rng.randint(2, 9)} days before they come.",
            f"Questions are answered by {rng.choice(words.NAMES)} {rng.choice(words.SURNAMES)} at the front desk.",
            "Dogs are welcome if they are kept on a lead.",
        ],
        2,
    )


def _biography(rng: Random) -> str:
    name, surname, job = rng.choice(words.NAMES), rng.choice(words.SURNAMES), rng.choice(words.JOBS)
    born = rng.randint(1860, 1990)
    return f"{name} {surname} was born in {rng.choice(words.PLACES)} in {born}. " + _some(
        rng,
        [
            f"At the age of {rng.randint(15, 22)}, {surname} began to work as a {job}.",
            f"In {born + rng.randint(23, 40)} {surname} published a book about {rng.choice(words.TOPICS)}.",
            f"Later {surname} moved to {rng.choice(words.PLACES)} and opened a small school.",
            f"{surname} was also known for a love of {rng.choice(words.TOPICS)}.",
            f"For this work {surname} received a medal in {born + rng.randint(41, 60)}.",
            f"Friends described {name} as patient, curious and a little {rng.choice(words.FEELINGS)}.",
        ],
        2,
    )


def _event(rng: Random) -> str:
    topic, host = rng.choice(words.TOPICS), f"{rng.choice(words.NAMES)} {rng.choice(words.SURNAMES)}"
    when = f"{rng.choice(words.DAYS)}, {rng.randint(1, 28)} {rng.choice(words.MONTHS)}"
    return f"An evening about {topic} takes place on {when} at the {rng.choice(words.VENUES)}. " + _some(
        rng,
        [
            f"Doors open at {rng.randint(5, 7)} and the talk begins half an hour later.",
            f"{host}, a {rng.choice(words.JOBS)} from {rng.choice(words.PLACES)}, "
            f"will speak for {rng.randint(20, 60)} minutes.",
            f"Tickets cost {rng.randint(3, 25)} dollars and can be bought online.",
            f"There are only {rng.randint(20, 200)} seats, so early booking is advised.",
            f"After the talk, {rng.choice(words.FOODS)} and drinks will be served.",
            "The building has a lift and a ramp.",
        ],
        2,
    )


def _product(rng: Random) -> str:
    thing = rng.choice(words.THINGS)
    return f"We are selling {thing} that is {rng.randint(1, 12)} years old. " + _some(
        rng,
        [
            f"It weighs {rng.randint(1, 40)} kilograms and is {rng.randint(20, 200)} centimetres long.",
            f"The price is {rng.randint(10, 900)} dollars, or a fair exchange for {rng.choice(words.THINGS)}.",
            f"It was used by a {rng.choice(words.JOBS)} and has always been kept indoors.",
            f"One small part was repaired in {rng.choice(words.MONTHS)}.",
            f"You can see it on {rng.choice(words.DAYS)} in {rng.choice(words.PLACES)}.",
            f"Please ask for {rng.choice(words.NAMES)}.",
        ],
        2,
    )


def _report(rng: Random) -> str:
    place = rng.choice(words.PLACES)
    return f"Heavy rain is expected in {place} from {rng.choice(words.DAYS)} evening. " + _some(
        rng,
        [
            f"Up to {rng.randint(10, 90)} millimetres may fall within {rng.randint(3, 24)} hours.",
            f"The temperature will drop to {rng.randint(-5, 18)} degrees during the night.",
            f"The road to {rng.choice(words.PLACES)} is closed for lorries.",
            f"Schools will open {rng.choice(('one hour', 'two hours'))} later than usual.",
            f"{rng.choice(words.NAMES)} {rng.choice(words.SURNAMES)}, a {rng.choice(words.JOBS)}, "
            "asked everyone to stay calm.",
            f"The weather should improve by {rng.choice(words.DAYS)}.",
        ],
        2,
    )


def _minutes(rng: Random) -> str:
    first, second, third = rng.sample(words.NAMES, 3)
    return f"{first} opened the meeting and presented the plan for {rng.choice(words.MONTHS)}. " + _some(
        rng,
        [
            f"{second} reported that sales rose by {rng.randint(2, 40)} per cent.",
            f"{third} asked for a budget of {rng.randint(1, 90)},000 euros "
            f"for a project about {rng.choice(words.TOPICS)}.",
            f"The team agreed to hire a {rng.choice(words.JOBS)}.",
            f"{second} will write to the office in {rng.choice(words.PLACES)} before {rng.choice(words.DAYS)}.",
            f"The question of {rng.choice(words.TOPICS)} was put off.",
            f"The next meeting is on {rng.choice(words.DAYS)} at {rng.randint(8, 16)}:"
            f"{rng.choice(('00', '15', '30', '45'))}.",
        ],
        2,
    )


def _recipe(rng: Random) -> str:
    food = rng.choice(words.FOODS)
    return (
        f"To make {food} for {rng.randint(2, 8)} people, begin with {rng.randint(100, 900)} grams of flour. "
        + _some(
            rng,
            [
                f"Add {rng.randint(2, 6)} eggs and a pinch of salt.",
                f"Stir in {rng.randint(1, 5)} spoons of oil and let it rest for {rng.randint(5, 60)} minutes.",
                f"Heat the oven to {rng.randint(15, 24) * 10} degrees.",
                f"Bake it for {rng.randint(10, 70)} minutes, until it is golden.",
                f"Serve it with {rng.choice(words.FOODS)}.",
                f"It keeps for {rng.randint(1, 6)} days in the fridge.",
            ],
            2,
        )
    )


def _place(rng: Random) -> str:
    place = rng.choice(words.PLACES)
    return f"Visitors come to {place} for its light, its food and its {rng.choice(words.VENUES)}. " + _some(
        rng,
        [
            f"About {rng.randint(2, 900)},000 people arrive every year, most of them in {rng.choice(words.MONTHS)}.",
            f"The oldest house was built in {rng.randint(1300, 1900)} by a {rng.choice(words.JOBS)}.",
            f"A walk through the centre takes {rng.randint(1, 4)} hours.",
            f"The local speciality is {rng.choice(words.FOODS)}.",
            f"Trains from {rng.choice(words.PLACES)} run every {rng.randint(2, 12) * 5} minutes.",
            "In the evening there is often a concert of "
            f"{rng.choice(('jazz', 'folk music', 'brass bands', 'old songs'))}.",
        ],
        2,
    )
