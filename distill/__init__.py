"""Custom draft models: collect a target's own text, distil a small draft from it, forecast what it will gain."""
