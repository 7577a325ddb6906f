"""Load on a server that speaks the API of OpenAI: requests are sent as they were recorded or drawn, and answers are timed."""
