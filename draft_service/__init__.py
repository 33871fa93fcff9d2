"""The draft worker: it guesses the tokens that a target is about to produce and streams its guesses to verify workers.

drafters/   what guesses: a model, an n-gram lookup, both; for benchmarks a replay
session     one session within the limits of the draft model
loop        every session of every stream, on the one thread that owns the engine
inbox       what the streams tell the loop, and how much of it may wait
stream      one verify worker's stream: its reader and its writer
servicer    DraftService on grpc.aio: admits streams, drains them
worker      all of it put together
"""
