"""Solids to be modelled: what they are made of, their families, and how two are compared."""
