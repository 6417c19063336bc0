"""The planner: what drafting is worth, here or by datasheet, at which length, and how to tell other engines."""
