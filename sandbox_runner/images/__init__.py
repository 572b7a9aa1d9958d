"""Images: what there is in a sandbox beyond the kernel. Each is described by one file (*.toml).

`build` makes a Debian tree of a description: bubblewrap uses the tree as it is, docker imports it.
The Dockerfile makes the same of a base image from a registry.
"""

from sandbox_runner.images.description import Description, describe, image_names, limits_of
from sandbox_runner.images.host import ensure_host_image

__all__ = ["Description", "describe", "ensure_host_image", "image_names", "limits_of"]
