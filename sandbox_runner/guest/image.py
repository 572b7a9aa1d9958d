"""What the image says of itself: a file that its builder wrote, on the read-only root."""

import json

SETTINGS = "/etc/sandbox_image.json"


def read_settings():
  """(modules to hold ready, variables of every program); none of an image without the file."""
  try:
    with open(SETTINGS, "rb") as f:
      settings = json.load(f)
  except FileNotFoundError:
    return [], {}
  return settings["preload"], settings["env"]
