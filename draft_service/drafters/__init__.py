"""What guesses the next tokens: a model, an n-gram lookup, or both. Nothing here knows streams, gRPC or clocks."""
