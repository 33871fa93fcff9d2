"""Engines: what runs a model. One thread owns an engine; nothing here knows sessions, gRPC or sampling."""
