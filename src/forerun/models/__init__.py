"""Models by name, file or repository: where they come from, and what their files say."""
