"""What runs inside a sandbox. Standard library only; sent as source, so nothing is installed there.

The host starts `python3 -c BOOTSTRAP`, sends these modules' source, then frames (`supervisor`). A
task runs in a box (`boxes`), as an unprivileged user under limits (`task`).
"""
