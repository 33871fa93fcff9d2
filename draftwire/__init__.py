"""draftwire: disaggregated speculative decoding (docs/architecture.md)."""
