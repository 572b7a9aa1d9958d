"""Whether an experiment fits a TPU slice, and what a step costs there, without the TPU."""
