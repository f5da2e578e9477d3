"""Running plans on an accelerator: tables in its memory, captured steps, launches ahead of time."""
