"""The API: what clients of OpenAI's API say over HTTP, answered by one service."""
