"""Scenes of the Godot engine to be written: their families, what they may hold, what is seen."""
