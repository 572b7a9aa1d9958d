"""What runs in the sandboxes of a grader; the host imports only `plain`. Standard library only."""
