"""Words that the prompt templates draw from. Lists of plain data; the more of them, the more different prompts."""


def _split(text: str) -> tuple[str, ...]:
    return tuple(" ".join(part.split()) for part in text.split(","))


TOPICS = _split(
    """gravity, photosynthesis, the water cycle, volcanoes, earthquakes, black holes, the moon, comets, vaccines,
    antibiotics, the immune system, sleep, memory, dreams, evolution, dinosaurs, whales, octopuses, bees, ants,
    butterflies, wolves, coral reefs, rainforests, deserts, glaciers, hurricanes, lightning, rainbows, tides, solar
    energy, wind power, nuclear power, batteries, electric cars, bicycles, trains, aeroplanes, bridges, skyscrapers,
    the Roman Empire, ancient Egypt, the Silk Road, the printing press, the Industrial Revolution, the French
    Revolution, the Cold War, the space race, the Renaissance, democracy, constitutions, elections, human rights,
    taxes, inflation, supply and demand, the stock market, interest rates, insurance, budgeting, credit cards, small
    businesses, advertising, negotiation, leadership, teamwork, time management, public speaking, job interviews,
    remote work, burn-out, stress, meditation, yoga, running, swimming, football, chess, cooking, baking, bread,
    cheese, chocolate, coffee, tea, spices, nutrition, vegetarian food, gardening, composting, houseplants,
    recycling, plastic pollution, climate change, artificial intelligence, machine learning, neural networks, the
    internet, search engines, encryption, passwords, databases, compilers, operating systems, open source, robots,
    drones, 3D printing, quantum computers, smartphones, social media, video games, photography, painting,
    sculpture, jazz, classical music, the piano, the guitar, opera, theatre, poetry, novels, fairy tales, mythology,
    philosophy, ethics, logic, probability, prime numbers, geometry, calculus, statistics, algebra, atoms, the
    periodic table, acids and bases, magnets, sound, light, colours, mirrors, microscopes, telescopes, maps, time
    zones, calendars, languages, grammar, handwriting, libraries, museums, friendship, parenting, adopting a dog,
    cats, moving house, renting a flat, travelling alone, camping, hiking, first aid, allergies, headaches, teeth,
    eyesight, learning to drive, saving water, planting trees, beekeeping, knitting, origami, juggling"""
)
THINGS = _split(
    """a bicycle, a tent, a laptop, an umbrella, a teapot, a violin, a telescope, a backpack, a lamp, a wooden chair, a
    clock, a garden shed, a sailing boat, a camera, a sewing machine, a fountain pen, a suitcase, a raincoat, a
    kettle, a ladder, a toolbox, a mirror, a blanket, a notebook, a pair of boots, a water bottle, a coffee machine,
    a bookshelf, a piano, a drum, a kite, a puzzle, a hammock, a vacuum cleaner, a printer, a bread knife, a pocket
    watch, a scarf, a scooter"""
)
PLACES = _split(
    """Lisbon, Kyoto, Nairobi, Vancouver, Oslo, Lima, Marrakesh, Edinburgh, Hanoi, Melbourne, Prague, Havana, Istanbul,
    Reykjavik, Mumbai, Cairo, Chicago, Buenos Aires, Dublin, Seoul, a small fishing village, a mountain town, an old
    harbour, a desert city, an island without cars, a snowy valley, a busy market town, a quiet suburb, New Orleans,
    Cape Town, Helsinki, Athens, Singapore, Quito, Warsaw, Zanzibar, Florence, Bergen, Tasmania, Patagonia"""
)
NAMES = _split(
    """Amina, Boris, Carla, Diego, Elena, Farid, Greta, Hiro, Ines, Jonas, Kavya, Liam, Mei, Nadia, Omar, Paula,
    Quentin, Rosa, Samir, Tara, Ugo, Vera, Wanda, Xavier, Yusuf, Zoe, Anna, Ben, Chloe, David, Emma, Felix, Grace,
    Henry, Isla, Jack, Kate, Leo, Maria, Noah, Olga, Peter, Ruth, Sofia, Tom, Victor, William, Akira, Bao, Chidi,
    Dalia, Esther, Fatima"""
)
SURNAMES = _split(
    """Alvarez, Bauer, Chen, Dubois, Evans, Fischer, Garcia, Hansen, Ivanova, Jansen, Khan, Larsen, Moreau, Nguyen,
    Okafor, Petrov, Quinn, Rossi, Silva, Tanaka, Usman, Varga, Walker, Xu, Yilmaz, Zimmer, Brown, Clark, Davies,
    Fox, Green, Hill"""
)
JOBS = _split(
    """teacher, nurse, carpenter, baker, pilot, librarian, gardener, chef, plumber, journalist, lawyer, accountant,
    designer, programmer, electrician, farmer, photographer, violinist, translator, architect, dentist, bus driver,
    postman, tailor, lighthouse keeper, astronomer, detective, shop owner, zookeeper, firefighter, clockmaker,
    sailor, painter, student, scientist, mayor, beekeeper, bookseller, mechanic, veterinarian, ballet dancer,
    weather forecaster, park ranger"""
)
FOODS = _split(
    """pancakes, tomato soup, fried rice, lentil curry, apple pie, banana bread, vegetable lasagne, mushroom risotto,
    omelette, pizza dough, chocolate cake, potato salad, chicken stew, fish tacos, hummus, pumpkin soup, noodle
    soup, oatmeal biscuits, Greek salad, stuffed peppers, lemonade, garlic bread, scrambled eggs, bean chilli,
    carrot cake, spring rolls, guacamole"""
)
GOALS = _split(
    """learn a new language, get fit, save money, read more books, sleep better, eat more vegetables, make new friends,
    find a job, write a novel, start a blog, build a website, learn to code, pass an exam, stop procrastinating,
    tidy my flat, plan a wedding, organise a birthday party, train for a marathon, quit smoking, spend less time on
    my phone, grow tomatoes, adopt a cat, move to another city, ask for a raise, give a speech, learn the guitar,
    cook for eight people, travel on a small budget, start a small business, fix a leaking tap, paint a room, choose
    a laptop, write a CV"""
)
FEELINGS = _split(
    """nervous, sad, bored, excited, tired, lonely, angry, proud, worried, confused, stressed, happy, disappointed,
    curious"""
)
STYLES = _split(
    """in simple terms, for a ten-year-old, in one sentence, in two sentences, in three short paragraphs, as a short
    dialogue, with an example, step by step, with an analogy, in fewer than fifty words, as if you were a pirate,
    formally, for a beginner, for an expert, in plain English, with three bullet points, with a short conclusion, in
    your own words"""
)
LISTED = _split(
    """things to pack for a week at the sea, healthy snacks, ways to save energy at home, questions to ask in a job
    interview, good habits, reasons to learn a second language, gifts for a grandmother, games for a rainy day, tips
    for better sleep, animals that live in the forest, famous inventions, safety rules for a laboratory, ideas for a
    school project, steps to change a tyre, names for a cat, titles for a mystery novel, countries in South America,
    kinds of cloud, musical instruments, vegetables that grow in winter, tools that every home needs, ways to reduce
    stress, mistakes that new programmers make, books that everyone should read, exercises without equipment, uses
    of a lemon, side dishes for fish, ideas for a small garden, signs that a plant needs water, ways to say thank
    you, rules for a shared flat, topics for small talk, things to do in a big city, ways to earn money as a
    student, facts about the sun, breeds of dog"""
)
STORY_SUBJECTS = _split(
    """finds a map in an old book, hears music from an empty house, loses a key that opens every door, wakes up in
    another century, meets a talking fox, receives a letter without a sender, gets lost in the fog, builds a machine
    that makes rain, discovers a hidden room, adopts a very small dragon, misses the last train home, repairs a
    clock that runs backwards, finds a robot in the garden, wins a prize nobody wanted, inherits a shop full of
    mirrors, follows a blue light into the woods, hides a secret from the whole town, learns to speak with birds,
    sails to an island that is on no map, wakes a sleeping giant, plants a seed that grows overnight, forgets their
    own name, saves a village from a flood"""
)
GENRES = _split("fairy tale, mystery, science fiction, comedy, adventure, fable, ghost, detective, bedtime, historical")
ITEMS = _split(
    """apples, pencils, tickets, boxes, oranges, books, coins, stickers, bottles, chairs, marbles, eggs, cards,
    flowers, cups"""
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = _split("January, February, March, April, May, June, July, August, September, October, November, December")
VENUES = _split(
    """town museum, swimming pool, public garden, sports centre, city archive, farmers' market, community kitchen, film
    club, railway station, health clinic, bicycle workshop, language school, theatre, art gallery, tennis club,
    computer room, repair cafe, campsite, ferry terminal, ice rink, playground, post office, recycling centre,
    concert hall, bakery"""
)
LANGUAGES = _split("French, Spanish, German, Italian, Portuguese, Dutch, Swedish, Latin")
