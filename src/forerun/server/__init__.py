"""`forerun serve`: an LLM behind the OpenAI API."""
