"""The wire: protos to plain values and back, errors to statuses and back, how servers and channels are set up."""
